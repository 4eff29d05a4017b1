"""How many copies are not compared is counted once, and noted as it is; comparing goes on whatever comes."""

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
from app.replicate.destination.verification import CopyVerifier, VerificationBudget
from app.replicate.model.route_priority import RoutePriorities
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.route_runtime import RouteRuntime
from app.replicate.pump.unsnapshotted_budget import UnsnapshottedBudget
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, as_logged, rows_of
from tests.replicate.rig import ROUTE, definition

JOB, TARGET = JobId(Kind.REPLICATE, ROUTE, "t", 0), ("t", 0)
ROWS: list[Any] = [(1_000 + n, b"k%d" % n, b"v", []) for n in range(6)]
ENOUGH_S = 60.0
TURNS = 200


class Answering(ClusterClient):
    """A destination that has no leader, or one who says always the same."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(ClusterSpec("west", ("127.0.0.1:1",)))
        self.code, self.asked = code, 0

    async def leader(self, topic: str, partition: int) -> int | None:
        self.asked += 1
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
    """Of six records."""
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    return copy


def nothing(*_: object) -> None:
    """Takes what is told."""


@asynccontextmanager
async def a_runtime() -> AsyncIterator[RouteRuntime]:
    """Of a route that compares all, to a destination that is away."""
    source, target = Answering(), Answering()
    lease = Lease(1e9)
    lease.renewed(time.monotonic())
    runtime = RouteRuntime(
        definition("east", "west", "t", verify="all"),
        source,
        target,
        Appender(target, may_send=lambda: True),
        lease,
        nothing,
        VerificationBudget(1e9),
        RoutePriorities(),
        UnsnapshottedBudget(),
    )
    try:
        yield runtime
    finally:
        for pump in list(runtime.pumps):
            pump.close()
        await runtime.close()


def begun(runtime: RouteRuntime, note: bytes) -> ReplicaPump:
    """A replica that goes on from there."""
    return ReplicaPump(
        JOB, 1, runtime, next_offset=0, lineage=0, note=note, is_same_log=True, is_first=False,
        source_log=LogId(), report_incident=nothing, on_barrier=nothing,
    )  # fmt: skip


def saved(pump: ReplicaPump) -> int:
    """What the note says that the table has now, if there is anything new to be saved."""
    version = pump.version
    assert version != pump.snapshot_version, "it has to be saved"
    assert pump.snapshot() == Snapshot(0)
    pump.snapshot_version = version
    return ReplicaHandover.from_bytes(pump.note).uncompared


async def test_what_is_compared_last_is_in_the_note_of_a_clean_handover() -> None:
    """Its last snapshot said how many waited when something was copied last."""
    async with a_runtime() as runtime:
        pump = begun(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
        runtime.verifier.add(JOB, TARGET, 0, a_copy())
        assert saved(pump) == 16
        runtime.verifier._pop(TARGET)  # as once it is compared
        assert saved(pump) == 10
        assert pump.version == pump.snapshot_version


async def test_what_still_waits_is_counted_once_when_its_replica_begins_again() -> None:
    async with a_runtime() as runtime:
        verifier = runtime.verifier
        former = begun(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
        verifier.add(JOB, TARGET, 0, a_copy())
        note = ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=saved(former))
        former.close()
        pump = begun(runtime, note.to_bytes())
        assert (verifier.unverified(JOB), pump.copying().uncompared) == (16, 10)
        verifier._pop(TARGET)
        assert verifier.unverified(JOB) == 10


@pytest.mark.parametrize("is_saved_late", [False, True])
async def test_what_was_copied_after_the_note_is_not_taken_for_a_part_of_it(is_saved_late: bool) -> None:
    """It was counted too few by that, and a comparison of all passed."""
    async with a_runtime() as runtime:
        verifier, after = runtime.verifier, 6

        def copied(pump: ReplicaPump, base_offset: int) -> None:
            pump.ledger.delivered += after
            verifier.add(JOB, TARGET, base_offset, a_copy())

        former = begun(runtime, ReplicaHandover(LogId(), 0, 9, 0, 0, uncompared=10).to_bytes())
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
        former.snapshot_version = version + 1  # whatever was on its way
        begun(runtime, note.to_bytes())
        assert (verifier.uncompared[JOB], verifier.unverified(JOB)) == (10, 16 + after)


def comparing(client: ClusterClient, tell: verification.ReportIncident) -> CopyVerifier:
    """All, of which much waits."""
    verifier = CopyVerifier(client, tell, VerificationBudget(1e9))
    verifier.everything = True
    for n in range(3):
        verifier.add(JOB, TARGET, 6 * n, a_copy())
    return verifier


async def test_who_is_far_behind_and_cannot_read_does_not_look_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (
        ("MAX_BEHIND", 4),
        ("VERIFY_RETRY_INTERVAL_S", 0.0),
        ("VERIFY_POLL_INTERVAL_S", 3_600.0),
    ):
        monkeypatch.setattr(verification, name, value)
    client = Answering()
    verifier = comparing(client, nothing)
    running = asyncio.create_task(verifier.run())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert (client.asked, verifier.waiting) == (1, 3)
    finally:
        running.cancel()


@pytest.mark.parametrize("code", [None, OFFSET_OUT_OF_RANGE])
async def test_the_comparison_goes_on_whatever_happens_to_it(
    code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended, and copying stood still once 2,000 copies waited."""
    for name, value in (
        ("UNREAD_S", -1.0),
        ("VERIFY_RETRY_INTERVAL_S", 0.0),
        ("VERIFY_POLL_INTERVAL_S", 0.0),
    ):
        monkeypatch.setattr(verification, name, value)
    told: list[str] = []

    def tell(kind: str, *_: str) -> None:
        told.append(kind)
        raise ValueError("nobody takes it")

    verifier = comparing(Answering(code), tell)
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
    assert told
    assert verifier.uncompared[JOB] + verifier.differing[JOB] == 18
