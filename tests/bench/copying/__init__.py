"""Parts of the benches `replication` and `replication-cost`: topics, sides and measurements."""
