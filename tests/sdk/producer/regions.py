"""Two regions and a recording of what the producer SDK did: helpers for its tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.dev.yard import Yard
from app.kafka.records.record import Record
from switchyard.producer import MESSAGE_ID, Delivered, Hooks, ProducerError, Region
from tests.kafka.conftest import connected, create, pumping

HOME, AWAY = "east-regional", "east-aggregate"
RETURNED = "home has been healthy again"  # the reason of a move home; all other moves follow failures
ENOUGH_S = 90.0  # ends a test that would hang
QUICK: dict[str, Any] = {"unhealthy_after_s": 4.0, "return_after_s": 1.0}


class RecordingHooks(Hooks):
    """Records deliveries, moves and failures. It raises at the first delivery of each region."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str, int]] = []
        self.reasons: list[str] = []  # one for each move
        self.at: Counter[str] = Counter()
        self.failures: list[ProducerError] = []

    def delivered(self, delivered: Delivered, waited_s: float) -> None:
        assert waited_s >= 0
        self.at[delivered.region] += 1
        if self.at[delivered.region] == 1:
            raise RuntimeError("an error in a hook harms no message")

    def failed(self, topic: str, error: ProducerError) -> None:
        self.failures.append(error)

    def moved(self, left: str, to: str, why: str, again: int) -> None:
        assert why
        self.reasons.append(why)
        self.moves.append((left, to, again))


def regions(yard: Yard, *names: str) -> list[Region]:
    return [Region(name, yard.bootstrap(name)) for name in names or (HOME, AWAY)]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - the supervisor changes it
            await asyncio.sleep(0.01)


async def topics(yard: Yard, topic: str, **config: str) -> None:
    for name in (HOME, AWAY):
        async with connected(yard.bootstrap(name)) as client:
            await create(client, topic, 2, **config)


async def records(yard: Yard, name: str, topic: str) -> dict[int, list[Record]]:
    """All records of the topic's two partitions in a region, by partition."""
    async with connected(yard.bootstrap(name)) as client, pumping(client) as pump:
        ends = await client.end_offsets([(topic, 0), (topic, 1)])
        for partition in (0, 1):
            pump.service.add(partition, topic, partition, 0)
        await pump.until(lambda: all(pump.position.get(p, 0) >= end for (_, p), end in ends.items()))
        return dict(pump.records)


def ids(found: dict[int, list[Record]]) -> Counter[bytes | None]:
    return Counter(dict(record.headers)[MESSAGE_ID] for many in found.values() for record in many)
