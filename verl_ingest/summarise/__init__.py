"""Step summaries: `step` makes one from records, `run` brings those of a run up to date, `writing` stores them."""
