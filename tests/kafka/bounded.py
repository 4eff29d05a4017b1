"""aiokafka's consumers with the limits of a worker, for one test."""

from __future__ import annotations

import pytest
from aiokafka.consumer import consumer, fetcher

from app.kafka.fetch import bounded_consumer


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `bounded_consumer.install`; undone with `monkeypatch`."""
    for name in ("MemoryRecords", "PartitionRecords", "FetchResult"):
        monkeypatch.setattr(fetcher, name, getattr(fetcher, name))
    monkeypatch.setattr(consumer, "Fetcher", consumer.Fetcher)
    bounded_consumer.install()
