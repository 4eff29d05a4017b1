"""Confluent Parallel Consumer as a peer: fetched from Maven Central, its harness compiled when it runs."""

from tests.bench.parallel_consumer.peer import SETTINGS, VERSION, Peer, build

__all__ = ["SETTINGS", "VERSION", "Peer", "build"]
