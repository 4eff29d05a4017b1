"""Copies topics from cluster to cluster: the definition of a route, and its view in the console."""
