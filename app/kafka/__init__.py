"""Kafka's protocol; data clusters (client, fetch, append and commits of each); consumer lag."""
