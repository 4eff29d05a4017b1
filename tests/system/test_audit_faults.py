"""Dozens of faults at once, at every tier, on real brokers: the audit reports each where it was made, and
nothing else.

Each (topic, window) is a scenario of its own; half of them have no fault. All windows are over when they are
written, and later messages close them. The worker is killed twice meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from app.audit.folds.tier_pairs import ORDER as TIERS
from app.dev.demo.stage import DemoStage, Process, wait_until
from app.dev.demo.traffic import create_topic
from switchyard.audit import KafkaOutput, SyncAudit
from switchyard.audit.kafka_clients import MESSAGE_ID
from tests.kafka.conftest import producing
from tests.system.fleet import assignments
from tests.system.test_audit import AWAY, ENOUGH_S, HOME, WIDTH_MS, audit_rows, plan

pytestmark = pytest.mark.system

SEED = 31
FAULTY, CLEAN, PARTITIONS, WINDOWS = 4, 4, 2, 8  # topics of which, partitions, windows a topic
IDLE_MS = 600_000
KINDS = ("lossy", "duplicated", "corrupted", "late")
LOGS = {"regional": HOME, "aggregate": AWAY}


class Message(NamedTuple):
    """A message as a tier gets it."""

    topic: str
    at_ms: int
    id: bytes

    @property
    def partition(self) -> int:
        return self.id[0] % PARTITIONS


class Discrepancy(NamedTuple):
    """A row of /audit/loss, reported or expected."""

    topic: str
    start_ms: int
    to_tier: str
    state: str
    missing: int | None
    extra: int | None


class Scenario:
    """A window of a topic: the messages of each tier, in time and late, and the expected rows.

    Args:
        kind: One of `KINDS`, or "" for no fault.
        tier: The first tier with the fault.
    """

    def __init__(self, chance: random.Random, topic: str, start_ms: int, kind: str, tier: int) -> None:
        messages = [
            Message(topic, start_ms + chance.randrange(WIDTH_MS), chance.randbytes(16))
            for _ in range(chance.randrange(10, 60))
        ]
        hit = chance.sample(messages, chance.randint(1, 5))
        without_hit = [one for one in messages if one not in hit]
        doubled = [*messages, *hit]
        altered = [*without_hit, *(one._replace(id=chance.randbytes(16)) for one in hit)]
        affected = {
            "lossy": without_hit,
            "duplicated": doubled,
            "corrupted": altered,
            "late": without_hit,
        }.get(kind, messages)
        self.in_time = {name: messages if at < tier else affected for at, name in enumerate(TIERS)}
        self.late = {name: hit if kind == "late" and at >= tier else [] for at, name in enumerate(TIERS)}
        counts = {
            "lossy": (len(hit), 0), "duplicated": (0, len(hit)), "corrupted": (None, None), "late": (0, 0),
        }  # fmt: skip
        self.expected: set[Discrepancy] = set()
        self.expected_before_late_records: set[Discrepancy] = set()  # before late records arrive
        if kind:
            self.expected = {Discrepancy(topic, start_ms, TIERS[tier], kind, *counts[kind])}
            lost = Discrepancy(topic, start_ms, TIERS[tier], "lossy", len(hit), 0)
            self.expected_before_late_records = {lost} if kind == "late" else self.expected


def scenarios(name: str, base_ms: int) -> list[list[Scenario]]:
    """By window: every kind of fault at every tier twice, in half of the topics."""
    chance = random.Random(SEED)
    faults = 2 * list(itertools.product(KINDS, range(1, len(TIERS))))
    assert len(faults) == FAULTY * WINDOWS
    chance.shuffle(faults)
    base_ms -= base_ms % WIDTH_MS
    starts = [base_ms + WIDTH_MS * number for number in range(WINDOWS)]
    return [
        [
            Scenario(chance, f"{name}-{number}", start_ms, *(faults.pop() if number < FAULTY else ("", 0)))
            for number in range(FAULTY + CLEAN)
        ]
        for start_ms in starts
    ]


class Tiers:
    """All five tiers: clients count two ends by the library, the worker counts the logs."""

    def __init__(self, stage: DemoStage, audits: dict[str, SyncAudit]) -> None:
        self._stage, self._audits = stage, audits
        self._offsets: Counter[tuple[str, int]] = Counter()
        self.sent: Counter[tuple[str, str]] = Counter()  # by topic and tier

    def deliver(self, messages: dict[str, list[Message]]) -> None:
        """Gives every tier its messages, in this order."""
        for tier, tier_messages in messages.items():
            self.sent.update((one.topic, tier) for one in tier_messages)
            if tier in LOGS:
                asyncio.run(self._write(self._stage.yard.bootstrap(LOGS[tier]), tier_messages))
            for one in tier_messages if tier == "consumer" else ():
                place = one.topic, one.partition
                self._audits[tier].handled(*place, self._offsets[place], one.at_ms, 5, one.id)
                self._offsets[place] += 1
            for one in tier_messages if tier.startswith("proxy") else ():
                self._audits[tier].sent(one.topic, one.at_ms, 5, one.id)

    async def _write(self, bootstrap: str, messages: Iterable[Message]) -> None:
        async with producing(bootstrap) as producer:
            waiting = [
                await producer.send(
                    one.topic, b"value", partition=one.partition, timestamp_ms=one.at_ms,
                    headers=[(MESSAGE_ID, one.id)],
                )
                for one in messages
            ]  # fmt: skip
            await asyncio.gather(*waiting)

    def deliver_to_all_tiers(self, topics: Iterable[str], at_ms: int) -> None:
        """Gives each partition a message of that time, at every tier."""
        one_each = [Message(topic, at_ms, bytes([n]) * 16) for topic in topics for n in range(PARTITIONS)]
        self.deliver({tier: list(one_each) for tier in TIERS})


def wall_clock_ms() -> int:
    """The time for records' timestamps."""
    return time.time_ns() // 1_000_000


