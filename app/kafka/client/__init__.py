"""Clients of one Kafka cluster: connection, commits, topics and settings, permissions, tails of topics."""
