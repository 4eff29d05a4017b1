"""Idle offset syncs of one route's partitions, simulated: no partition waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from app.kafka.client.cluster import ClusterUnreachable
from app.replicate.pump.route_runtime import RouteRuntime
from tests.kafka.conftest import ENOUGH_S

Target = tuple[str, int]


class Idle:
    """A replica at rest, whose destination `answers` in time, late, or never."""

    def __init__(self, partition: int, answers: asyncio.Event | None) -> None:
        self.target: Target = ("t", partition)
        self.ledger = SimpleNamespace(appended=7)
        self.ends: list[tuple[int, int]] = []
        self._answers = answers

    def wants_idle_barrier(self, _: float) -> bool:
        return True

    async def ended_at(self, target_end: int, appended: int) -> None:
        if self._answers is None:
            raise ClusterUnreachable("its replicas do not follow")
        await self._answers.wait()
        self.ends.append((target_end, appended))


async def test_a_partition_whose_replicas_do_not_follow_keeps_no_other_from_its_idle_barrier() -> None:
    """The fault: partitions behind it got no idle offset sync, and their copies held back groups of other
    regions."""
    now, later = asyncio.Event(), asyncio.Event()
    now.set()
    fails, slow, fine, unknown = Idle(0, None), Idle(1, later), Idle(2, now), Idle(3, now)

    async def offsets(wanted: Iterable[Target], _: int) -> dict[Target, int]:
        return {at: 100 + at[1] for at in wanted if at != unknown.target}

    runtime: Any = SimpleNamespace(
        pumps=[fails, slow, fine, unknown], target=SimpleNamespace(offsets=offsets),
        definition=SimpleNamespace(key="r"),
    )  # fmt: skip
    looking = asyncio.ensure_future(RouteRuntime._idle_barriers(runtime))
    async with asyncio.timeout(ENOUGH_S):
        while not fine.ends:  # noqa: ASYNC110 - others bring it about
            await asyncio.sleep(0)
        assert fine.ends == [(102, 7)]
        later.set()
        await looking
    assert (slow.ends, unknown.ends) == ([(101, 7)], [])
