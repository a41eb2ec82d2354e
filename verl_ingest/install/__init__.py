"""Bring Kibana's and Grafana's assets onto their servers: compare first, write what differs, over their HTTP APIs."""
