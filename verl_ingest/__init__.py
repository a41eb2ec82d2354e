"""Logs of verl runs into daily Elasticsearch indices, and what happened at step N."""

__version__ = "0.1.0"
