"""Books: they are restored from tables of any age, and close windows only once they are up to date."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.audit.folds import collector
from app.audit.folds.collector import UNKNOWN_MS, CollectorTick, TableChanges
from app.audit.folds.seals import seal_of
from app.audit.folds.tier import CloseWindows, ForgetWindows, PlanBounds, SourceStatus
from app.audit.jobs.books import AuditBooks, OddityOf, PlannedCounts
from app.audit.jobs.replay_tail import Recorded
from app.audit.jobs.report_sender import audit_partition
from app.audit.jobs.seal_key import PURPOSE, SealKey
from app.controllog import codec
from app.controllog.topics import AUDIT_PARTITIONS
from app.kernel.seals import key_of
from switchyard.audit.model.reports import BadReport, Increment, Report, Scope, report_id
from switchyard.audit.model.totals import Totals
from tests.examples import as_profile

SCOPE = Scope("orders", "regional", "home", 60_000)

BOUNDS = PlanBounds(60_000, 60_000, silence_ms=1 << 50, keep_ms=1 << 50)


def report(upto: int, count: int, watermark_ms: int = -1) -> Report:
    return Report(
        report_id(SCOPE, "t/0", 0, 0, upto, final=False), *SCOPE, "t/0", 1 << 41,
        (Increment(0, Totals(count)),), part=0, upto=upto, watermark_ms=watermark_ms,
    )  # fmt: skip


class Topic:
    """The audit topic's end, and the events that are sent to it."""

    def __init__(self) -> None:
        self.end, self.sent, self.ticks = 0, list[Any](), 0
        self.refuses: dict[str, Exception] = {}  # by audited topic

    async def end_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {at: self.end if at[1] == 5 else 0 for at in wanted}

    async def send(self, event: Any, *, is_clients: bool = False) -> asyncio.Future[Any]:
        if event.topic in self.refuses:
            raise self.refuses[event.topic]
        self.sent.append(event)
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def tick(self, at_ms: int) -> None:
        self.ticks += 1


class Last:
    """The events of partition 5, of which `many` are read again."""

    def __init__(self, many: int) -> None:
        self.many, self.events = many, list[Recorded]()

    async def before(self, partition: int, offset: int) -> AsyncIterator[list[Recorded]]:
        assert partition == 5
        found = [event for event in self.events if event[0] < offset]
        yield found[max(0, len(found) - self.many) :]


class Rig:
    """Books, and the tables of partition 5 that they write."""

    def __init__(
        self,
        topic: Topic,
        again: int = 0,
        key: SealKey | None = None,
        oddity_of: OddityOf = lambda _: "",
    ) -> None:
        self.topic, self.incidents, self.last = topic, list[tuple[str, ...]](), Last(again)
        self.windows: dict[bytes, bytes] = {}
        self.tiers: dict[bytes, bytes] = {}
        fake: Any = topic
        margin: Any = self.last
        self.books = AuditBooks(
            "audit",
            fake,
            fake,
            margin,
            PlannedCounts(lambda *_: BOUNDS, oddity_of),
            lambda *incident: self.incidents.append(incident[:4]),
            lambda: True,
            key,
        )

    async def event(
        self, offset: int, value: bytes, recorded_ms: int = UNKNOWN_MS, seal: bytes = b""
    ) -> None:
        if not self.books.can_fold(5, offset):
            lacked = await self.books.restore(5, offset, self.windows.items(), self.tiers.items())
            self._write(lacked)
        self.last.events.append(Recorded(offset, value, recorded_ms, seal))
        self._write(self.books.fold(5, offset, value, recorded_ms, seal))
        self.topic.end = max(self.topic.end, offset + 1)

    def _write(self, written: TableChanges) -> None:
        encoded = self.books.encoded(5)
        self.windows |= {str(key).encode(): encoded(key) for key in written.windows}
        self.tiers |= {str(key).encode(): encoded(key) for key in written.tiers}
        for key in written.deleted:
            self.windows.pop(str(key).encode(), None)

    @property
    def count(self) -> int:
        (record,) = self.books.books[5].collector.windows.values()
        return record.totals.count


async def test_a_book_is_restored_when_another_worker_has_written_meanwhile() -> None:
    topic = Topic()
    mine, other = Rig(topic), Rig(topic)
    await mine.event(0, codec.encode(report(1, 1)))
    other.windows, other.tiers = mine.windows, mine.tiers
    await other.event(1, codec.encode(report(2, 2)))
    await other.event(2, codec.encode(report(3, 3)))
    assert mine.count == 1
    assert not mine.books.can_fold(5, 3)
    mine.windows, mine.tiers = other.windows, other.tiers
    await mine.event(3, codec.encode(report(4, 7)))
    assert mine.count == 7
    for offset, upto in ((1, 2), (2, 3)):  # repeated events change nothing
        await mine.event(offset, codec.encode(report(upto, upto)))
    assert mine.count == 7


@given(seed=st.integers(0, 1 << 32))
@example(seed=210)
@example(seed=1449)
@example(seed=1927)
@example(seed=2202)
@settings(max_examples=as_profile(60), deadline=None)
def test_values_that_never_arrived_are_rebuilt_from_the_last_events(seed: int) -> None:
    asyncio.run(_written_by_killed_ones(random.Random(seed)))


