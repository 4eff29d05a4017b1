"""Successive owners of an audit, killed at any moment: each record counts once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.counts import handover as note
from app.audit.pump import partition as pumps
from tests.audit.jobs.test_start_position import begin
from tests.audit.pump.test_partition import WIDTH_MS, Rig
from tests.audit.query.test_view import audit_plan
from tests.examples import as_profile

PART = 16  # offsets, so that many parts are begun and ended


class Region(Rig):
    """A log that begins at `first`, and the tracker table's record of its owners."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(audit_plan(disorder="1h"))  # times in no order at all
        self.chance, self.first = chance, chance.choice([0, 0, 40, 100])
        self.log.next_offset = self.first
        self.saved: tuple[int, bytes] | None = None

    async def start(self) -> None:
        """Starts another owner from the saved state."""
        base, note = self.saved or (None, b"")
        found, _ = await begin(self.first, base, note, counting=self.plan.counting)
        self.begin(found.start.snapshot.base, found.counts)
        self.save()

    def save(self) -> None:
        self.saved = self.pump.base, self.pump.note

    def append(self) -> None:
        count = self.chance.choice([1, 5, 30])
        self.log.append([self.chance.randrange(4 * WIDTH_MS) for _ in range(count)])

    async def unheard(self) -> None:
        """The topic takes some reports, but the owner gets no acknowledgement."""
        for report in self.pump.reports(1, 1.0):
            if self.chance.random() < 0.7:
                self.apply(report)

    async def cut_off(self) -> None:
        """The topic takes only the first reports. The owner saves that and is killed."""
        made = self.pump.reports(1, 1.0)
        for report in made[: self.chance.randrange(len(made) + 1)]:
            self.apply(report)
            self.pump.acknowledged(report)
        self.save()
        await self.start()

    async def refused(self) -> None:
        self.takes = False
        await self.report(self.pump)
        self.takes = True

    async def drained(self) -> None:
        await self.pump.drain(1.0)
        self.save()
        await self.start()


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(150), deadline=None)
@pytest.mark.parametrize(
    ("most_bytes", "most_windows"),
    [
        (4 * 1024, 16),
        pytest.param(64, 16, marks=pytest.mark.deep(minutes=0.1)),
        pytest.param(4 * 1024, 1, marks=pytest.mark.deep(minutes=0.1)),
    ],
)
def test_each_record_counts_once_whichever_owner_is_killed_at_any_moment(
    seed: int, most_bytes: int, most_windows: int
) -> None:
    with (
        patch.object(pumps, "PART_OFFSETS", PART), patch.object(note, "MOST_BYTES", most_bytes),
        patch.object(pumps, "MOST_WINDOWS", (most_windows,)),
    ):  # fmt: skip
        asyncio.run(_story(random.Random(seed)))


async def _story(chance: random.Random) -> None:
    region = Region(chance)
    await region.start()
    for _ in range(40):
        if region.pump.is_lacking:
            await region.drained()
        match chance.randrange(10):
            case 0 | 1:
                region.append()
            case 2 | 3:
                region.feed(chance.choice([1, 4]))
            case 4:
                await region.report(region.pump)
            case 5:
                await region.unheard()
            case 6:
                await region.refused()
            case 7:
                region.save()
            case 8:
                await region.cut_off()
            case _:
                await (region.drained() if chance.random() < 0.2 else region.start())
    while region.pump.reader.next_offset < region.log.next_offset or region.pump.is_lacking:
        if region.pump.is_lacking:
            await region.drained()
        region.feed()
    await region.report(region.pump)
    expected = Counter(at_ms - at_ms % WIDTH_MS for _, at_ms in region.log.records())
    assert region.counts == dict(sorted(expected.items()))
    assert region.pump.base == region.log.next_offset
