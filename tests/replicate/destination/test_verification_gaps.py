"""Uncompared copies are counted once and noted exactly; comparing continues after every error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.kafka.append.appender import Appender
from app.kafka.append.encoder import copies
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.producers.history import OFFSET_OUT_OF_RANGE
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.kernel.ranges import Snapshot
from app.replicate.destination import verification
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.destination.session import FormerCopies
from app.replicate.destination.verification import CopyVerifier, VerificationBudget
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.route_runtime import CopyBudgets, RouteDestination, RouteRuntime
from app.replicate.pump.status import copying_status
from app.worker.jobs.start_position import StartPosition
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, as_logged, rows_of
from tests.replicate.rig import ROUTE, definition

JOB, TARGET = JobId(Kind.REPLICATE, ROUTE, "t", 0), ("t", 0)
ROWS: list[Any] = [(1_000 + n, b"k%d" % n, b"v", []) for n in range(6)]
ENOUGH_S = 60.0
TURNS = 200


class Answering(ClusterClient):
    """A destination without a leader, or with one that always gives the same answer."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(ClusterSpec("west", ("127.0.0.1:1",)))
        self.code, self.requests = code, 0

    async def leader(self, topic: str, partition: int) -> int | None:
        self.requests += 1
        return None if self.code is None else 1

    async def send(self, node: int, request: Any, group: Any = 0) -> Any:
        if self.code is None:
            raise ClusterUnreachable("nobody is there")
        return SimpleNamespace(topics=[("t", [(0, self.code)])])

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str | None]:  # type: ignore[override]
        return dict.fromkeys(topics, "")

    async def offsets(self, wanted: Any, at: Any) -> Any:  # type: ignore[override]
        return {TARGET: 0}


def a_copy() -> VerbatimCopy:
    """A copy of six records."""
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    return copy


def nothing(*_: object) -> None:
    """Ignores incidents."""


@asynccontextmanager
async def a_runtime() -> AsyncIterator[RouteRuntime]:
    """The runtime of a route that compares all, to an unreachable destination."""
    source, target = Answering(), Answering()
    lease = Lease(1e9)
    lease.renewed(time.monotonic())
    runtime = RouteRuntime(
        definition("east", "west", "t", verify="all"),
        source,
        RouteDestination(target, Appender(target, may_send=lambda: True)),
        lease,
        nothing,
        CopyBudgets(VerificationBudget(1e9)),
    )
    try:
        yield runtime
    finally:
        for pump in list(runtime.pumps):
            pump.close()
        await runtime.close()


def started_pump(runtime: RouteRuntime, note: bytes) -> ReplicaPump:
    """A replica that continues from the note."""
    start = StartPosition(Snapshot(0), 0, LogId(), known=True)
    return ReplicaPump(JOB, 1, runtime, start, FormerCopies(note, is_same_log=True), nothing, nothing)


def save_note(pump: ReplicaPump) -> int:
    """Saves the pump's state if it is new; returns the uncompared copies in the table's note."""
    version = pump.version
    assert version != pump.snapshot_version, "the state has to be saved"
    assert pump.snapshot() == Snapshot(0)
    pump.snapshot_version = version
    return ReplicaHandover.from_bytes(pump.note).uncompared


async def test_the_last_comparison_is_in_the_note_of_a_clean_handover() -> None:
    """The last snapshot was taken at the last copy, when more copies waited."""
    async with a_runtime() as runtime:
        pump = started_pump(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
        runtime.verifier.add(JOB, TARGET, 0, a_copy())
        assert save_note(pump) == 16
        runtime.verifier._pop(TARGET)  # as once it is compared
        assert save_note(pump) == 10
        assert pump.version == pump.snapshot_version


async def test_waiting_copies_are_counted_once_when_their_replica_begins_again() -> None:
    async with a_runtime() as runtime:
        verifier = runtime.verifier
        former = started_pump(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
        verifier.add(JOB, TARGET, 0, a_copy())
        note = ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=save_note(former))
        former.close()
        pump = started_pump(runtime, note.to_bytes())
        assert (verifier.unverified(JOB), copying_status(pump).uncompared) == (16, 10)
        verifier._pop(TARGET)
        assert verifier.unverified(JOB) == 10


@pytest.mark.parametrize("is_saved_late", [False, True])
async def test_copies_after_the_note_do_not_count_as_a_part_of_it(is_saved_late: bool) -> None:
    """The fault: the count was too low, so a check that all is compared passed."""
    async with a_runtime() as runtime:
        verifier, after = runtime.verifier, 6

        def copied(pump: ReplicaPump, base_offset: int) -> None:
            pump.ledger.delivered += after
            verifier.add(JOB, TARGET, base_offset, a_copy())

        former = started_pump(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
        copied(former, 0)
        version = former.version
        former.snapshot()
        note = ReplicaHandover.from_bytes(former.note)
        assert note.uncompared == 16
        if is_saved_late:
            copied(former, 6)
        former.snapshot_version = version
        if not is_saved_late:
            copied(former, 6)
        former.close()
        former.snapshot_version = version + 1  # and batches in flight
        started_pump(runtime, note.to_bytes())
        assert (verifier.uncompared[JOB], verifier.unverified(JOB)) == (10, 16 + after)


def busy_verifier(client: ClusterClient, report: verification.ReportIncident) -> CopyVerifier:
    """A verifier that compares all, with many waiting copies."""
    verifier = CopyVerifier(client, report, VerificationBudget(1e9))
    verifier.everything = True
    for n in range(3):
        verifier.add(JOB, TARGET, 6 * n, a_copy())
    return verifier


async def test_a_verifier_far_behind_that_cannot_read_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (
        ("MAX_BEHIND", 4),
        ("VERIFY_RETRY_INTERVAL_S", 0.0),
        ("VERIFY_POLL_INTERVAL_S", 3_600.0),
    ):
        monkeypatch.setattr(verification, name, value)
    client = Answering()
    verifier = busy_verifier(client, nothing)
    running = asyncio.create_task(verifier.run())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert (client.requests, verifier.waiting) == (1, 3)
    finally:
        running.cancel()


@pytest.mark.parametrize("code", [None, OFFSET_OUT_OF_RANGE])
async def test_comparing_continues_after_every_error(
    code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the verifier's task ended, and copying stopped once 2,000 copies waited."""
    for name, value in (
        ("UNREAD_S", -1.0),
        ("VERIFY_RETRY_INTERVAL_S", 0.0),
        ("VERIFY_POLL_INTERVAL_S", 0.0),
    ):
        monkeypatch.setattr(verification, name, value)
    reported: list[str] = []

    def report(kind: str, *_: object) -> None:
        reported.append(kind)
        raise ValueError("nobody takes it")

    verifier = busy_verifier(Answering(code), report)
    running = asyncio.create_task(verifier.run())
    try:
        async with asyncio.timeout(ENOUGH_S):
            while verifier.waiting and not running.done():  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0)
            assert not running.done()
            for _ in range(TURNS):
                await asyncio.sleep(0)
    finally:
        running.cancel()
    assert reported
    assert verifier.uncompared[JOB] + verifier.differing[JOB] == 18
