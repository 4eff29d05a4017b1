"""Copies that were encoded again are compared with the records that were read; compaction makes no
difference.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.append.encoder import copies
from app.kafka.append.lane import LANE_BYTES
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import NOT_AUTHORISED
from app.kafka.producers import history
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME, VerbatimCopy
from app.kernel.job import JobId, Kind
from app.replicate.destination import verification
from app.replicate.destination.comparison import ExpectedCopy, compare, compare_records
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.destination.ledger import SentBatch
from app.replicate.destination.verification import CopyVerifier, VerificationBudget
from app.replicate.pump.route_runtime import CopyBudgets
from app.replicate.pump.status import copying_status, job_status
from tests.kafka.conftest import create
from tests.kafka.conftest import write as write_to
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, as_logged, rows_of, the_batch
from tests.replicate.rig import ReplicaRig
from tests.replicate.source_topics import assert_same, create_on_both_sides, start_copying, write

JOB = JobId(Kind.REPLICATE, "r", "t", 0)
ROWS: list[Any] = [(1_000 + n, b"k%d" % n, b"v", [("h", b"%d" % n)]) for n in range(6)]


def waiting_copy(copy: VerbatimCopy) -> ExpectedCopy:
    """A copy that waits to be compared, at offset 40 of the destination."""
    client: Any = None
    verifier = CopyVerifier(client, lambda *_: None, VerificationBudget(1e9))
    verifier.add(JOB, ("t", 0), 40, copy)
    return verifier._waiting["t", 0][0]


def joined_copy() -> VerbatimCopy:
    """Small batches that are copied as one batch."""
    data = b"".join(as_logged(at, rows_of(ROWS[at : at + 2])) for at in (0, 2, 4))
    (copy,) = copies(fetched(data, 0, 6), NO_LIMIT)
    return copy


def test_copies_that_were_encoded_again_or_sent_unchanged_are_equal() -> None:
    copied = waiting_copy(joined_copy())
    assert compare(copied, [the_batch(as_logged(40, rows_of(ROWS)))]) == ""
    stamped = the_batch(as_logged(40, rows_of(ROWS), flags=LOG_APPEND_TIME, max_timestamp_ms=5))
    assert compare(copied, [stamped]) == "", "the destination's own timestamps"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ((1_003, b"other", b"v", [("h", b"3")]), "record at 43 has other contents"),
        ((1_003, b"k3", None, [("h", b"3")]), "record at 43 has other contents"),
        ((1_003, b"k3", b"v", [("h", b"")]), "record at 43 has other contents"),
        ((9, b"k3", b"v", [("h", b"3")]), "record at 43 has timestamp 9, not 1003"),
    ],
)
def test_a_fault_in_encoding_again_is_found(changed: Any, message: str) -> None:
    """The fault: the encoded bytes were compared with themselves."""
    wrong = as_logged(40, rows_of([*ROWS[:3], changed, *ROWS[4:]]))
    copy = joined_copy()._replace(data=as_logged(0, rows_of([*ROWS[:3], changed, *ROWS[4:]])))
    assert message in compare(waiting_copy(copy), [the_batch(wrong)])


def test_in_a_compacted_destination_only_the_records_that_are_left_are_compared() -> None:
    copied = waiting_copy(joined_copy())
    assert copied.prints is not None
    left = the_batch(as_logged(40, rows_of([ROWS[1], ROWS[4]], [1, 2]), taken_behind=1))
    assert "it has 2 records instead of 6" in compare(copied, [left])
    assert compare_records(copied.prints, copied, [left]) == ""
    assert compare_records(copied.prints, copied, []) == "", "all records have gone"
    moved = the_batch(as_logged(40, rows_of([ROWS[1], ROWS[4]], [0, 3])))
    assert "record at 40 has other contents" in compare_records(copied.prints, copied, [moved])


def copy_with_prints(count: int) -> VerbatimCopy:
    """A copy of `count` records that are compared one by one."""
    return VerbatimCopy(
        as_logged(0, rows_of(ROWS)), count, 0, count, lambda: iter([(0, (1, b"k", b"v", ()))] * count)
    )


def test_the_waiting_copies_of_a_worker_are_bounded_by_their_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4,096 copies of a route could wait, with a print of every record: gigabytes."""
    monkeypatch.setattr(verification, "MAX_WAITING", 1_000)
    client: Any = None
    budget = VerificationBudget(1e12)
    first, second = (CopyVerifier(client, lambda *_: None, budget) for _ in range(2))
    for n in range(10):
        for verifier in (first, second):
            verifier.add(JOB, (f"t{n}", 0), 40, copy_with_prints(600))
    assert (first.waiting, second.waiting) == (1, 1)
    first.close()
    assert (first.waiting, budget.waiting) == (0, 601)
    first.add(JOB, ("t", 0), 40, copy_with_prints(600))
    assert first.waiting == 1


