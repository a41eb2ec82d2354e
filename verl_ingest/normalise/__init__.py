"""Runs the agent's own normaliser, the Lua files of deploy/fluent-bit, from Python."""
