"""Benchmarks: ratios of two things measured side by side in one run, never seconds by themselves."""
