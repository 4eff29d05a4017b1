"""A replica's session with a simulated destination, whose answers come when the test lets them: cases that a
broker cannot produce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.kafka.producers import history
from app.kafka.producers.ids import MAX_EPOCH, ProducerId
from app.kafka.records.batch import RecordBatch, iter_batches
from app.kafka.records.checksum import crc32c
from app.kafka.records.producer_sequences import ProducerStamp, ProducerTail
from app.kafka.records.verbatim_copy import VerbatimCopy, stamped
from app.kernel.fencing import LogId
from app.kernel.ranges import Snapshot
from app.replicate.destination import predecessor, succession
from app.replicate.destination import session as way
from app.replicate.destination.handover import STEP, ReplicaHandover
from app.replicate.destination.ledger import CopyLedger
from app.replicate.destination.session import DestinationSession, FormerCopies, SessionPorts
from app.worker.jobs.start_position import StartPosition
from tests.kafka.conftest import ENOUGH_S
from tests.kafka.records.test_verbatim_copy import as_logged

FORMER, NEW = ProducerId(7, 0), ProducerId(9, 0)
LOG = LogId("c", "A" * 22)


def a_copy(start: int, *values: bytes) -> VerbatimCopy:
    """A copy of records with the same timestamp."""
    rows: Any = [(delta, 1_000, None, value, []) for delta, value in enumerate(values)]
    return VerbatimCopy(as_logged(start, rows), len(values), start, start + len(values))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - others bring it about
            await asyncio.sleep(0)


class Destination:
    """A partition's log, with a route's runtime to it.

    `gate`: a walk waits for it before it reads. `remembers`: its leader knows the last batch of each
    producer."""

    name = "west"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, remembers: bool) -> None:
        self.remembers = remembers
        self.log: list[bytes] = []
        self.start = self.end = self.walks = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.saved: ReplicaHandover | None = None
        self.reports: list[tuple[str, str]] = []
        self.tasks: list[asyncio.Future[None]] = []
        for module in (succession, history):
            monkeypatch.setattr(module, "walk", self.walk)
            monkeypatch.setattr(module, "last_of", self.last_of)

        async def new_producer(_: Any) -> ProducerId:
            return NEW

        monkeypatch.setattr(way, "new_producer", new_producer)

    def append(self, copy: VerbatimCopy, producer: ProducerId, sequence: int = 0) -> int:
        data = bytearray(stamped(copy.data, *producer, sequence, crc32c))
        data[:8] = self.end.to_bytes(8)
        self.log.append(bytes(data))
        self.end += copy.record_count
        return self.end - copy.record_count

    def lose(self, end: int) -> None:
        """Truncates the log, as an unclean election does."""
        self.log = [data for data in self.log if int.from_bytes(data[:8]) < end]
        self.end = end

    async def walk(
        self, _: Any, topic: str, partition: int, start: int, take: Callable[[RecordBatch], bool]
    ) -> int:
        self.walks += 1
        await self.gate.wait()
        if not self.start <= start <= self.end:
            return -1
        for data in self.log:
            for batch in iter_batches(data):
                if batch.header.next_offset > start and take(batch):
                    return batch.header.next_offset
        return self.end

    async def last_of(
        self, _: Any, topic: str, partition: int, producer_id: int
    ) -> tuple[int, ProducerStamp | None]:
        if not self.remembers:
            return -1, None
        headers = [batch.header for data in self.log for batch in iter_batches(data)]
        stamps = [
            ProducerStamp(producer_id, header.producer_epoch, header.base_sequence).behind(
                header.record_count
            )
            for header in headers
            if header.producer_id == producer_id
        ]
        return self.end, stamps[-1] if stamps else None

    # -- a cluster's client, an appender, a route's runtime ----------------------------------------

    async def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, LOG.topic_id)

    async def cluster_id(self) -> str:
        return LOG.cluster_id

    async def offsets(self, at: list[tuple[str, int]], _: int) -> dict[tuple[str, int], int]:
        return dict.fromkeys(at, self.end)

    async def lane(self, topic: str, partition: int, producer: ProducerId, *_: Any) -> Any:
        return SimpleNamespace(producer=producer, floor=self.end)

    async def max_batch_bytes(self, _: str) -> int:
        return 1 << 20

    def session_to(self, note: ReplicaHandover) -> DestinationSession:
        runtime: Any = SimpleNamespace(
            target=self,
            appender=self,
            source=SimpleNamespace(name="east"),
            max_batch_bytes=self.max_batch_bytes,
        )
        ledger = CopyLedger(note.base, lambda *_: None, lambda *_: None, lambda _: None)
        start = StartPosition(Snapshot(note.base), 0, LogId(), known=True)
        ports = SessionPorts(
            start_task=lambda work: self.tasks.append(asyncio.ensure_future(work())),
            report_incident=lambda kind, message, *_: self.reports.append((kind, message)),
            on_unsure=lambda why: self.reports.append(("unsure", why)),
            on_lost=lambda: None,
            on_closed=lambda *_: None,
        )
        former = FormerCopies(note.to_bytes(), is_same_log=True)
        return DestinationSession(runtime, ("t", 0), ledger, start, former, ports)

    async def open(self, way: DestinationSession) -> None:
        def saved() -> int:
            self.saved = ReplicaHandover.from_bytes(way.note)
            return way._ledger.version

        await way.open(saved)


@pytest.fixture(params=[True, False], ids=["remembers", "forgets"])
async def there(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Destination:
    return Destination(monkeypatch, remembers=request.param)


def a_note(base: int = 0, epoch: int = 0) -> ReplicaHandover:
    return ReplicaHandover(LOG, base, FORMER.id, epoch, base, lineage=0, source="east", target="west/t")


async def test_a_replicas_own_first_batch_is_not_taken_for_its_former_owners(there: Destination) -> None:
    """The fault: a search for the former owner's copies had waited until the lane was open. It found this
    replica's copies under the same id, so an equal record was left out."""
    found = there.session_to(a_note())
    await found.meet()
    first, second = a_copy(0, b"a", b"tick"), a_copy(2, b"tick", b"b")
    assert found.not_yet_copied([first], first) == [first]
    there.gate.clear()
    opening = asyncio.ensure_future(there.open(found))
    await until(lambda: there.walks == 2)
    looking = asyncio.ensure_future(found.ends_at(0))
    await asyncio.sleep(0)  # it waits for the other's look
    there.gate.set()
    await opening
    assert found.lane is not None
    assert found.lane.producer == (FORMER.id, STEP)
    there.append(first, found.lane.producer)
    await looking
    assert there.walks == 2, "no further look follows the last one"
    assert found.not_yet_copied([second], second) == [second]
    assert there.reports == []


