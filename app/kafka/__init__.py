"""Kafka's protocol; data_clusters (a client, fetches, appends and commits of each), consumer_lag."""
