"""Reads the ranges that Spark's connector cannot read, with the workers' Kafka client (`app.kafka.fetch`).

The connector converts each timestamp to microseconds. So one timestamp in nanoseconds fails the job, and a
time before the Gregorian calendar silently becomes another time. The connector also believes the offsets
inside an uncompressed batch, and skips the good records behind wrong ones. Here a record has its own
timestamp, and the offset that its broker gave.

The functions run in Spark tasks and read one range after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from app.archive.errors import BadOption, SparkJobError
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME, has_own_offsets
from app.kernel.json_types import JsonObject
from spark.archive.restore import client_options
from spark.topics import Range

# Timestamps (ms) that the connector keeps: from the first day of the Gregorian calendar, 1582-10-15, to the
# last one that fits in microseconds.
EARLIEST_MS, LATEST_MS = -12_219_292_800_000, (2**63 - 1) // 1000

RecordRow = tuple[
    str, int, int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None
]  # as `schemas.RECORD`


class Examined(NamedTuple):
    """The result of examining a range: records before `reached` can be read here, and `why` says why not the
    rest ("" if all). `is_odd`: the connector reads it wrong, or no client can read it. `is_away`: no broker
    answered."""

    range: Range
    reached: int
    is_odd: bool
    why: str = ""
    is_away: bool = False

    @classmethod
    def joined(cls, whole: Range, pieces: Sequence[Examined]) -> Examined:
        """The result for a whole range, from the results of its pieces in order."""
        bad = next((one for one in pieces if one.why), None)
        reached, why = (whole.end, "") if bad is None else (bad.reached, bad.why)
        is_odd = any(one.is_odd for one in pieces)
        return cls(whole, reached, is_odd, why, is_away=any(one.is_away for one in pieces))


class Away(ClusterUnreachable):
    """No broker of the cluster accepts a connection."""


class Unreadable(ValueError):
    """The offsets from `offset` on cannot be read here. `is_damage`: no other client can read them either."""

    def __init__(self, offset: int, why: str, *, is_damage: bool = False) -> None:
        super().__init__(why)
        self.offset = offset
        self.is_damage = is_damage


def rows(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[RecordRow]:
    """The records of these ranges.

    Raises:
        Unreadable: Some records are gone or damaged.
        ClusterUnreachable: No broker answers.
        KafkaError: A broker refuses the request.
    """
    for one in ranges:
        with asyncio.Runner() as runner:
            batches = _batches(options, one)
            try:
                while (batch := runner.run(_next_batch(batches))) is not None:
                    yield from _rows(one, batch)
            finally:
                runner.run(batches.aclose())  # type: ignore[attr-defined]  # a generator's


def examine(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """Reads all of each range, as `rows` would."""
    return _each(_examined, options, ranges)


def look_for_own_offsets(options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """Sets `is_odd` for ranges with a batch whose records say other offsets than the broker gave.

    Nothing is decompressed, because brokers correct the offsets in compressed batches. Damage does not make a
    range odd: the connector has read it.
    """
    return _each(_own_offsets, options, ranges)


Look = Callable[[Mapping[str, str], Range], Coroutine[Any, Any, Examined]]


def _each(look: Look, options: Mapping[str, str], ranges: Iterable[Range]) -> Iterator[Examined]:
    """Waits only once for a cluster that does not answer."""
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
    except Exception as error:  # noqa: BLE001 - any error concerns only this range
        return Examined(one, reached, is_odd, _reason(error), isinstance(error, Away))
    return Examined(one, one.end, is_odd)


async def _own_offsets(options: Mapping[str, str], one: Range) -> Examined:
    try:
        async for batch in _batches(options, one, skips_damage=True):
            if has_own_offsets(batch):
                return Examined(one, one.end, is_odd=True)
    except Exception as error:  # noqa: BLE001 - any error concerns only this range
        return Examined(one, one.start, False, _reason(error), isinstance(error, Away))
    return Examined(one, one.end, is_odd=False)


def _reason(error: Exception) -> str:
    if isinstance(error, (SparkJobError, KafkaError, ClusterUnreachable)):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def _batches(
    options: Mapping[str, str], one: Range, *, skips_damage: bool = False
) -> AsyncIterator[RecordBatch]:
    """The committed batches of the range; the first and the last one may extend beyond it.

    Raises:
        Away: No broker answers.
        BadOption: aiokafka cannot use the options.
        Unreadable: A batch is damaged, unless `skips_damage`.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a task's log reaches the terminal
    aiokafka_patches.install()  # a task runs in a Python process of Spark's
    client = ClusterClient(_spec(options))
    try:
        await client.start()
    except ClusterUnreachable as error:
        raise Away(f"{options['bootstrap.servers']} does not answer: {error.__cause__}") from error
    except Exception as error:
        raise BadOption(f"Python's Kafka client cannot use these options: {error!r}") from error
    try:
        async for piece in read_span(client, one.topic, one.partition, one.start, one.end):
            if piece.start >= one.end:  # fetched together with the last batches
                return
            if piece.damage and skips_damage:
                continue
            if piece.damage:
                why = f"the batch of offsets {piece.start:,} to {piece.end - 1:,}: {piece.damage}"
                raise Unreadable(piece.start, why, is_damage=True)
            committed = ReadCommittedFilter(piece.aborted)
            for batch in iter_batches(piece.data):
                header = batch.header
                if committed.shows(batch) and one.start < header.next_offset and header.base_offset < one.end:
                    yield batch
    finally:
        await client.stop()


async def _next_batch(batches: AsyncIterator[RecordBatch]) -> RecordBatch | None:
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
    """Raises: BadOption: An option that aiokafka does not have."""
    found: JsonObject = client_options(options)
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