class Compared:
    """A verifier that the test drives, over a real destination with `ROWS` in it."""

    def __init__(self, rig: ReplicaRig, topic: str) -> None:
        self.incidents: list[str] = []
        self.verifier = CopyVerifier(
            rig.target, lambda kind, *_: self.incidents.append(kind), VerificationBudget(1e9)
        )
        self.target = topic, 0

    async def compare(self, copy: VerbatimCopy, topic_id: str) -> tuple[int, int]:
        """The total numbers of records that were compared and that differ."""
        self.verifier.add(JOB, self.target, 0, copy, topic_id)
        await self.verifier._compare_run(self.target)
        assert not self.verifier.waiting
        return self.verifier.compared[JOB], self.verifier.differing[JOB]


async def test_copies_in_a_recreated_or_deleted_topic_are_not_compared_with_another(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "VERIFY_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(verification, "VERIFY_RETRY_INTERVAL_S", 0.01)
    await create(rig.target, topic_name, 1)
    await write_to(rig.target.spec.bootstrap[0], topic_name, [b"others"] * 6)
    topic_id = (await rig.target.topic_ids([topic_name]))[topic_name]
    compared = Compared(rig, topic_name)
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    compared.verifier.everything = True
    assert await compared.compare(copy, "AAAAAAAAAAAAAAAAAAAAAA") == (0, 0)
    assert (compared.verifier.uncompared[JOB], compared.incidents) == (6, [])
    assert await compared.compare(copy, topic_id) == (0, 6)
    assert compared.incidents == ["copy-differs"]
    compared.verifier.add(JOB, (f"{topic_name}-gone", 0), 0, copy, topic_id)
    running = asyncio.create_task(compared.verifier.run())
    try:
        await rig.until(lambda: not compared.verifier.waiting)
    finally:
        running.cancel()
    assert compared.incidents == ["copy-differs"]


async def test_if_compaction_is_unknown_different_bytes_are_no_evidence_and_count_as_uncompared(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> dict[str, str]:
        return {topic_name: "TopicAuthorizationFailed"}

    monkeypatch.setattr(verification, "describe", refused)
    await create(rig.target, topic_name, 1)
    await write_to(rig.target.spec.bootstrap[0], topic_name, [b"others"] * 6)
    compared = Compared(rig, topic_name)
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    assert await compared.compare(copy, "") == (0, 0), "a copy that is not compared does not count as equal"
    assert await compared.compare(copy, "") == (0, 6), "later copies are compared by records"


class Refusing:
    """A client without permission to read, while it `refuses`."""

    def __init__(self, client: ClusterClient, connection: str) -> None:
        self.refuses = True
        self.requests = 0
        self._send = client.send
        self._connection = connection

    async def send(self, node: int, request: Any, group: Any = 0) -> Any:
        found = await self._send(node, request, group)
        if group != self._connection or not self.refuses or not isinstance(request, FetchRequest):
            return found
        self.requests += 1
        ((topic, ((partition, _, *rest),)),) = found.topics
        return SimpleNamespace(topics=[(topic, [(partition, NOT_AUTHORISED, *rest[:-1], b"")])])


async def test_copies_that_may_not_be_read_back_are_given_up_with_one_report_of_the_missing_permission(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the verifier tried them for ever without a report."""
    for name, seconds in (
        ("VERIFY_POLL_INTERVAL_S", 0.01),
        ("VERIFY_RETRY_INTERVAL_S", 0.01),
        ("UNREAD_S", 0.1),
    ):
        monkeypatch.setattr(verification, name, seconds)
    refusing = Refusing(rig.target, verification.CONNECTION)
    monkeypatch.setattr(rig.target, "send", refusing.send)
    pump = await start_copying(rig, topic_name)
    verifier = pump.runtime.verifier
    await rig.until(lambda: rig.incidents)
    ((kind, message),) = rig.incidents
    assert kind == "verify-trouble"
    assert f"copies in {topic_name} of east-aggregate could not be read back" in message
    assert "TopicAuthorizationFailed" in message
    assert "Read" in rig.remedies[0]
    await rig.until(lambda: not verifier.waiting)
    monkeypatch.setattr(verification, "VERIFY_RETRY_INTERVAL_S", 1e9)  # the next that fails stays failed
    trouble = verifier._troubles[pump.target]
    await write(rig, topic_name, 300, max_batch_size=300)
    await rig.copied([pump])
    assert verifier.waiting <= 1, "one copy is tried, and no others wait"
    await rig.until(lambda: trouble.retry_at_s > 1e8)
    assert (verifier.compared.total(), rig.kinds()) == (0, ["verify-trouble"])

    refusing.refuses = False
    trouble.retry_at_s = 0.0
    await write(rig, topic_name, 100)
    await rig.copied([pump])
    await rig.until(lambda: verifier.compared.total() > 0 and not verifier.waiting)
    assert not verifier._troubles
    assert verifier.differing.total() == 0


async def test_a_route_that_compares_all_counts_uncompared_copies_of_former_owners_too(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: copies were dropped uncounted when their worker ended or they could not be read back."""

    def noted() -> int:
        return ReplicaHandover.from_bytes(rig.saved[0][1]).uncompared

    for name, seconds in (("VERIFY_POLL_INTERVAL_S", 0.01), ("VERIFY_RETRY_INTERVAL_S", 0.01)):
        monkeypatch.setattr(verification, name, seconds)
    refusing = Refusing(rig.target, verification.CONNECTION)
    monkeypatch.setattr(rig.target, "send", refusing.send)
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100)
    killed = await rig.start_pump(topic_name, verify="all")
    await rig.copied([killed])
    await rig.until(lambda: noted() == 100 and killed.runtime.verifier._troubles)
    assert not killed.is_busy, "nothing waits for copies that cannot be read"
    assert copying_status(killed).uncompared == 0, "it may still be compared"
    rig.kill(killed)

    refusing.refuses = False
    pump = await rig.start_pump(topic_name, verify="all")
    verifier = pump.runtime.verifier
    await write(rig, topic_name, 50)
    await rig.copied([pump])
    await rig.until(lambda: verifier.compared[pump.job] == 50)
    await rig.until(lambda: noted() == 100)
    assert copying_status(pump).uncompared == 100

    refusing.refuses = True
    monkeypatch.setattr(verification, "UNREAD_S", 0.1)
    await write(rig, topic_name, 50)
    await rig.until(lambda: copying_status(pump).uncompared == 150)
    (copy,) = copies(fetched(as_logged(0, rows_of(ROWS)), 0, 6), NO_LIMIT)
    pump._acknowledged(SentBatch(6, copy), -1, False)
    assert copying_status(pump).uncompared == 156, "its offset is not known"
    await rig.until(lambda: noted() == 156)
    assert verifier.differing.total() == 0


async def test_a_replica_that_compares_all_ends_once_all_is_compared(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "VERIFY_POLL_INTERVAL_S", 0.01)
    may, send = asyncio.Event(), rig.target.send

    async def held(node: int, request: Any, group: Any = 0) -> Any:
        if group == verification.CONNECTION:
            await may.wait()
        return await send(node, request, group)

    monkeypatch.setattr(rig.target, "send", held)
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100)
    pump = await rig.start_pump(topic_name, verify="all")
    await rig.copied([pump])
    assert pump.is_busy
    draining = asyncio.create_task(pump.drain(600))
    await rig.until(lambda: ReplicaHandover.from_bytes(rig.saved[0][1]).uncompared == 100)
    assert not draining.done()
    may.set()
    assert await draining
    assert pump.runtime.verifier.compared[pump.job] == 100
    await rig.until(lambda: ReplicaHandover.from_bytes(rig.saved[0][1]).uncompared == 0)


async def test_a_successor_that_may_not_read_the_copies_reports_the_missing_permission_until_it_may(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = await start_copying(rig, topic_name)
    await rig.until(lambda: pump.snapshot_version == pump.version)
    rig.saves = False
    await write(rig, topic_name, 50)
    await rig.copied([pump])
    rig.kill(pump)
    rig.saves = True
    refusing = Refusing(rig.target, history.CONNECTION)
    monkeypatch.setattr(rig.target, "send", refusing.send)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: refusing.requests > 2)
    ((kind, message),) = rig.incidents
    assert kind == "append-trouble"
    assert f"{topic_name}/0" in message
    assert "TopicAuthorizationFailed" in message
    assert "Read" in rig.remedies[0]
    assert "grant" in job_status(pump).trouble
    refusing.refuses = False
    await write(rig, topic_name, 50)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 200
    assert job_status(pump).trouble == ""


@pytest.mark.parametrize(("verify", "everything"), [("sampled", False), ("all", True)])
async def test_a_route_compares_a_sample_or_everything(
    rig: ReplicaRig, topic_name: str, verify: str, everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MAX_BEHIND", 3)
    rig.budgets = CopyBudgets(VerificationBudget(verification.RUN_BYTES))  # one run a second
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 400, name="v" * 10_000, max_batch_size=200_000)  # 8 MB, nothing to join
    pump = await rig.start_pump(topic_name, verify=verify)
    most = 0

    def is_done() -> bool:
        nonlocal most
        most = max(most, pump.runtime.verifier.waiting)
        return pump.base == 400 and not pump.runtime.verifier.waiting

    await rig.until(is_done)
    assert await assert_same(rig, topic_name) == 400
    assert (pump.runtime.verifier.compared[pump.job] == 400) == everything
    assert most <= 3 + LANE_BYTES // 100_000, "the waiting copies are bounded, except for batches in flight"
