"""Every URL: the kit's own pages, Kibana, Grafana. Nothing else joins or quotes parts of one."""
