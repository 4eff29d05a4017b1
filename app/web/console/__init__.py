"""Assembles the API, the console's pages with their assets, and the metrics."""