def merge_messages(messages: Iterable[dict[str, list[Message]]]) -> dict[str, list[Message]]:
    """The messages of several scenarios, in their order."""
    cases = list(messages)
    return {tier: [one for of_tier in cases for one in of_tier[tier]] for tier in TIERS}


def discrepancies(worker: Process, **query: str) -> set[Discrepancy]:
    """All rows of /audit/loss."""
    rows = audit_rows(worker, "loss", **query)
    pairs = dict(itertools.pairwise(TIERS))
    assert all(pairs[row["from_tier"]] == row["to_tier"] and row["by"] == "ids" for row in rows), rows
    return {
        Discrepancy(*(row[name] for name in ("topic", "start_ms", "to_tier", "state", "missing", "extra")))
        for row in rows
    }


def counts_by_topic_and_tier(worker: Process) -> Counter[tuple[str, str]]:
    """Records by topic and tier."""
    found: Counter[tuple[str, str]] = Counter()
    for row in audit_rows(worker, "windows"):
        found[row["topic"], row["tier"]] += row["count"]
    return found


class AuditWatch:
    """Waits for the expected rows; a row for a window without a fault fails at any time."""

    def __init__(self, worker: Process, right: set[Discrepancy]) -> None:
        self.worker = worker
        self._right = {one[:3] for one in right}

    def wait_reported(self, wanted: set[Discrepancy]) -> None:
        wait_until(lambda: self._discrepancies() == wanted, ENOUGH_S, lambda: self._difference(wanted), 0.5)

    def wait_all_counted(self, tiers: Tiers) -> None:
        """Waits until all tiers have counted all records, and no more."""
        wait_until(
            lambda: (self._discrepancies(), counts_by_topic_and_tier(self.worker) == tiers.sent)[1], ENOUGH_S,
            lambda: f"{tiers.sent - counts_by_topic_and_tier(self.worker)}\n{self.worker.tail()}", 0.5,
        )  # fmt: skip

    def _discrepancies(self) -> set[Discrepancy]:
        found = discrepancies(self.worker)
        wrong = [one for one in found if one.state != "late" and one[:3] not in self._right]
        assert not wrong, wrong  # windows with lag are late, too: these windows are long over
        return found

    def _difference(self, wanted: set[Discrepancy]) -> str:
        found = discrepancies(self.worker)
        return f"not reported: {wanted - found}\nreported wrongly: {found - wanted}\n{self.worker.tail()}"


