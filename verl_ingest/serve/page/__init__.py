"""The pages of the service: a step's context into a view of plain values, views into HTML."""
