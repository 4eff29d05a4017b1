"""Sources copied into two aggregates, `a` and `d`, by copiers that get killed.

A history is a list of acts of three small numbers; impossible acts are skipped. The copiers record offset
syncs by the rules of `app.offsets.model.offset_map`. `lost` returns the records that a reader of `a` would
never see when it continues in `d`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, BarrierItem, LineSource, OffsetMapLine, after

Act = tuple[int, int, int]  # what, who, how much
Record = tuple[str, int, int]  # source partition, its topic's generation, offset
ACTS = 11


@dataclass
class Log:
    """A partition of an aggregate."""

    records: list[Record | None] = field(default_factory=list)  # None: no producer's record, as a marker


@dataclass
class SourceLog:
    """A source partition; offsets divisible by `hidden` have no kept record."""

    name: str
    number: int
    hidden: int
    end: int = 0
    generation: int = 0

    def kept(self, offset: int) -> bool:
        return self.hidden == 0 or offset % self.hidden != 0


@dataclass
class Copier:
    """Copies a source partition into an aggregate, and records offset syncs. `base`: acknowledged;
    `saved`: the base that survives a kill; `sent`: the next offset to send; `reached`: the highest that
    any incarnation may have sent."""

    source: SourceLog
    logs: list[Log]
    to: Callable[[int, int], int]  # source partition's number, offset -> partition
    base: int = 0
    saved: int = 0
    sent: int = 0
    reached: int = 0
    quiet_until: int = 0
    generation: int = 0
    epoch: int = 0
    waiting: list[tuple[int, list[int]]] = field(default_factory=list)  # source end, ends of all partitions
    lines: dict[int, OffsetMapLine] = field(default_factory=dict)
    whole: dict[int, list[Barrier]] = field(default_factory=lambda: defaultdict(list))  # nothing left out
    fed: list[int] = field(default_factory=list)  # the partitions that it writes to

    def __post_init__(self) -> None:
        self.fed = sorted({self.to(self.source.number, offset) for offset in range(len(self.logs))})
        self.record(0, self.ends())

    def ends(self) -> list[int]:
        return [len(log.records) for log in self.logs]

    def record(self, source_end: int, ends: list[int]) -> None:
        for partition in self.fed:
            barrier = Barrier(source_end, ends[partition])
            self.whole[partition].append(barrier)
            topic_id = f"{self.source.name}-{self.generation}"
            item = BarrierItem(
                "route", self.source.name, self.source.number, self.epoch, self.generation,
                LogId("c", topic_id), LogId("d", "t"), "t", partition, [barrier],
            )  # fmt: skip
            line = after(self.lines.get(partition), item)
            if line is not None:
                self.lines[partition] = line

    def copy(self, count: int) -> None:
        end = min(self.source.end, self.sent + count)
        if self.generation != self.source.generation or end == self.sent:
            return
        for offset in range(self.sent, end):
            if self.source.kept(offset):
                log = self.logs[self.to(self.source.number, offset)]
                log.records.append((self.source.name, self.generation, offset))
        self.sent, self.reached = end, max(self.reached, end)
        self.waiting.append((end, self.ends()))

    def acknowledge(self, count: int) -> None:
        acknowledged, self.waiting = self.waiting[:count], self.waiting[count:]
        for source_end, ends in acknowledged:
            self.base = source_end
            if source_end >= self.quiet_until:
                self.record(source_end, ends)

    def save(self) -> None:
        self.saved = self.base

    def kill(self) -> None:
        self.waiting.clear()
        self.base = self.sent = self.saved
        self.quiet_until = self.reached
        self.epoch += 1

    def idle(self) -> None:
        at_its_end = self.base == self.sent == self.source.end and self.generation == self.source.generation
        if at_its_end and not self.waiting:
            self.record(self.base, self.ends())

    def notice(self) -> None:
        """Notices that its source was recreated."""
        if self.generation != self.source.generation:
            self.generation = self.source.generation
            self.waiting.clear()
            self.whole.clear()
            self.base = self.saved = self.sent = self.reached = self.quiet_until = 0
            self.record(0, self.ends())


class World:
    """The sources and aggregates. `reader`: the reader's next offsets in `a`."""

    def __init__(
        self, partitions: tuple[int, int, int] = (3, 2, 3), *, spread: bool = False, regions: int = 2
    ) -> None:
        """`partitions`: of each source topic, of `a` and of `d`. `spread`: a source partition's records go
        to all partitions, not to one."""
        sources, in_a, in_d = partitions
        self.sources = [
            SourceLog(f"{region}-{number}", number, hidden)
            for region, hidden in (("east", 0), ("west", 3))[:regions]
            for number in range(sources)
        ]
        self.a = [Log() for _ in range(in_a)]
        self.d = [Log() for _ in range(in_d)]
        self.reader = [0] * in_a
        self.copiers = [
            Copier(source, logs, _spread(len(logs)) if spread else _apart(len(logs)))
            for logs in (self.a, self.d)
            for source in self.sources
        ]

    def play(self, acts: list[Act]) -> Iterator[None]:
        """Plays the acts in order."""
        for what, who, count in acts:
            copier = self.copiers[who % len(self.copiers)]
            match what:
                case 0 | 1:
                    self.sources[who % len(self.sources)].end += count
                case 2 | 3:
                    copier.copy(count)
                case 4:
                    copier.acknowledge(count)
                case 5:
                    copier.save()
                case 6:
                    copier.kill()
                case 7:
                    copier.idle()
                case 8 | 9:
                    at = who % len(self.a)
                    self.reader[at] = min(self.reader[at] + count, len(self.a[at].records))
                case _:
                    self._rarely(who, count)
            yield

    def _rarely(self, who: int, count: int) -> None:
        source = self.sources[who % len(self.sources)]
        if count == 1:
            source.generation, source.end = source.generation + 1, 0
        elif count == 2:
            (self.a + self.d)[who % len(self.a + self.d)].records.append(None)
        else:
            self.copiers[who % len(self.copiers)].notice()

    def settle(self) -> None:
        """Copies and acknowledges everything, and records that all sources are idle."""
        for copier in self.copiers:
            copier.notice()
            copier.copy(copier.source.end)
            copier.acknowledge(len(copier.waiting))
        for copier in self.copiers:
            copier.idle()

    def into(self, logs: list[Log]) -> list[LineSource]:
        """All lines into an aggregate."""
        return [
            LineSource(copier.source.name, line)
            for copier in self.copiers
            if copier.logs is logs
            for line in copier.lines.values()
        ]

    def lost(self, resumed: dict[int, int]) -> set[Record]:
        """Records of `a` that the reader has not read, and that `d` has only below the resumed position."""
        read: set[Record | None] = set()
        in_a: set[Record | None] = set()
        for log, next_offset in zip(self.a, self.reader, strict=True):
            read.update(log.records[:next_offset])
            in_a.update(log.records)
        current = {(source.name, source.generation) for source in self.sources}
        lost: set[Record] = set()
        for partition, log in enumerate(self.d):
            start = resumed[partition]
            for record in set(log.records[:start]) - set(log.records[start:]) - read:
                if record is not None and (record in in_a or record[:2] in current):
                    lost.add(record)
        return lost


def random_history(seed: int, acts: int = 120) -> list[Act]:
    """A random history."""
    chance = random.Random(seed)
    return [(chance.randrange(ACTS - 1), chance.randrange(60), chance.randint(1, 6)) for _ in range(acts)]


def _apart(partitions: int) -> Callable[[int, int], int]:
    return lambda number, _offset: number % partitions


def _spread(partitions: int) -> Callable[[int, int], int]:
    return lambda number, offset: (number + offset) % partitions
