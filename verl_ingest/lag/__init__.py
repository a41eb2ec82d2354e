"""How far the agent of this node is behind its logs: what was found out, and what it means."""
