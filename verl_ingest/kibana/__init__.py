"""What the kit has in Kibana: a data view over all indices and saved searches on it. Pure: meets no server."""