async def test_records_under_the_successors_epoch_are_not_taken_for_its_former_owners(
    there: Destination,
) -> None:
    tail = ProducerTail(-1)
    cluster: Any = there
    at = cluster, "t", 0, FORMER.id, 0, tail
    there.append(a_copy(0, b"a"), FORMER)
    there.append(a_copy(1, b"b"), FORMER._replace(epoch=STEP))
    assert len((await predecessor.predecessor_of(*at, STEP)).prints) == 1
    assert (await predecessor.predecessor_of(*at, STEP)).epoch == 0
    assert len((await predecessor.predecessor_of(*at, STEP + 1)).prints) == 2


async def test_a_session_whose_lane_is_opened_meanwhile_is_not_at_rest(there: Destination) -> None:
    found = there.session_to(a_note())
    await found.meet()
    there.gate.clear()
    looking = asyncio.ensure_future(found.ends_at(0))
    await until(lambda: there.walks == 2)
    opening = asyncio.ensure_future(there.open(found))
    await until(lambda: found.lane is not None)
    there.gate.set()
    assert not await looking
    await opening
    assert found.is_ready


async def test_copies_that_the_destination_loses_between_two_looks_are_copied_again_and_reported(
    there: Destination,
) -> None:
    """The copies had been found before the loss, so their records would be left out as copied."""
    copies = [a_copy(n, b"%d" % n) for n in range(100, 104)]
    there.end = 100
    for n, copy in enumerate(copies):
        there.append(copy, FORMER, n)
    found = there.session_to(a_note(100))
    await found.meet()
    assert found.not_yet_copied([copies[0]], copies[0]) == []
    fresh = a_copy(104, b"fresh")
    there.lose(100)
    await there.open(found)
    assert [kind for kind, _ in there.reports] == ["destination-truncated"]
    assert "has lost offsets [100, 104)" in there.reports[0][1]
    assert [found.not_yet_copied([copy], copy) for copy in copies[1:]] == [[copy] for copy in copies[1:]]
    assert found.not_yet_copied([fresh], fresh) == [fresh]
    note = ReplicaHandover.from_bytes(found.note)
    assert (note.floor, note.passed, note.losses, note.stamp) == (100, 0, 1, None)


