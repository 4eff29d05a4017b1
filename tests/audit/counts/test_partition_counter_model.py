"""Readers of partitions and clients against a simple model: every record is counted once, in its window.

Owners are killed, come back as zombies, and have successors. Their reports are lost, repeated and reordered.
The collector dies, and finds its tables in any mixture of ages.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.audit.counts.counter import CountingSpec
from app.audit.counts.partition_counter import PartitionReader, PartState, new_part
from app.audit.folds.collector import Collector, Event
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.tier import PlanBounds
from app.audit.folds.window import WindowKey
from app.kafka.fetch.decoder import records_of
from switchyard.audit.model.fingerprint import NOTHING, FingerprintSource, of_offsets
from switchyard.audit.model.reports import Scope, client_report
from switchyard.audit.model.tally import window_of
from switchyard.audit.model.totals import Totals
from tests.audit.counts.logs import Log

SCOPE = Scope("topic", "regional", "east", 100)
BOUNDS = PlanBounds(lateness_ms=50, most_lateness_ms=400, silence_ms=200, give_up_ms=2_000)
PARTITIONS = 2
SOURCES = [FingerprintSource("cluster", "id", number) for number in range(PARTITIONS)]
HOW = [CountingSpec(records_of, source, disorder_ms=10) for source in SOURCES]

partitions = st.integers(0, PARTITIONS - 1)


class AuditAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.logs = [Log() for _ in SOURCES]
        self.owners: list[list[PartitionReader]] = [[self.new_reader(n, 0)] for n in range(PARTITIONS)]
        self.saved: list[tuple[PartState, ...]] = [()] * PARTITIONS
        self.topic: list[Event] = []
        self.collector = Collector()
        self.states: list[tuple[dict[Any, Any], dict[Any, Any]]] = [({}, {})]
        self.closed: dict[WindowKey, tuple[Totals, int]] = {}
        self.client: Counter[int] = Counter()
        self.sequence = 0

    @staticmethod
    def new_reader(partition: int, position: int) -> PartitionReader:
        return PartitionReader(
            SCOPE, SOURCES[partition], HOW[partition], position, idle_ms=300, part_offsets=8
        )

    @rule(
        partition=partitions,
        back=st.lists(st.integers(-8, 130), min_size=1, max_size=6),
        wait=st.integers(0, 90),
    )
    def append(self, partition: int, back: list[int], wait: int) -> None:
        """A batch of which some records are older than others, a few by more than a window."""
        self.now_ms += wait
        first, *others = back
        # Within a batch nothing is more than `disorder_ms` older than the first.
        times = [self.now_ms - first, *(self.now_ms - min(one, first + 9) for one in others)]
        self.logs[partition].append(times)

    @rule(partition=partitions, which=st.integers(0, 3), batches=st.integers(1, 6))
    def read(self, partition: int, which: int, batches: int) -> None:
        owners = self.owners[partition]
        owner = owners[which % len(owners)]
        data, upto = self.logs[partition].fetch(owner.next_offset, batches)
        at_end = upto == self.logs[partition].next_offset
        seen_at_ms = self.now_ms if at_end else None
        owner.fetched(
            data, max(upto, owner.next_offset), at_ms=self.now_ms, seen_at_ms=seen_at_ms, at_end=at_end
        )

    @rule(partition=partitions, which=st.integers(0, 3), fate=st.randoms(use_true_random=False))
    def report(self, partition: int, which: int, fate: random.Random) -> None:
        owners = self.owners[partition]
        owner = owners[which % len(owners)]
        reports = owner.reports(self.now_ms)
        fate.shuffle(reports)
        for report in reports:
            match fate.choice(["lost", "arrives", "arrives", "twice", "unknown"]):
                case "lost":
                    continue
                case "unknown":  # it arrives, and its sender does not hear of it
                    self.topic.append(report)
                case how:
                    self.topic += [report] * (2 if how == "twice" else 1)
                    owner.acknowledged(report)
        self.saved[partition] = owner.state()

    @rule(partition=partitions, dies=st.booleans(), has_counts=st.booleans())
    def take_over(self, partition: int, dies: bool, has_counts: bool) -> None:
        """Another owner, with the figures of what was counted, or from where their parts began."""
        if dies:
            self.owners[partition].clear()
        self.owners[partition] = self.owners[partition][-2:]
        owner, saved = self.new_reader(partition, 0), self.saved[partition]
        if saved:
            owner.resume(saved if has_counts else [new_part(saved[0].part, saved[0].since)], self.now_ms)
        self.owners[partition].append(owner)

    @rule(back=st.lists(st.integers(0, 130), max_size=5), times=st.integers(1, 3))
    def client_reports(self, back: list[int], times: int) -> None:
        """A client with a write-ahead log: it sends a report until it is acknowledged."""
        windows = Counter(window_of(self.now_ms - one, SCOPE.width_ms) for one in back)
        self.client += windows
        totals = {start: Totals(count) for start, count in windows.items()}
        report = client_report(
            SCOPE, "web@1", self.sequence, totals, at_ms=self.now_ms, watermark_ms=self.now_ms
        )
        self.sequence += 1
        self.topic += [report] * times

    @rule()
    def sweep(self) -> None:
        self.topic += self.collector.due(self.now_ms, BOUNDS)

    @precondition(lambda self: len(self.states) <= len(self.topic))
    @rule(events=st.integers(1, 20))
    def collect(self, events: int) -> None:
        for event in self.topic[len(self.states) - 1 :][:events]:
            written = self.collector.apply(event, len(self.states) - 1)
            assert all(verdict is not ReportOutcome.OVERLAPS for _, verdict in written.verdicts)
            self.states.append((dict(self.collector.windows), dict(self.collector.tiers)))

    @rule(back=st.integers(0, 20), ages=st.randoms(use_true_random=False))
    def collector_dies(self, back: int, ages: random.Random) -> None:
        committed = max(0, len(self.states) - 1 - back)
        found = Collector()
        for number, restore in enumerate((found.restore_window, found.restore_tier)):
            for key in sorted({key for state in self.states[committed:] for key in state[number]}):
                value = ages.choice(self.states[committed:])[number].get(key)
                if value is not None:
                    restore(key, value)
        for position in range(committed, len(self.states) - 1):
            found.apply(self.topic[position], position)
        assert (found.windows, found.tiers) == self.states[-1]
        self.collector = found

    @invariant()
    def closed_is_final(self) -> None:
        for key, record in self.collector.windows.items():
            if record.is_closed:
                content = record.totals, record.closed_ms
                assert self.closed.setdefault(key, content) == content
        assert self.closed.keys() <= self.collector.windows.keys()

    @rule()
    def settle(self) -> None:
        """All sources report: the counts equal the records."""
        for partition, log in enumerate(self.logs):
            self.take_over(partition, dies=False, has_counts=True)
            owner = self.owners[partition][-1]
            data, upto = log.fetch(owner.next_offset, 10_000)
            owner.fetched(data, max(upto, owner.next_offset), at_ms=self.now_ms, at_end=True)
            for report in owner.reports(self.now_ms):
                self.topic.append(report)
                owner.acknowledged(report)
            self.saved[partition] = owner.state()
        if len(self.topic) >= len(self.states):
            self.collect(len(self.topic))
        expected = Counter(self.client)
        offsets = dict.fromkeys(expected, NOTHING)
        for source, log in zip(SOURCES, self.logs, strict=True):
            for offset, time in log.records():
                start = window_of(time, SCOPE.width_ms)
                expected[start] += 1
                offsets[start] = offsets.get(start, NOTHING).plus(of_offsets(source, np.array([offset])))
        totals_of: dict[int, Totals] = {}
        for key, record in self.collector.windows.items():
            both = record.totals.plus(record.late)
            totals_of[key.start_ms] = totals_of.get(key.start_ms, Totals()).plus(both)
        assert {start: totals.count for start, totals in totals_of.items() if totals.count} == expected
        assert {start: totals_of[start].offsets for start in expected} == offsets


TestAuditAgainstModel = AuditAgainstModel.TestCase
TestAuditAgainstModel.settings = settings(stateful_step_count=40)
