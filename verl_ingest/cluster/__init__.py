"""Roll the agents out to a cluster, and see that records arrive: settings -> build/ -> nodes."""
