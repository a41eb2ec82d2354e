"""Servers of the loopback address that answer as Kibana and Grafana do, and keep what they were asked."""
