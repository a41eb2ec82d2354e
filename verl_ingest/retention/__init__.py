"""Delete daily indices that are old enough, but none with records of a run that is pinned."""