async def _written_by_killed_ones(chance: random.Random) -> None:
    """Writers that are killed: each leaves tables that lack some results of the last events."""
    whole, mine = Rig(topic := Topic()), Rig(topic, again=6)
    upto: Counter[str] = Counter()
    for offset in range(40):
        event = _any_event(chance, upto)
        for rig in (whole, mine):
            await rig.event(offset, codec.encode(event))
        if chance.random() < 0.3:
            mine = await _after_a_kill(mine, chance)
    await mine.event(40, codec.encode(CollectorTick(0)))
    assert (mine.windows, mine.tiers) == (whole.windows, whole.tiers)


def _any_event(chance: random.Random, upto: Counter[str]) -> Report | CloseWindows | ForgetWindows:
    if chance.random() < 0.2:
        kind = chance.choice([CloseWindows, CloseWindows, ForgetWindows])
        return kind(*SCOPE[:3], 60_000 * chance.randrange(1, 4), 1 << 41)
    source = chance.choice(["t/0", "t/1", "t/9"])
    upto[source] += 1
    windows = tuple(
        Increment(60_000 * start, Totals(upto[source])) for start in range(chance.randrange(1, 4))
    )
    return Report(
        report_id(SCOPE, source, 0, 0, upto[source], final=False), *SCOPE, source, 1 << 41, windows, part=0,
        upto=upto[source], shard=int(source[2:]) // 8,
    )  # fmt: skip


class Cluster:
    """A control cluster whose ids are known."""

    name = "home"

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "control-id")

    async def cluster_id(self) -> str:
        return "home-id"


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(60), deadline=None)
def test_clients_events_about_a_workers_tier_change_no_tables(seed: int) -> None:
    asyncio.run(_written_by_workers_and_others(random.Random(seed)))


async def _written_by_workers_and_others(chance: random.Random) -> None:
    """Clients send workers' events without a seal, or with a seal of other bytes."""
    cluster: Any = Cluster()
    key, secret = SealKey(cluster, "control"), key_of(PURPOSE, "home-id", "control-id")
    alone, beside = Rig(Topic(), key=key), Rig(Topic(), again=6, key=key)
    upto: Counter[str] = Counter()
    seals, refused, sent = {b"": b"", b"none": b"x" * 32}, 0, 0
    for offset in range(40):
        event, is_workers = _any_event(chance, upto), chance.random() < 0.5
        value = codec.encode(event)
        if is_workers:
            seals[value] = seal_of(secret, value)
            await alone.event(offset, value, seal=seals[value])
            await beside.event(offset, value, seal=seals[value])
            continue
        sent += 1
        try:
            of_others = [seal for sealed, seal in seals.items() if sealed != value]
            await beside.event(offset, value, seal=chance.choice(of_others))
        except BadReport:
            refused += 1
        if chance.random() < 0.2:
            beside.books.forget(5)  # and is read again, with the last events
    await beside.event(40, codec.encode(CollectorTick(0)))
    assert (beside.windows, beside.tiers) == (alone.windows, alone.tiers)
    assert refused == sent


async def test_a_client_counts_in_a_tier_of_its_own_without_a_seal() -> None:
    cluster: Any = Cluster()
    rig = Rig(Topic(), key=SealKey(cluster, "control"))
    one = msgspec.structs.replace(report(5, 5), tier="proxy-client", source="web@1")
    await rig.event(0, codec.encode(one))
    assert rig.count == 5
    with pytest.raises(BadReport, match="tier 'regional' of cluster 'home' is counted by workers"):
        await rig.event(1, codec.encode(report(5, 5)))
    group = msgspec.structs.replace(one, tier="consumer", cluster="home:billing")
    with pytest.raises(BadReport, match="is counted by workers"):
        await rig.event(2, codec.encode(group))


async def _after_a_kill(before: Rig, chance: random.Random) -> Rig:
    """Another worker, which finds some of the last values, or older ones."""
    after = Rig(before.topic, again=6)
    events = before.last.events
    old = Rig(Topic())
    for offset, value, *_ in events[: len(events) - 5]:
        await old.event(offset, value or b"")
    for mine, newest, oldest in (
        (after.windows, before.windows, old.windows), (after.tiers, before.tiers, old.tiers),
    ):  # fmt: skip
        for key in sorted(newest.keys() | oldest.keys()):
            found = chance.choice([newest, oldest]).get(key)
            if found is not None:
                mine[key] = found
    after.last.events = list(events)
    return after


async def test_an_unusable_event_is_passed_over_and_the_next_one_counts() -> None:
    rig = Rig(Topic())
    with pytest.raises(codec.BadEvent):
        await rig.event(0, b"no event")
    with pytest.raises(BadReport):
        await rig.event(1, codec.encode(report(1, -1)))
    await rig.event(2, codec.encode(report(1, 1)))
    assert rig.count == 1


