"""A topic, its copy and a consumer group for tests of offset sync."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from app.kafka.client.commits import OffsetCommitter
from app.offsets.sync.group_owners import IsActive
from app.offsets.sync.group_syncer import GroupOutcome, GroupSyncer
from app.offsets.sync.mapper import OffsetMapper
from tests.offsets.clusters import HERE, THERE, Regions, a_line

COUNT = 100
EVERY = [(n, n + 10) for n in range(0, COUNT + 1, 10)]  # ten markers lie before the first copy


@dataclass
class GroupCase:
    """`topic` of two partitions in `here`, and its copy in `there`, ten offsets further on."""

    regions: Regions
    topic: str
    group: str
    busy: dict[str, str]

    async def map(self, *barriers: tuple[int, int]) -> None:
        """Writes the offset map."""
        source, target = [await self.regions.log_id(c, self.topic) for c in (HERE, THERE)]
        lines = {
            f"r/{self.topic}/{p}".encode(): a_line(source, target, self.topic, p, *barriers) for p in (0, 1)
        }
        await self.regions.send(HERE, self.regions.topic(self.regions.own), lines)

    async def committer(self, cluster: str) -> OffsetCommitter:
        found: OffsetCommitter = (await self.regions.clusters.get(cluster)).committer
        return found

    async def at(self, *offsets: int, group: str = "", cluster: str = HERE) -> None:
        """Commits the group's positions, by partition."""
        committed = {(self.topic, p): offset for p, offset in enumerate(offsets)}
        assert await (await self.committer(cluster)).commit(group or self.group, committed) == {}

    async def there(self, group: str = "") -> dict[int, int]:
        found = await (await self.committer(THERE)).positions(group or self.group)
        return {partition: at.next_offset for (_, partition), at in sorted(found.items())}

    def syncer(self, is_active: IsActive = lambda *_: True, clock: Any = lambda: 0.0) -> GroupSyncer:
        mapper = OffsetMapper(self.regions.tables, self.regions.clusters, dict, list)
        return GroupSyncer(mapper, self.regions.clusters, self.is_busy, is_active, clock)

    def is_busy(self, group: str, _: str, topic: str | None) -> str:
        """The value of `busy` for a group or, with a topic, for the workload."""
        return self.busy.get(group if topic is None else f"{group}/{topic}", "")

    async def sync(self, *, execute: bool = True) -> GroupOutcome:
        syncer = self.syncer()
        await syncer.mapper.read(30.0)
        return await syncer.sync(self.group, HERE, THERE, syncer.views(HERE, THERE), execute=execute)


async def until(condition: Any) -> None:
    """Waits for a condition that has no event."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
