"""Whether everything is as it should be: one check a question, each with a verdict and what to do."""
