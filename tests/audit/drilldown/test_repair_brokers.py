"""Copying again against real brokers: after any failure each record is there once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from app.audit.counts.counter import CountingSpec
from app.audit.definition import AuditPlan
from app.audit.drilldown import partition_repair, repair
from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin
from app.audit.drilldown.findings import Finding, FindingKind, LossExclusions, ObservedRecord
from app.audit.drilldown.partition_repair import already_copied
from app.audit.drilldown.prints import EventTimeWindow, PrintReader
from app.audit.drilldown.repair import CopiedAgain, NotLeading, copy_again
from app.audit.drilldown.scan import ScanRange
from app.audit.drilldown.search import SearchResult
from app.audit.drilldown.sides import AuditedTopic, CopyRoute, Question, Sides
from app.kafka.append.transactions import batches_of, one_transaction, transactional
from app.kafka.client.cluster import LATEST, READ_COMMITTED, ClusterClient
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, iter_batches
from app.kafka.records.record import Record
from app.kernel.clock import now_ms
from tests.audit.api.plans import plan
from tests.kafka.conftest import bound, connected, create, producing

WINDOW = EventTimeWindow(1_000, 601_000)
MANY = 10
DAY_MS = 24 * 3_600_000


class Rig:
    """A topic, and its copy, which lacks all records. The first records also lack a timestamp or headers."""

    def __init__(self, client: ClusterClient, bootstrap: str, topic: str) -> None:
        self.client, self.bootstrap = client, bootstrap
        self.home = ClusterPartition("east-regional", topic, 0)
        self.away = ClusterPartition("east-regional", f"{topic}-copy", 0)
        self.leads: Callable[[], bool] = lambda: True
        self.window = WINDOW

    async def end(self, place: ClusterPartition) -> int:
        """The partition's log end, once its leader has finished commits and aborts."""
        return await partition_repair._settled_end(self.client, place)

    async def records(self, place: ClusterPartition) -> list[Record]:
        found: list[Record] = []
        async for piece in read_span(self.client, place.topic, 0, 0, await self.end(place)):
            shown = ReadCommittedFilter(piece.aborted)
            for batch in iter_batches(piece.data):
                if shown.shows(batch):
                    found += records_of(batch)
        return found

    async def answer(self) -> SearchResult:
        """A drill-down's answer: all records are missing."""
        parts = [
            ScanRange(
                self.client,
                PrintReader(place, CountingSpec(records_of), self.window),
                0,
                end,
                end,
                place == self.home,
            )
            for place in (self.home, self.away)
            for end in [await self.end(place)]
        ]
        seen = [
            ObservedRecord(
                self.home, record.offset, parts[0].reader.contents_of(record), 0, 0, record.timestamp
            )
            for record in await self.records(self.home)
        ]
        counted = AuditPlan.model_validate(plan())
        up, down = (
            AuditedTopic(place.cluster, place.topic, self.client, "id", place.topic, 1, counted)
            for place in (self.home, self.away)
        )
        copier = CopyRoute(self.home.cluster, self.away.cluster, self.home.topic, self.away.topic)
        sides = Sides(self.window, parts, [up], [down], [copier], LossExclusions(), [], {})
        question = Question(self.home.topic, "regional", "aggregate", 0)
        findings = [Finding(FindingKind.MISSING, one) for one in seen]
        return SearchResult(
            question, sides.window, findings, {"missing": len(seen)}, 1, len(seen), [], [], sides
        )

    async def copy(self, answer: SearchResult) -> CopiedAgain:
        rig = self

        class Leader:
            @property
            def leads(self) -> bool:
                return rig.leads()

        async def get(name: str) -> Any:
            return SimpleNamespace(client=self.client)

        runtime: Any = SimpleNamespace(leader=Leader(), clusters=SimpleNamespace(get=get))
        return await copy_again(runtime, answer, lambda _: None)

    def zombie(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """A predecessor that still copies."""
        return partition_repair._fencing_producer(self.client, self.away, 1_000_000)

    async def is_whole(self) -> bool:
        """Whether each record is there once, unchanged."""
        rows = [
            [(one.timestamp, one.key, one.value, tuple(one.headers)) for one in await self.records(place)]
            for place in (self.home, self.away)
        ]
        return Counter(rows[0]) == Counter(rows[1])


@pytest.fixture
async def rig(bootstrap: str, topic_name: str) -> AsyncIterator[Rig]:
    async with connected(bootstrap) as client:
        for name in (topic_name, f"{topic_name}-copy"):
            await create(client, name, retention_ms="-1")
        made = Rig(client, bootstrap, topic_name)
        async with producing(bootstrap) as producer:
            for number in range(MANY):
                await producer.send_and_wait(
                    topic_name, None if number == 3 else b"v%d" % number, key=b"k", partition=0,
                    timestamp_ms=1_000 + number,
                    headers=[("h", b"1"), ("h", None)] if number % 2 else [],
                )  # fmt: skip
        yield made


async def test_a_second_repair_with_an_old_answer_copies_nothing(rig: Rig) -> None:
    answer = await rig.answer()
    assert await rig.copy(answer) == CopiedAgain(MANY, 0, 0, 0, ())
    at = rig.away.topic, rig.away.partition
    assert (await rig.client.offsets([at], LATEST, READ_COMMITTED))[at] > MANY, "all can be read now"
    assert await rig.is_whole()
    assert await rig.copy(answer) == CopiedAgain(0, MANY, 0, 0, ())
    assert await rig.is_whole()


async def test_a_former_leader_stops_and_its_successor_copies_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "RECORDS_PER_TRANSACTION", 1)
    answer = await rig.answer()
    turns = iter([True, True, True])
    rig.leads = lambda: next(turns, False)
    with pytest.raises(NotLeading, match="3 of 10 records were copied"):
        await rig.copy(answer)
    rig.leads = lambda: True
    assert await rig.copy(answer) == CopiedAgain(MANY - 3, 3, 0, 0, ())
    assert await rig.is_whole()


