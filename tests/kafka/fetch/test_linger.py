"""A reader with a linger time, such as an audit, requests little data later; other readers at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.protocol import PartitionAnswer
from app.kafka.fetch.service import FetchService
from tests.kafka.records.batches import make_batch

LITTLE = make_batch(0, [(b"k", b"v")] * 10)
MUCH = make_batch(0, [(b"k", b"v" * 1_000)] * 600)  # more than half of the requested bytes


@pytest.mark.parametrize(
    ("lingers_s", "data", "waits"), [(5.0, LITTLE, True), (5.0, MUCH, False), (0.0, LITTLE, False)]
)
async def test_partition_with_little_data_is_requested_again_later(
    lingers_s: float, data: bytes, waits: bool
) -> None:
    delivered: list[Any] = []

    async def deliver(item: Any) -> None:
        delivered.append(item)

    service = FetchService(ClusterClient(ClusterSpec("none", ("h:1",))), deliver, ByteBudget(1 << 24))
    service.add("key", "orders", 0, 0, lingers_s=lingers_s)
    part = service._partitions["key"]
    await service._answered(part, PartitionAnswer("orders", 0, 0, 1_000, 1_000, [], data))

    assert [type(item) for item in delivered] == [FetchedBatches]
    assert (part.retry_at_s > time.monotonic()) is waits
