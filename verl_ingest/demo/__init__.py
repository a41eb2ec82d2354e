"""The main job on one machine: sample logs into Elasticsearch, and what happened at one step."""