@pytest.mark.parametrize("by", ["an idle barrier", "the last look"])
async def test_if_some_copies_are_lost_all_are_copied_again_and_that_is_reported(
    there: Destination, by: str
) -> None:
    copies = [a_copy(n, b"%d" % n) for n in range(4)]
    for n, copy in enumerate(copies):
        there.append(copy, FORMER, n)
    found = there.session_to(a_note())
    await found.meet()
    there.lose(2)
    if by == "an idle barrier":
        assert not await found.ends_at(there.end)
    await there.open(found)
    truncated, unsure = sorted(there.reports)
    assert truncated[0] == "destination-truncated"
    assert "has lost offsets [2, 4)" in truncated[1]
    assert unsure == ("unsure", succession.NOT_COMPARED)
    assert [found.not_yet_copied([copy], copy) for copy in copies] == [[copy] for copy in copies]
    assert there.saved is not None
    assert there.saved.floor == 2, "known before the first batch, so this replica's copies lie behind"


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_loss_of_the_destinations_end_is_counted_and_reported_once(
    there: Destination, is_open: bool
) -> None:
    there.end = 100
    found = there.session_to(a_note(100))
    await found.meet()
    if is_open:
        await there.open(found)
        found.acknowledged(100, 110)
    there.lose(60)
    for _ in range(2):
        await found.ends_at(60)
    if is_open:
        found.acknowledged(60, 70)
    await asyncio.gather(*there.tasks)
    assert found.losses == 1
    assert [kind for kind, _ in there.reports] == ["destination-truncated"]
    assert "[60, 100)" in there.reports[0][1]


async def test_a_destination_that_loses_its_end_before_the_first_copy_has_lost_it(there: Destination) -> None:
    """The fault: the genesis stood above the copies, so a group that continued there skipped them. Batches in
    doubt were looked up behind the end."""
    there.end = 100
    found = there.session_to(a_note(100))
    await found.meet()
    await there.open(found)
    there.lose(60)
    found.acknowledged(60, 70)
    found.acknowledged(70, 80)
    await asyncio.gather(*there.tasks)
    assert found.losses == 1
    assert [kind for kind, _ in there.reports] == ["destination-truncated"]
    assert "[60, 100)" in there.reports[0][1]


async def test_after_a_loss_of_the_destinations_end_a_lane_looks_from_the_new_end_on(
    there: Destination,
) -> None:
    there.end = 100
    found = there.session_to(a_note(100))
    await found.meet()
    await there.open(found)
    assert found.lane is not None
    assert found.lane.floor == 100
    there.lose(60)
    await found.ends_at(60)
    assert found.lane.floor == 60


async def test_a_former_owner_whose_id_has_no_epoch_left_is_not_fenced_and_that_is_reported(
    there: Destination,
) -> None:
    there.append(a_copy(0, b"a"), FORMER)
    found = there.session_to(a_note(epoch=MAX_EPOCH - 1))
    await found.meet()
    await there.open(found)
    assert found.lane is not None
    assert found.lane.producer == NEW
    assert there.reports == [("unsure", succession.NOT_SHUT_OUT)]
    there.append(a_copy(1, b"late"), ProducerId(FORMER.id, MAX_EPOCH - 1))
    await found.check_late(there.append(a_copy(1, b"late"), NEW))
    assert there.reports[1:] == [
        ("unsure", "a former owner wrote 1 records after this owner had read its last ones")
    ]
    assert ReplicaHandover.from_bytes(found.note).passed == 0
    assert found.not_yet_copied([copy := a_copy(0, b"a")], copy) == []
    assert ReplicaHandover.from_bytes(found.note).passed == 0, "the note is of the new id"
