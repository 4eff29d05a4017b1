"""The books of audits: read from tables of any age, and what is due is said once they are up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from app import wire
from app.control.audit_books import AuditBooks
from app.core.audit.reports import BadReport, Increment, Report, Scope, report_id
from app.core.audit.tiers import Bounds, Close
from app.core.audit.totals import Totals
from app.topics import AUDIT_PARTITIONS

SCOPE = Scope("orders", "regional", "home", 60_000)


def report(upto: int, count: int, watermark_ms: int = -1) -> Report:
    return Report(
        report_id(SCOPE, "t/0", 0, 0, upto, final=False), *SCOPE, "t/0", 1 << 41,
        (Increment(0, Totals(count)),), part=0, upto=upto, watermark_ms=watermark_ms,
    )  # fmt: skip


class Topic:
    """The audit topic's end, and what is sent to it."""

    def __init__(self) -> None:
        self.end, self.sent, self.ticks = 0, list[Any](), 0

    async def end_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {at: self.end if at[1] == 5 else 0 for at in wanted}

    async def send(self, event: Any) -> asyncio.Future[Any]:
        self.sent.append(event)
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def tick(self, at_ms: int) -> None:
        self.ticks += 1


class Stand:
    """Books, and the tables that are written of partition 5."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.told = topic, list[tuple[str, ...]]()
        self.windows: dict[bytes, bytes] = {}
        self.tiers: dict[bytes, bytes] = {}
        fake: Any = topic
        self.books = AuditBooks(
            "audit", fake, fake, lambda *_: Bounds(60_000, 60_000, silence_ms=1 << 50, keep_ms=1 << 50),
            lambda *told: self.told.append(told), lambda: True,
        )  # fmt: skip

    async def event(self, offset: int, value: bytes) -> None:
        if not self.books.goes_on_at(5, offset):
            await self.books.restore(5, offset, self.windows.items(), self.tiers.items())
        written = self.books.fold(5, offset, value)
        encoded = self.books.encoded(5)
        self.windows |= {str(key).encode(): encoded(key) for key in written.windows}
        self.tiers |= {str(key).encode(): encoded(key) for key in written.tiers}
        self.topic.end = max(self.topic.end, offset + 1)

    @property
    def count(self) -> int:
        (record,) = self.books.books[5].collector.windows.values()
        return record.totals.count


async def test_a_book_is_read_anew_when_somebody_else_has_gone_on_meanwhile() -> None:
    topic = Topic()
    mine, other = Stand(topic), Stand(topic)
    await mine.event(0, wire.encode(report(1, 1)))
    other.windows, other.tiers = mine.windows, mine.tiers
    await other.event(1, wire.encode(report(2, 2)))
    await other.event(2, wire.encode(report(3, 3)))
    assert mine.count == 1
    assert not mine.books.goes_on_at(5, 3)
    mine.windows, mine.tiers = other.windows, other.tiers
    await mine.event(3, wire.encode(report(4, 7)))
    assert mine.count == 7
    for offset, upto in ((1, 2), (2, 3)):  # what is replayed changes nothing
        await mine.event(offset, wire.encode(report(upto, upto)))
    assert mine.count == 7


async def test_what_is_no_event_is_passed_over_and_the_next_one_counts() -> None:
    stand = Stand(Topic())
    with pytest.raises(wire.BadEvent):
        await stand.event(0, b"no event")
    with pytest.raises(BadReport):
        await stand.event(1, wire.encode(report(1, -1)))
    await stand.event(2, wire.encode(report(1, 1)))
    assert stand.count == 1


async def test_a_report_that_says_less_than_before_is_refused_and_told_once() -> None:
    stand = Stand(Topic())
    await stand.event(0, wire.encode(report(5, 5)))
    await stand.event(1, wire.encode(report(6, 4)))
    await stand.event(2, wire.encode(report(7, 3)))
    assert (stand.count, [told[0] for told in stand.told]) == (5, ["audit-report-refused"])


async def test_windows_are_closed_by_who_knows_all_there_is() -> None:
    stand = Stand(topic := Topic())
    await stand.event(0, wire.encode(report(1, 1, watermark_ms=600_000)))
    await stand.books._sweep()
    assert topic.sent == [], "it has not been asked yet where the topic ends"
    topic.end = 9
    await stand.books._sweep()  # what it was told is true of the first event
    assert [type(event) for event in topic.sent] == [Close]
    await stand.books._sweep()
    assert len(topic.sent) == 1, "others have written what it does not know"


async def test_a_partition_that_nobody_holds_is_known_as_such_unless_it_is_empty() -> None:
    stand = Stand(topic := Topic())
    assert await stand.books.without([]) == []
    topic.end = 3
    assert await stand.books.without([]) == [5]
    assert await stand.books.without(range(AUDIT_PARTITIONS)) == []
    await stand.books._sweep()
    await stand.books._sweep()
    assert topic.ticks == 1, "whoever gets one reads the tables"
