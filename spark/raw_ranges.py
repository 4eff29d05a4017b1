"""Ranges of a topic that Spark's connector cannot read, read as workers read topics.

The connector makes microseconds of each record's timestamp before any column of ours. So one timestamp in
nanoseconds fails the job, and a time before the Gregorian calendar becomes another one without a word. It
also believes the offsets that records of an uncompressed batch say, and passes over the good records behind
them. Here a record has the timestamp that it says, and the offset that its broker gave.

Everything here runs in tasks of Spark, a range after the other. It takes the means of `app.kafka.fetch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from app.archive.errors import BadOption, SparkJobError
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME, has_own_offsets
from spark.archive.restore import client_options
from spark.topics import Range

# Timestamps (ms) that the connector tells as they are: from the first day of the Gregorian calendar, which is
# 1582-10-15, to the last one that is a number of microseconds.
EARLIEST_MS, LATEST_MS = -12_219_292_800_000, (2**63 - 1) // 1000

RecordRow = tuple[
    str, int, int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None
]  # as `schemas.RECORD`


class Examined(NamedTuple):
    """What a task found of a range.

    `reached`: its records before that offset can be read here. `why`: what is the matter there, "" when that
    is the range's end. `is_odd`: the connector reads it otherwise, or nobody reads it. `is_away`: no broker
    answered.
    """

    range: Range
    reached: int
    is_odd: bool
    why: str = ""
    is_away: bool = False

    @classmethod
    def joined(cls, whole: Range, pieces: Sequence[Examined]) -> Examined:
        """What was found of a range's pieces, which are in order, as of the whole range."""
        bad = next((one for one in pieces if one.why), None)
        reached, why = (whole.end, "") if bad is None else (bad.reached, bad.why)
        is_odd = any(one.is_odd for one in pieces)
        return cls(whole, reached, is_odd, why, is_away=any(one.is_away for one in pieces))


class Away(ClusterUnreachable):
    """No broker of the cluster takes a connection."""


class Unreadable(ValueError):
    """The offsets from `offset` on cannot be read here; `is_damage`: nor by anybody else."""

    def __init__(self, offset: int, why: str, *, is_damage: bool = False) -> None:
        super().__init__(why)
        self.offset = offset
        self.is_damage = is_damage


def rows(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[RecordRow]:
    """The records of these ranges.

    Raises:
        Unreadable: some are gone or damaged. ClusterUnreachable, KafkaError.
    """
    for one in ranges:
        with asyncio.Runner() as runner:
            batches = _batches(options, one)
            try:
                while (batch := runner.run(_next(batches))) is not None:
                    yield from _rows(one, batch)
            finally:
                runner.run(batches.aclose())  # type: ignore[attr-defined]  # a generator has it


def examine(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """Reads all of each range, as `rows` would."""
    return _each(_examined, options, ranges)


def look_for_own_offsets(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """`is_odd`: the range has a batch whose records say other offsets than their broker gave.

    Nothing is decompressed, as brokers give the records of compressed batches the right ones. What cannot be
    read is not odd: the connector has read it.
    """
    return _each(_own_offsets, options, ranges)


Look = Callable[[Mapping[str, str], Range], Coroutine[Any, Any, Examined]]


def _each(look: Look, options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """A cluster that is away is waited for once."""
    away: Examined | None = None
    for one in ranges:
        if away is None:
            found = asyncio.run(look(options, one))
            away = found if found.is_away else None
        else:
            found = away._replace(range=one, reached=one.start)
        yield found


async def _examined(options: Mapping[str, str], one: Range) -> Examined:
    reached, is_odd = one.start, False
    try:
        async for batch in _batches(options, one):
            is_odd = is_odd or has_own_offsets(batch)
            for row in _rows(one, batch):
                is_odd = is_odd or not EARLIEST_MS <= row[3] <= LATEST_MS
            reached = max(reached, min(batch.header.next_offset, one.end))
    except Unreadable as error:
        return Examined(one, max(reached, error.offset), is_odd or error.is_damage, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is of this range only
        return Examined(one, reached, is_odd, _words(error), isinstance(error, Away))
    return Examined(one, one.end, is_odd)


async def _own_offsets(options: Mapping[str, str], one: Range) -> Examined:
    try:
        async for batch in _batches(options, one, skips_damage=True):
            if has_own_offsets(batch):
                return Examined(one, one.end, is_odd=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is of this range only
        return Examined(one, one.start, False, _words(error), isinstance(error, Away))
    return Examined(one, one.end, is_odd=False)


def _words(error: Exception) -> str:
    if isinstance(error, (SparkJobError, KafkaError, ClusterUnreachable)):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def _batches(
    options: Mapping[str, str], one: Range, *, skips_damage: bool = False
) -> AsyncIterator[RecordBatch]:
    """What is committed in the range; the first and the last batch may reach beyond it.

    Raises:
        Unreadable: see `rows`.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # people read what tasks log
    client = ClusterClient(_spec(options))
    try:
        await client.start()
    except ClusterUnreachable as error:
        raise Away(f"{options['bootstrap.servers']} does not answer: {error.__cause__}") from error
    except Exception as error:
        raise BadOption(f"Python's Kafka client cannot use these options: {error!r}") from error
    try:
        async for piece in read_span(client, one.topic, one.partition, one.start, one.end):
            if piece.start >= one.end:  # what came with the last batches
                return
            if piece.damage and skips_damage:
                continue
            if piece.damage:
                why = f"the batch of offsets {piece.start:,} to {piece.end - 1:,}: {piece.damage}"
                raise Unreadable(piece.start, why, is_damage=True)
            shown = ReadCommittedFilter(piece.aborted)
            for batch in iter_batches(piece.data):
                header = batch.header
                if shown.shows(batch) and one.start < header.next_offset and header.base_offset < one.end:
                    yield batch
    finally:
        await client.stop()


async def _next(batches: AsyncIterator[RecordBatch]) -> RecordBatch | None:
    return await anext(batches, None)


def _rows(one: Range, batch: RecordBatch) -> Iterator[RecordRow]:
    at, header = max(one.start, batch.header.base_offset), batch.header
    timestamp_type = int(bool(header.attributes & LOG_APPEND_TIME))
    try:
        for record in records_of(batch):
            at = record.offset + 1
            if one.start <= record.offset < one.end:
                headers = [(name, value) for name, value in record.headers] or None
                of_record = (record.timestamp, timestamp_type, record.key, record.value, headers)
                yield one.topic, one.partition, record.offset, *of_record
    except Exception as error:
        if at >= one.end:
            return
        raise Unreadable(max(at, one.start), f"{type(error).__name__}: {error}") from error


def _spec(options: Mapping[str, str]) -> ClusterSpec:
    """Raises: BadOption: an option that aiokafka has no word for."""
    found: dict[str, Any] = client_options(options)
    servers = found["bootstrap_servers"]
    return ClusterSpec(
        servers,
        tuple(one.strip() for one in servers.split(",")),
        protocol=found.get("security_protocol", "PLAINTEXT"),
        mechanism=found.get("sasl_mechanism", "PLAIN"),
        username=found.get("sasl_plain_username"),
        password=found.get("sasl_plain_password"),
        ssl_context=found.get("ssl_context"),
    )
