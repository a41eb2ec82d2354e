"""The agent's side: settings -> Fluent Bit's configuration, and whether it is sound."""
