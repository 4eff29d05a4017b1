"""Reading ranges of offsets, where one that cannot be read holds up no other.

    read by Spark's connector ──▶ used ──▶ done
        │ it fails, or may have passed over records
        ▼
    which ranges ──▶ these are read by `raw_ranges` as far as they can be ──▶ used again ──▶ done

Rules
1. Good ranges cost nothing. Only where the connector fails, or leaves offsets out, ranges are looked at: so
   what transactions write, or compaction has left, is fetched a second time.
2. A range that the connector fails at is found by reading each alone. Where none fails alone, the failure is
   the caller's, as that of a full disk.
3. A range that cannot be read to its end is read up to there, and told with the reason. Nobody may take the
   rest for read.
4. A cluster remembers the partitions in which it has found something (`suspects`), so that a job finds it
   once. It forgets one when the next range of it is as the connector reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from app.archive.errors import Unreachable, UnreadableTopic, cause
from spark.progress import say
from spark.raw_ranges import EARLIEST_MS, Examined
from spark.topics import Range, UnreadRange

NAMED = 10  # partitions, in a line for people

T = TypeVar("T")


class RangeSource(Protocol):
    """What reading needs of a cluster."""

    suspects: set[tuple[str, int]]

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """The records of `ranges` by the connector, and of `raw` as they are."""

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """Those that the connector cannot read."""

    def renumbering(self, ranges: Sequence[Range]) -> list[Range]:
        """Those in which the connector passes over records."""

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """How far each can be read as it is."""


class Doubts(NamedTuple):
    """Of ranges that were read: those with offsets `left_out`, which may be as it should be, and those with
    `wrong` timestamps."""

    left_out: Collection[Range] = ()
    wrong: Collection[Range] = ()


def read_around(
    source: RangeSource,
    ranges: Sequence[Range],
    use: Callable[[DataFrame], T],
    doubts: Callable[[T], Doubts],
) -> tuple[T, tuple[UnreadRange, ...]]:
    """What `use` makes of all records of these ranges that can be read, and what could not be.

    `use` may be called several times. Its last result counts, and `doubts` says what is to be looked at.

    Raises:
        Unreachable: no broker answers. Whatever `use` raises otherwise.
    """
    raw = {one for one in ranges if (one.topic, one.partition) in source.suspects}
    certain = set[Range]()
    while True:
        found = source.examined(sorted(raw)) if raw else []
        if away := [one.why for one in found if one.is_away]:
            raise Unreachable(away[0])
        raw = {one.range for one in found if one.is_odd} | certain
        plain = [one for one in ranges if one not in raw]
        readable = [
            replace(one.range, end=one.reached)
            for one in found
            if one.range in raw and one.reached > one.range.start
        ]
        try:
            used = use(source.read(plain, readable))
        except (PySparkException, Py4JJavaError) as failure:
            news = set(source.failing(plain))
            if not news:
                raise
            certain |= news
            say(f"Spark's Kafka connector fails at {_named(news)}: {cause(failure)}; read without it now")
        else:
            doubted = doubts(used)
            news = set(plain) & set(doubted.wrong)
            news |= set(source.renumbering([one for one in plain if one in set(doubted.left_out)]))
            certain |= news
            if news:
                say(f"Spark's Kafka connector reads {_named(news)} wrong; read without it now")
        raw |= news
        source.suspects -= {(one.topic, one.partition) for one in ranges}
        source.suspects |= {(one.topic, one.partition) for one in raw}
        if not news:
            return used, tuple(_unread(one) for one in found if one.why and one.range in raw)


def read_whole(
    source: RangeSource, ranges: Sequence[Range], use: Callable[[DataFrame], T], doubts: Callable[[T], Doubts]
) -> T:
    """What `use` makes of all records of these ranges.

    Raises:
        UnreadableTopic: some cannot be read. Unreachable: no broker answers. Whatever `use` raises.
    """
    used, unread = read_around(source, ranges, use, doubts)
    if unread:
        raise UnreadableTopic("; ".join(map(str, unread)))
    return used


def seen() -> tuple[Column, Column]:
    """Aggregates of records for `doubts_of_all`: `records` and `first_ms`."""
    return f.count("*").alias("records"), f.min("timestamp_ms").alias("first_ms")


def doubts_of_all(ranges: Sequence[Range], found: Mapping[str, int | None]) -> Doubts:
    """All ranges, where there are fewer records than offsets of all together, or a time that the connector
    may have told wrong; `found`: what `seen` says of the records."""
    offsets = sum(one.end - one.start for one in ranges)
    first_ms = found["first_ms"]
    return Doubts(
        ranges if (found["records"] or 0) < offsets else (),
        ranges if first_ms is not None and first_ms < EARLIEST_MS else (),
    )


def _named(ranges: Collection[Range]) -> str:
    partitions = [f"{one.topic} [{one.partition}]" for one in sorted(ranges)]
    more = f" and {len(partitions) - NAMED:,} more" if len(partitions) > NAMED else ""
    return ", ".join(partitions[:NAMED]) + more


def _unread(one: Examined) -> UnreadRange:
    return UnreadRange(one.range.topic, one.range.partition, one.reached, one.range.end, one.why)
