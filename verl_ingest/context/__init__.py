"""What happened at a step: pure functions over documents; `step` puts them together."""
