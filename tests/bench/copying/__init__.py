"""What the benches `replication` and `replication-cost` measure, and with what."""
