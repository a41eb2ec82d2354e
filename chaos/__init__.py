"""The chaos suite: logs are written and rotated while the real agent and server are killed, stopped and refuse."""
