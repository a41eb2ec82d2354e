"""Log files through the normaliser into Elasticsearch, without an agent."""
