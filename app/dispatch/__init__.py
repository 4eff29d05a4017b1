"""Messages of a topic pushed to receivers: the definition of a workload, and its view."""