async def test_records_that_a_predecessor_has_sent_are_not_committed(rig: Rig) -> None:
    """The predecessor has sent all records without a commit. It continues once its successor is done."""
    answer = await rig.answer()
    records = [(record, record.headers) for record in await rig.records(rig.home)]

    async def copy_within_open_transaction() -> None:
        async with rig.zombie() as producer, one_transaction(producer):
            for batch in batches_of(records, 0, 1_000_000):
                await (await producer.send_batch(batch, rig.away.topic, partition=0))
            assert (await rig.copy(answer)).copied == MANY

    with pytest.raises(KafkaError):
        await copy_within_open_transaction()
    assert await rig.is_whole()


async def test_a_worker_that_still_believes_to_lead_is_fenced_and_reports_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers do not take turns. Each finds no copy before the other has copied."""
    monkeypatch.setattr(repair, "RECORDS_PER_TRANSACTION", 1)
    monkeypatch.setattr(partition_repair, "_lock_of", lambda _: asyncio.Lock())
    answer, other = await rig.answer(), list[Any]()

    def overtaken() -> bool:
        if not other and len(checks) == 4:
            other.append(asyncio.ensure_future(rig.copy(answer)))
        checks.append(None)
        return True

    checks: list[None] = []
    rig.leads = overtaken
    monkeypatch.setattr(partition_repair, "_append", _after_the_other(partition_repair._append, other))
    with pytest.raises(NotLeading, match=r"another worker copies .* 4 of 10 records were copied"):
        await rig.copy(answer)
    assert await other[0] == CopiedAgain(MANY - 4, 4, 0, 0, ())
    assert await rig.is_whole()


def _after_the_other(append: Any, other: list[Any]) -> Any:
    """Makes the first repair append its next records only after the other one has finished."""
    overtaken: list[Any] = []

    async def appended(producer: Any, *rest: Any) -> Any:
        if other and not overtaken:
            overtaken.append(producer)
        if overtaken and producer is overtaken[0]:
            await asyncio.wait(other)
        return await append(producer, *rest)

    return appended


async def test_two_repairs_of_one_worker_take_turns(rig: Rig) -> None:
    answer = await rig.answer()
    both = await asyncio.gather(rig.copy(answer), rig.copy(answer))
    assert sorted(done.copied for done in both) == [0, MANY]
    assert await rig.is_whole()


async def test_nothing_is_copied_while_another_transaction_hides_the_log_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await rig.answer()
    other = transactional(rig.client, rig.away.topic, max_request_bytes=1_000_000)
    async with other as producer, one_transaction(producer):
        await producer.send_and_wait(rig.away.topic, b"other", partition=0)
        with monkeypatch.context() as patch:
            patch.setattr(partition_repair, "OPEN_TRANSACTION_TIMEOUT_S", 1.0)
            with pytest.raises(TimeoutError, match="open transaction"):
                await rig.copy(answer)
    assert [record.value for record in await rig.records(rig.away)] == [b"other"]
    assert (await rig.copy(answer)).copied == MANY


# -- what the destination refuses --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def refusing(
    bootstrap: str, topic: str, records: list[tuple[int, bytes]], **limits: str
) -> AsyncIterator[Rig]:
    """A topic with these (timestamp, value), and a copy with `limits` that lacks them all."""
    async with connected(bootstrap) as client:
        await create(client, topic, retention_ms="-1")
        await create(client, f"{topic}-copy", retention_ms="-1", **limits)
        made = Rig(client, bootstrap, topic)
        made.window = EventTimeWindow(0, 2 * now_ms())
        async with producing(bootstrap) as producer:
            for timestamp_ms, value in records:
                await producer.send(topic, value, key=b"k", partition=0, timestamp_ms=timestamp_ms)
        yield made


async def values(rig: Rig) -> list[bytes | None]:
    return [one.value for one in await rig.records(rig.away)]


def offsets_of(done: CopiedAgain) -> list[int]:
    return sorted(one.offset for one in done.refused_records)


async def test_refused_records_are_named_and_the_others_copied(bootstrap: str, topic_name: str) -> None:
    """Two records are too large for the topic's limit, one is too old."""
    now, tried = now_ms(), [b"%d" % number for number in range(MANY)]
    tried[3] = tried[7] = bytes(5_000)
    records = [(now - DAY_MS if number == 5 else now, value) for number, value in enumerate(tried)]
    limits = {"max_message_bytes": "3000", "message_timestamp_before_max_ms": "3600000"}
    async with refusing(bootstrap, topic_name, records, **limits) as rig:
        answer = await rig.answer()
        done = await rig.copy(answer)
        assert done[:4] == (MANY - 3, 0, 0, 3)
        assert offsets_of(done) == [3, 5, 7]
        large, old, _ = sorted(done.refused_records, key=lambda one: one.offset)
        assert large.place == rig.home
        assert large.why.startswith("error 10 (MESSAGE_SIZE_TOO_LARGE): ")
        assert large.why.endswith("; raise max.message.bytes of the destination topic")
        assert old.why.startswith("error 32 (INVALID_TIMESTAMP): The timestamp of the message is out of")
        assert "raise message.timestamp.before.max.ms" in old.why
        assert sorted(await values(rig)) == sorted(set(tried) - {tried[3], b"5"})  # type: ignore[type-var]
        assert done.to_json()["refused_records"][0].keys() == {
            "cluster",
            "topic",
            "partition",
            "offset",
            "why",
        }

        await bound(rig.client, None, rig.away.topic)
        done = await rig.copy(answer)
        assert done[:4] == (2, MANY - 3, 0, 1), "with the limit raised, what is still missing is copied once"


