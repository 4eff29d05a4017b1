"""Delivery of a topic's messages to receivers: definitions of workloads, pumps, calls, dead letters, view."""
