"""A pipeline of five tiers, simulated: messages, faults on their way, audits that report, and the collector.

Clients, regional and aggregate logs (real batches) and consumers, two sources a tier. Reports are repeated
and reordered, the collector dies and begins with tables of any ages.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Self

import numpy as np

from app.audit.counts.counter import CountingSpec
from app.audit.counts.partition_counter import PartitionReader, new_part
from app.audit.folds.collector import Collector, Event
from app.audit.folds.comparison import TierSide, WindowVerdict, compare, side
from app.audit.folds.tier import PlanBounds, lateness
from app.audit.folds.window import WindowKey
from app.kafka.fetch.decoder import records_of
from app.kafka.records.record import Record
from switchyard.audit.model.client_counter import ClientAudit
from switchyard.audit.model.fingerprint import FingerprintSource, ids_of
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.model.tally import RecordArrays
from tests.audit.counts.logs import Log

TIERS = ("proxy-client", "proxy-server", "regional", "aggregate", "consumer")
LOGS = ("regional", "aggregate")
PAIRS = tuple(pairwise(TIERS))
WIDTH_MS, WINDOWS, TICK_MS = 60_000, 3, 15_000
IDLE_MS, END_MS = 40_000, 420_000
BOUNDS = PlanBounds(lateness_ms=20_000, most_lateness_ms=60_000, silence_ms=40_000, give_up_ms=3_600_000)
SOURCES = 2


class Kind(Enum):
    NONE = "none"
    LOSS = "loss"
    DUPLICATION = "duplication"
    CORRUPTION = "corruption"  # some are replaced by others
    LATE = "late"  # some come long after their window
    SLOW = "slow"  # some come late, but in time
    STALL = "stall"  # nothing comes for a while, then all
    SILENCE = "silence"  # one source of the tier's audit dies after a report
    DEATH = "death"  # all of its sources die, or never existed
    FAST_CLOCK = "ahead"  # the clock of the tier's audit is fast
    BEHIND = "behind"  # … is slow, by less than the silence that is borne
    BEFORE = "before"  # … by more than that
    FUTURE = "future"  # one message has a time far in the future
    OFFLINE = "offline"  # the first tier itself has some long after their window


OFF_MS = {Kind.FAST_CLOCK: 300_000, Kind.BEHIND: -20_000, Kind.BEFORE: -300_000}


@dataclass(frozen=True)
class Fault:
    kind: Kind
    tier: int = 1  # the tier that the faulty messages reach, or whose audit is faulty
    window: int = 0
    messages: int = 0
    at_ms: int = 0


Message = tuple[int, bytes]  # event time, id


@dataclass
class Pipeline:
    """One scenario; everything follows from the seed."""

    seed: int
    faults: tuple[Fault, ...]
    now_ms: int = 0
    topic: list[Event] = field(default_factory=list)
    recorded_ms: list[int] = field(default_factory=list)  # when they came into it
    wrong: list[tuple[int, str, int, WindowVerdict]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.collector, self.applied = Collector(), 0
        self.states: list[tuple[dict[object, object], dict[object, object]]] = [({}, {})]
        self.arrivals = self._arrivals()
        self.seen: list[dict[int, Counter[bytes]]] = [defaultdict(Counter) for _ in TIERS]
        self.logs = {name: [Log() for _ in range(SOURCES)] for name in LOGS}
        self.clients = {
            name: [ClientAudit(self.scope(name), f"{name}{n}@1", IDLE_MS) for n in range(SOURCES)]
            for name in TIERS
            if name not in LOGS
        }
        self.readers = {name: [self._reader(name, n, 0) for n in range(SOURCES)] for name in LOGS}
        self.held: list[Report] = []

    @staticmethod
    def scope(tier: str) -> Scope:
        return Scope("orders", tier, "east", WIDTH_MS)

    def _reader(self, tier: str, number: int, position: int) -> PartitionReader:
        how = CountingSpec(records_of, FingerprintSource(tier, "orders", number), _id_of)
        return PartitionReader(
            self.scope(tier), how.source or FingerprintSource("", "", 0), how, position, IDLE_MS
        )

    def _arrivals(self) -> list[list[tuple[int, Message]]]:
        """By tier, the messages with their times of arrival."""
        here: list[tuple[int, Message]] = []
        for _ in range(self.random.randrange(40, 120)):
            event_ms = self.random.randrange(WINDOWS * WIDTH_MS)
            here.append((event_ms, (event_ms, self.random.randbytes(16))))
        if any(fault.kind is Kind.FUTURE for fault in self.faults):
            here.append((WIDTH_MS // 2, (END_MS * 2, self.random.randbytes(16))))
        for fault in self.faults:
            if fault.kind is Kind.OFFLINE:
                here = self._faulty(here, fault)
        found = [here]
        for tier in range(1, len(TIERS)):
            # Messages arrive at the next tier in nearly the same order as at this one.
            here = [(at_ms + self.random.randrange(1, 2_000), message) for at_ms, message in here]
            for fault in self.faults:
                if tier == fault.tier and fault.kind is not Kind.OFFLINE:
                    here = self._faulty(here, fault)
            found.append(here)
        return found

    def _faulty(self, here: list[tuple[int, Message]], fault: Fault) -> list[tuple[int, Message]]:
        if fault.kind is Kind.STALL:
            until_ms = fault.at_ms + 30_000
            return [(until_ms if fault.at_ms <= at_ms < until_ms else at_ms, one) for at_ms, one in here]
        of_window = [entry for entry in here if entry[1][0] // WIDTH_MS == fault.window]
        hit = self.random.sample(of_window, min(fault.messages, len(of_window)))
        end_ms = (fault.window + 1) * WIDTH_MS
        match fault.kind:
            case Kind.LOSS:
                return [entry for entry in here if entry not in hit]
            case Kind.DUPLICATION:
                return here + [(at_ms + self.random.randrange(5_000), one) for at_ms, one in hit]
            case Kind.CORRUPTION:
                others = [(at_ms, (one[0], self.random.randbytes(16))) for at_ms, one in hit]
                return [entry for entry in here if entry not in hit] + others
            case Kind.LATE | Kind.OFFLINE:
                late = [(end_ms + 130_000, one) for _, one in hit]
                return [entry for entry in here if entry not in hit] + late
            case Kind.SLOW:
                slow = [(max(at_ms, end_ms + 4_000), one) for at_ms, one in hit]
                return [entry for entry in here if entry not in hit] + slow
            case _:
                return here

    def run(self) -> Self:
        """To the end; `wrong` are the accusations on the way that nothing was done to deserve."""
        while self.now_ms < END_MS:
            self.now_ms += TICK_MS
            for number, tier in enumerate(TIERS):
                self._tick(number, tier)
            self._collect()
        return self

    def _tick(self, number: int, tier: str) -> None:
        came = [
            one
            for at_ms, one in sorted(self.arrivals[number])
            if self.now_ms - TICK_MS <= at_ms < self.now_ms
        ]
        for event_ms, name in came:
            self.seen[number][event_ms // WIDTH_MS][name] += 1
        reports = list[Report]()
        for source in range(SOURCES):
            mine = [one for one in came if one[1][0] % SOURCES == source]
            is_dead = any(
                (fault.kind is Kind.DEATH or (fault.kind is Kind.SILENCE and source == 0))
                and number == fault.tier
                and self.now_ms > fault.at_ms
                for fault in self.faults
            )
            if tier in LOGS:
                reports += self._read(tier, source, mine, is_dead=is_dead)
            elif not is_dead:
                reports += self._counted(tier, source, mine)
        self.topic += self.held
        self.held = [one for one in reports if self.random.random() < 0.2]
        self.topic += [one for one in reports if one not in self.held or self.random.random() < 0.2]

    def _counted(self, tier: str, source: int, mine: list[Message]) -> list[Report]:
        client = self.clients[tier][source]
        if self.random.random() < 0.1:  # killed, and begun again from its write-ahead log
            client = self.clients[tier][source] = ClientAudit.restored(client.state(), IDLE_MS)
        times = np.array([event_ms for event_ms, _ in mine], dtype=np.int64)
        rows = RecordArrays(times, np.full(len(mine), 100), ids=ids_of([name for _, name in mine]))
        at_ms = self._clock_ms(tier)
        if mine:
            client.add(rows, at_ms)
        reports = client.reports(at_ms)
        if self.random.random() < 0.8:
            for report in reports:
                client.acknowledged(report)
        return reports

    def _clock_ms(self, tier: str) -> int:
        """By the clock of a tier's audit; none goes back behind the beginning."""
        off_ms = sum(OFF_MS.get(one.kind, 0) for one in self.faults if TIERS[one.tier] == tier)
        return max(0, self.now_ms + off_ms)

    def _read(self, tier: str, source: int, mine: list[Message], *, is_dead: bool) -> list[Report]:
        log = self.logs[tier][source]
        if mine:
            log.append([event_ms for event_ms, _ in mine], names=[name for _, name in mine])
        if is_dead:
            return []
        reader = self.readers[tier][source]
        if self.random.random() < 0.1:
            state = reader.state()
            reader = self.readers[tier][source] = self._reader(tier, source, 0)
            if self.random.random() < 0.5:
                state = (new_part(state[0].part, state[0].since),)
            reader.resume(state, self._clock_ms(tier))
        data, upto = log.fetch(reader.next_offset, 1_000)
        at_ms = self._clock_ms(tier)
        reader.fetched(data, upto, at_ms=at_ms, seen_at_ms=at_ms, at_end=True)
        reports = reader.reports(at_ms)
        if self.random.random() < 0.8:
            for report in reports:
                reader.acknowledged(report)
        return reports

    def _collect(self) -> None:
        self.topic += self.collector.due(self.now_ms, BOUNDS)
        self.recorded_ms += [self.now_ms] * (len(self.topic) - len(self.recorded_ms))
        while self.applied < len(self.topic):
            at = self.applied
            self.collector.apply(self.topic[at], at, self.recorded_ms[at])
            self.applied += 1
            self.states.append((dict(self.collector.windows), dict(self.collector.tiers)))  # type: ignore[arg-type]
        self.states = [*self.states[-20:]]
        if self.random.random() < 0.1:
            self._die()

    def _die(self) -> None:
        """The collector begins again with records of any ages, and replays."""
        found = Collector()
        for number, restore in enumerate((found.restore_window, found.restore_tier)):
            for key in sorted({key for state in self.states for key in state[number]}):  # type: ignore[type-var]
                value = self.random.choice(self.states)[number].get(key)
                if value is not None:
                    restore(key, value)  # type: ignore[arg-type]
        for position in range(self.applied - len(self.states) + 1, self.applied):
            found.apply(self.topic[position], position, self.recorded_ms[position])
        self.collector = found

    def side(self, tier: str, window: int) -> TierSide:
        """A tier's side of a window now."""
        scope = self.scope(tier)
        key = WindowKey(*scope, window * WIDTH_MS)
        known = self.collector.windows.items()
        records = [record for one, record in known if one._replace(shard=0) == key]
        clusters = [self.collector.shards(scope[:3])]
        return side(tier, key.end_ms, records, clusters, self.now_ms, BOUNDS.silence_ms)

    def verdict(self, pair: int, window: int) -> WindowVerdict:
        """The verdict on a window between two tiers now."""
        upstream, downstream = (self.side(tier, window) for tier in PAIRS[pair])
        records = self.collector.shards(self.scope(PAIRS[pair][1])[:3])
        patience_ms = lateness(records, BOUNDS) + BOUNDS.silence_ms
        return compare(upstream, downstream, (window + 1) * WIDTH_MS, self.now_ms, patience_ms)


def _id_of(record: Record) -> bytes | None:
    return dict(record.headers).get("id")
