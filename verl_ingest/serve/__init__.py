"""The service: runs and steps as pages and as JSON."""