async def test_a_report_with_smaller_counts_is_refused_and_reported_once() -> None:
    rig = Rig(Topic())
    await rig.event(0, codec.encode(report(5, 5)))
    await rig.event(1, codec.encode(report(6, 4)))
    await rig.event(2, codec.encode(report(7, 3)))
    assert (rig.count, [incident[0] for incident in rig.incidents]) == (5, ["audit-report-refused"])


async def test_only_a_book_at_the_topics_end_closes_windows() -> None:
    rig = Rig(topic := Topic())
    await rig.event(0, codec.encode(report(1, 1, watermark_ms=600_000)))
    await rig.books._sweep()
    assert topic.sent == [], "the end of the topic is not known yet"
    topic.end = 9
    await rig.books._sweep()  # the end it knows is from before the first event
    assert [type(event) for event in topic.sent] == [CloseWindows]
    await rig.books._sweep()
    assert len(topic.sent) == 1, "another worker has written events that it does not know"


@pytest.mark.parametrize("error", [MessageSizeTooLargeError("too large"), ZeroDivisionError()])
async def test_a_due_event_that_cannot_be_sent_holds_up_no_other_topic(error: Exception) -> None:
    rig = Rig(topic := Topic())
    for offset, name in enumerate(("a", "b", "c")):
        one = msgspec.structs.replace(report(1, 1, watermark_ms=600_000), topic=name)
        await rig.event(offset, codec.encode(one))
    topic.refuses = {"a": error, "b": error}
    topic.end = 3
    await rig.books._sweep()
    await rig.books._sweep()
    assert {event.topic for event in topic.sent} == {"c"}
    assert topic.ticks == 1


async def test_an_event_without_a_time_is_the_same_whenever_it_is_read() -> None:
    rig = Rig(topic := Topic())
    await rig.event(0, codec.encode(report(1, 1, watermark_ms=1 << 40)), recorded_ms=-1)
    other = Rig(topic, again=6)
    other.last.events = list(rig.last.events)
    await other.event(1, codec.encode(CollectorTick(0)))
    assert other.books.books[5].collector.tiers == rig.books.books[5].collector.tiers


async def test_partitions_without_a_book_are_missing_unless_they_are_empty() -> None:
    rig = Rig(topic := Topic())
    assert await rig.books.missing_partitions([]) == []
    topic.end = 3
    assert await rig.books.missing_partitions([]) == [5]
    assert await rig.books.missing_partitions(range(AUDIT_PARTITIONS)) == []
    await rig.books._sweep()
    await rig.books._sweep()
    assert topic.ticks == 1, "a worker that gets one reads the tables"


@given(topic=st.text("abcdefghij._-", min_size=1, max_size=30))
def test_a_topics_reports_are_where_any_client_puts_them_by_key(topic: str) -> None:
    everywhere = list(range(AUDIT_PARTITIONS))
    assert audit_partition(topic) == DefaultPartitioner()(topic.encode(), everywhere, everywhere)


async def test_a_deviating_client_and_full_memory_are_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "MOST_WINDOWS", 1)
    rig = Rig(Topic(), oddity_of=lambda scope: f"windows of {scope.width_ms} ms")
    await rig.event(0, codec.encode(report(5, 5)))
    for upto in (6, 7):
        start = Increment(60_000 * upto, Totals(1))
        one = msgspec.structs.replace(report(upto, upto), windows=(start,), part=upto, since=upto - 1)
        await rig.event(upto, codec.encode(one))
    assert [incident[0] for incident in rig.incidents] == ["audit-not-as-planned", "audit-report-refused"]
    assert "windows of 60000 ms" in rig.incidents[0][2]


async def test_the_times_of_a_report_are_bounded_by_its_records_time_also_in_a_replay() -> None:
    rig = Rig(topic := Topic())
    await rig.event(0, codec.encode(report(1, 1, watermark_ms=1 << 41)), recorded_ms=200_000)
    other = Rig(topic, again=6)
    other.last.events = list(rig.last.events)
    await other.event(1, codec.encode(CollectorTick(0)))
    for one in (rig, other):
        (record,) = one.books.books[5].collector.tiers.values()
        assert record.sources == {"t/0": SourceStatus(200_000, 200_000)}


async def test_tables_of_a_recreated_topic_count_on() -> None:
    before, after = Rig(Topic()), Rig(Topic())
    await before.event(900, codec.encode(report(1, 1)))
    after.windows, after.tiers = before.windows, before.tiers
    await after.event(0, codec.encode(report(4, 7)))
    assert (after.count, [incident[0] for incident in after.incidents]) == (7, ["audit-topic-shorter"])


async def test_a_topic_truncated_while_it_was_read_is_read_again() -> None:
    rig = Rig(topic := Topic())
    for offset in range(5):
        await rig.event(offset, codec.encode(report(offset + 1, offset + 1)))
    await rig.books._sweep()
    assert 5 in rig.books.books

    topic.end = 2  # a leader without the last events was elected, or the topic was recreated
    await rig.books._sweep()
    rig.last.events = rig.last.events[:2]
    await rig.event(2, codec.encode(report(9, 9)))
    assert (rig.count, [incident[0] for incident in rig.incidents]) == (9, ["audit-topic-shorter"])
