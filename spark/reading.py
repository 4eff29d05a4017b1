"""Reads ranges of offsets so that a range that cannot be read does not stop the others.

    read by Spark's connector ──▶ used ──▶ done
        │ it fails, or may have skipped records
        ▼
    find these ranges ──▶ `raw_ranges` reads them as far as possible ──▶ used again ──▶ done

Rules
1. Good ranges cost nothing. A range is examined if the connector fails at it, if its offsets have holes, if a
   time may be wrong, or if its partition is a suspect. So ranges with transactions or compaction are fetched
   a second time.
2. A range that makes the connector fail is found by reading each range alone. If none fails alone, the caller
   gets the failure, such as a full disk.
3. A range that cannot be read to its end is read up to the bad offset. The rest is returned as an
   `UnreadRange` with the reason, and must not count as read.
4. A cluster remembers the partitions at which the connector failed or read wrong (`suspects`), so that a job
   pays for the search once. It forgets one when an examination of its next range finds nothing odd.
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

NAMED = 10  # partitions in a message

T = TypeVar("T")


class RangeSource(Protocol):
    """The methods of a cluster that reading needs."""

    suspects: set[tuple[str, int]]

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """Reads `ranges` with the connector and `raw` with `raw_ranges`."""

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges that the connector cannot read."""

    def renumbering(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges in which the connector skips records."""

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """How far `raw_ranges` can read each range."""


class Doubts(NamedTuple):
    """Ranges to examine. `left_out`: with holes, which may be correct. `wrong`: with wrong timestamps."""

    left_out: Collection[Range] = ()
    wrong: Collection[Range] = ()


def read_around(
    source: RangeSource,
    ranges: Sequence[Range],
    use: Callable[[DataFrame], T],
    doubts: Callable[[T], Doubts],
) -> tuple[T, tuple[UnreadRange, ...]]:
    """Applies `use` to all records of these ranges that can be read; returns its result and the ranges that
    could not be read.

    `use` may be called several times, and its last result counts. `doubts` says which ranges to examine.

    Raises:
        Unreachable: No broker answers. Other errors of `use` are passed on.
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
            say(f"Spark's Kafka connector cannot read {_named(news)}: {cause(failure)}; reading without it")
        else:
            doubted = doubts(used)
            news = set(plain) & set(doubted.wrong)
            news |= set(source.renumbering([one for one in plain if one in set(doubted.left_out)]))
            certain |= news
            if news:
                say(f"Spark's Kafka connector reads {_named(news)} wrong; reading without it")
        raw |= news
        source.suspects -= {(one.topic, one.partition) for one in ranges}
        source.suspects |= {(one.topic, one.partition) for one in raw}
        if not news:
            return used, tuple(_unread(one) for one in found if one.why and one.range in raw)


def read_whole(
    source: RangeSource, ranges: Sequence[Range], use: Callable[[DataFrame], T], doubts: Callable[[T], Doubts]
) -> T:
    """Applies `use` to all records of these ranges; returns its result.

    Raises:
        UnreadableTopic: Some records cannot be read.
        Unreachable: No broker answers. Other errors of `use` are passed on.
    """
    used, unread = read_around(source, ranges, use, doubts)
    if unread:
        raise UnreadableTopic("; ".join(map(str, unread)))
    return used


def seen() -> tuple[Column, Column]:
    """Aggregates for `doubts_of_all`: `records` and `first_ms`."""
    return f.count("*").alias("records"), f.min("timestamp_ms").alias("first_ms")


def doubts_of_all(ranges: Sequence[Range], found: Mapping[str, int | None]) -> Doubts:
    """Doubts about all ranges, for fewer records than offsets or too early times. `found`: of `seen`."""
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
