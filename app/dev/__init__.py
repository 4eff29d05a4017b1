"""Kafka on this machine and the demo: for developers; no part of a worker."""