async def test_a_batch_refused_for_its_size_is_divided_until_all_records_are_copied(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered after the repair has read it."""
    append, lowered = partition_repair._append, list[None]()

    async with refusing(bootstrap, topic_name, [(now_ms(), bytes(500))] * MANY) as rig:

        async def lowering(*arguments: Any) -> Any:
            if not lowered:
                lowered.append(None)
                await bound(rig.client, 2_000, rig.away.topic)
            return await append(*arguments)

        monkeypatch.setattr(partition_repair, "_append", lowering)
        assert await rig.copy(await rig.answer()) == CopiedAgain(MANY, 0, 0, 0, ())
        assert await rig.is_whole()


async def test_a_window_that_is_too_old_for_its_topic_costs_few_tries(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older half is too old. Times ascend with offsets, the worst order for dividing."""
    append, tries = partition_repair._append, list[int]()

    async def counted(*arguments: Any) -> Any:
        tries.append(1)
        return await append(*arguments)

    monkeypatch.setattr(partition_repair, "_append", counted)
    now, half = now_ms(), 200
    records = [(now - DAY_MS + number, b"old%d" % number) for number in range(half)]
    records += [(now - half + number, b"new%d" % number) for number in range(half)]
    async with refusing(bootstrap, topic_name, records, message_timestamp_before_max_ms="3600000") as rig:
        done = await rig.copy(await rig.answer())
        assert done[:4] == (half, 0, 0, half)
        assert len(done.refused_records) == partition_repair.NAMED_REFUSED
        assert await values(rig) == [b"new%d" % number for number in range(half)], "in order"
    assert len(tries) <= 2 * half.bit_length()


async def test_after_a_refusal_a_repair_skips_records_that_another_copied_meanwhile(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records differ only in their times, so only these show which record a copy is of."""
    append, others = partition_repair._append, list[Any]()
    now = now_ms()
    records = [(now - DAY_MS if number == 2 else now + number, b"v") for number in range(MANY)]
    async with refusing(bootstrap, topic_name, records, message_timestamp_before_max_ms="3600000") as rig:
        rows = [(record, record.headers) for record in (await rig.records(rig.home))[5:]]

        async def overtaken(*arguments: Any) -> Any:
            try:
                return await append(*arguments)
            except partition_repair._BatchRefused:
                if not others:  # its transaction is aborted, and it has not begun again
                    others.append(None)
                    async with rig.zombie() as other:
                        await append(other, rig.away, batches_of(rows, 0, 1_000_000))
                raise

        monkeypatch.setattr(partition_repair, "_append", overtaken)
        done = await rig.copy(await rig.answer())
        assert (done[:4], offsets_of(done)) == ((4, 5, 0, 1), [2])
        expected = Counter(timestamp for timestamp, _ in records if timestamp >= now)
        assert Counter(record.timestamp for record in await rig.records(rig.away)) == expected


def test_a_copy_stands_for_the_record_at_its_origin() -> None:
    place = ClusterPartition("east", "orders", 0)
    missing = [
        ObservedRecord(place, offset, contents, 0, 0, 1) for offset, contents in ((4, 7), (5, 7), (6, 8))
    ]

    def copy(contents: int, origin: int | None) -> ObservedRecord:
        place_of_origin = None if origin is None else CopyOrigin(place, origin, origin)
        return ObservedRecord(
            ClusterPartition("west", "orders", 0), 99, contents, 0, 0, 1, origin=place_of_origin
        )

    assert already_copied(missing, [copy(7, 5)]) == {(place, 5)}
    assert already_copied(missing, [copy(7, None), copy(7, None), copy(7, None)]) == {(place, 4), (place, 5)}
    assert already_copied(missing, [copy(7, 3), copy(9, 6)]) == set(), "of others"


def test_records_without_a_timestamp_keep_none() -> None:
    """The encoder takes a batch's first timestamp from the next record."""
    times = (-1, -1, 5, -1, 7, 8)
    rows: Any = [(SimpleNamespace(timestamp=at, key=None, value=b"v"), ()) for at in times]
    built = [bytes(batch._build()) for batch in batches_of(rows, 0, 1_000_000)]
    found = [
        record.timestamp for data in built for batch in iter_batches(data) for record in records_of(batch)
    ]
    assert found == [-1, -1, 5, -1, 7, 8]
    assert len(batches_of(rows, 0, 70)) == len(times), "a batch has its limit"