@pytest.mark.deep(minutes=1.2)
def test_the_audit_reports_every_fault_at_every_tier_and_nothing_else(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    topics = [f"{topic_name}-{number}" for number in range(FAULTY + CLEAN)]

    async def create() -> None:
        places = itertools.product(LOGS.values(), topics)
        await asyncio.gather(
            *(create_topic(stage.yard.bootstrap(cluster), topic, PARTITIONS) for cluster, topic in places)
        )

    asyncio.run(create())
    worker = stage.worker()
    # The plan counts all clusters: an aggregate's extra records could come from a regional one outside it.
    clusters = [one.cluster for one in stage.yard.clusters]
    deployed = plan(
        "all", f"{topic_name}-.*", clusters=clusters, tiers=[*TIERS], lateness="1s", id={"header": MESSAGE_ID}
    )
    stage.deploy(worker, deployed)
    jobs = len(topics) * len(LOGS) * PARTITIONS
    wait_until(lambda: len(assignments(worker)) == jobs, ENOUGH_S, lambda: str(assignments(worker)))
    with contextlib.ExitStack() as stack:
        audits = {
            tier: stack.enter_context(client_audit(stage, tier, tmp_path))
            for tier in TIERS
            if tier not in LOGS
        }
        tiers = Tiers(stage, audits)
        tiers.deliver_to_all_tiers(
            topics, wall_clock_ms() - 2 * WINDOWS * WIDTH_MS
        )  # every tier has reported: windows wait for all of them
        wait_until(lambda: counts_by_topic_and_tier(worker) == tiers.sent, ENOUGH_S, worker.tail, 0.5)
        windows = scenarios(topic_name, wall_clock_ms() - (WINDOWS + 2) * WIDTH_MS)
        before, after = (
            {one for window in windows for case in window for one in getattr(case, name)}
            for name in ("expected_before_late_records", "expected")
        )
        assert len(before) == len(after) == FAULTY * WINDOWS
        watch = AuditWatch(worker, before)
        for number, window in enumerate(windows):
            tiers.deliver(merge_messages(case.in_time for case in window))
            if number == WINDOWS // 2:
                watch.worker.kill()
        watch.worker = stage.worker()
        watch.wait_all_counted(tiers)
        tiers.deliver_to_all_tiers(topics, wall_clock_ms())  # closes all earlier windows
        watch.wait_reported(before)
        watch.worker.kill()
        tiers.deliver(merge_messages(case.late for window in windows for case in window))
        watch.worker = stage.worker()
        watch.wait_all_counted(tiers)
        watch.wait_reported(after)
        starts = sorted({one.start_ms for one in after})
        wrong = {one[:3] for one in after}
        places = set(itertools.product(topics, starts, TIERS[1:]))
        right = {
            one[:3]
            for one in discrepancies(watch.worker, state="ok")
            if starts[0] <= one.start_ms <= starts[-1]
        }
        assert len(starts) == WINDOWS
        assert right == places - wrong, "all other windows are compared and reported as ok"
        for one in audits.values():
            assert not one.stats.wrong
            assert not one.stats.uncounted


def client_audit(stage: DemoStage, tier: str, logs: Path) -> SyncAudit:
    """A client's audit. It never reports that it is idle, so only messages close windows."""
    output = KafkaOutput(stage.yard.bootstrap(HOME), stage.region)
    return SyncAudit(
        origin="billing", tier=tier, cluster=HOME, output=output, wal=logs / tier, window_ms=WIDTH_MS,
        idle_ms=IDLE_MS, report_interval_s=0.5,
    )  # fmt: skip
