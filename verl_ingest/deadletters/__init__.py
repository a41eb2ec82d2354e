"""What the agent gave up sending: read from its files of rejected chunks, and sent again."""
