"""A real Elasticsearch on this machine, without Docker, for the demo and the tests."""
