"""Bringing a range of an archive back to a topic: keys, values, headers, timestamps and tombstones as they
were.

Rules
1. A record goes to the partition it came from, and the records of a partition in their order.
2. Records and the position behind them are written in one transaction of Kafka's: a restore that is killed
   and started again goes on behind the last complete one. The position stands where consumer groups' do,
   under a group of the restore's own, and Kafka forgets it after `offsets.retention.minutes` (a week by
   default).
3. The transaction's id is the restore's and the partition's: whoever starts again fences the former one.
4. A restore is what it restores and where to: the same command again has nothing left to do.
5. Offsets are given by the broker; the former ones are in the archive.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from spark.archive.layout import File
from spark.archive.log import Archive
from spark.archive.reader import LAST_OFFSET, Query, Reader, Record
from spark.errors import BadOption, NotFit

CHUNK_RECORDS = 5_000  # of one transaction: what a kill repeats nothing of, and memory
REQUEST_BYTES = 16 * 1024 * 1024  # above any message that brokers take by default
BATCH_BYTES = 256 * 1024  # below what brokers take as one batch by default; a larger record goes alone
TRANSACTION_MS = 60_000
COORDINATOR_S, COORDINATOR_AGAIN_S = 60.0, 0.5
FOREVER = "-1"

CLIENT_WORDS = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
}
PEM_FILES = {
    "ssl.truststore.location": "cafile",
    "ssl.keystore.location": "certfile",
    "ssl.key.password": "password",
}
PEM_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
JAAS = re.compile(r'username="(?P<name>[^"]*)"\s+password="(?P<word>[^"]*)"')


@dataclass(frozen=True, slots=True)
class Part:
    """What one task restores: a partition of the query, and where to."""

    root: Path
    query: Query
    partition: int
    rows: int
    target: str
    name: str
    options: Mapping[str, str]

    @property
    def group(self) -> str:
        """The group under which the position stands."""
        return f"switchyard-restore-{self.name}"


def restore_name(archive: Archive, query: Query, target: str, again: str = "") -> str:
    """What tells this restore from others; `again` makes another one of the same."""
    partitions = None if query.partitions is None else sorted(query.partitions)  # a set's order is its own
    told = (archive.cluster_id, replace(query, partitions=None), partitions, target, again)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def rows_by_partition(files: list[File], query: Query) -> dict[int, int]:
    """How many records the files hold, at most, by partition."""
    found: dict[int, int] = {}
    for file in files:
        for span in file.spans:
            if query.wants(file, span):
                found[span.partition] = found.get(span.partition, 0) + span.rows
    return dict(sorted(found.items()))


def check_target(
    topic: str, partitions: int, needed: int, config: Mapping[str, str], oldest_ms: int, now_ms: int
) -> None:
    """Whether the topic takes the records as they were.

    Raises:
        NotFit: it would change or delete them, with what to set.
    """
    if partitions < needed:
        raise NotFit(f"topic {topic} has {partitions} partitions and the restore needs {needed}: add some")
    if config.get("message.timestamp.type") != "CreateTime":
        raise NotFit(f"topic {topic} would stamp the records anew: set message.timestamp.type=CreateTime")
    retention_ms = int(config.get("retention.ms", FOREVER))
    if "delete" in config.get("cleanup.policy", "delete") and 0 <= retention_ms < now_ms - oldest_ms:
        raise NotFit(
            f"topic {topic} keeps records for {retention_ms} ms and would delete restored ones at once: "
            f"set retention.ms={FOREVER} while you need them"
        )


def restore_parts(parts: Iterable[Part]) -> Iterator[tuple[int, int]]:
    """What a task of Spark's does: restores its parts; gives by partition how many records it wrote."""
    for part in parts:
        yield part.partition, asyncio.run(restore_part(part))


async def restore_part(part: Part) -> int:
    """Restores what is left of the part; how many records that were."""
    from aiokafka import AIOKafkaProducer, TopicPartition
    from aiokafka.structs import OffsetAndMetadata

    options = client_options(part.options)
    producer = AIOKafkaProducer(
        **options,
        transactional_id=f"{part.group}-{part.partition}",
        transaction_timeout_ms=TRANSACTION_MS,
        max_request_size=REQUEST_BYTES,
        max_batch_size=BATCH_BYTES,
        compression_type="lz4",
        linger_ms=5,
    )
    await producer.start()  # from here on the former one can write nothing, and what it left open is aborted
    try:
        at = TopicPartition(part.target, part.partition)
        position = await _position(options, part.group, at)
        query = _behind(part.query, position)
        if query is None:
            return 0
        reader = Reader(Archive.open(part.root))
        records = reader.records(query)
        written = 0
        while chunk := list(islice(records, CHUNK_RECORDS)):
            async with producer.transaction():
                await _send(producer, part, chunk)
                reached = OffsetAndMetadata(chunk[-1].offset + 1, "")
                await producer.send_offsets_to_transaction({at: reached}, part.group)
            written += len(chunk)
        return written
    finally:
        await producer.stop()


def client_options(options: Mapping[str, str]) -> dict[str, Any]:
    """A Kafka client's properties as aiokafka takes them: PLAIN or SCRAM, and PEM files for TLS.

    Raises:
        BadOption: one that it has no word for.
    """
    found: dict[str, Any] = {}
    files: dict[str, str] = {}
    for key, value in options.items():
        if key in CLIENT_WORDS:
            found[CLIENT_WORDS[key]] = value
        elif key in PEM_FILES:
            files[PEM_FILES[key]] = value
        elif key == "sasl.jaas.config" and (login := JAAS.search(value)):
            found |= {"sasl_plain_username": login["name"], "sasl_plain_password": login["word"]}
        elif key in PEM_TYPES and value != "PEM":
            raise BadOption(f"--command-config: {key}={value}: restore reads PEM files only")
        elif key not in PEM_TYPES:
            known = ", ".join((*CLIENT_WORDS, *PEM_FILES, *PEM_TYPES, "sasl.jaas.config"))
            raise BadOption(f"--command-config: restore cannot use {key!r} as it is; it knows {known}")
    if "SSL" in found.get("security_protocol", ""):
        from aiokafka.helpers import create_ssl_context

        found["ssl_context"] = create_ssl_context(**files)
    return found


def _behind(query: Query, position: int | None) -> Query | None:
    """What is left of the query; None if nothing is."""
    if position is None or position <= query.start:
        return query
    if position >= query.end:
        return None
    return replace(query, start=position)


async def _position(options: Mapping[str, Any], group: str, at: Any) -> int | None:
    """Where the restore goes on; a cluster that never had a group takes a moment to make room for one."""
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError

    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    try:
        async with asyncio.timeout(COORDINATOR_S):
            while True:
                try:
                    found = (await admin.list_consumer_group_offsets(group, partitions=[at])).get(at)
                    return None if found is None or found.offset < 0 else int(found.offset)
                except KafkaError as failure:
                    if not failure.retriable:
                        raise
                    await asyncio.sleep(COORDINATOR_AGAIN_S)
    finally:
        await admin.close()


async def _send(producer: Any, part: Part, chunk: list[Record]) -> None:
    """In batches of our own: `send` refuses what has neither key nor value, which topics may hold."""
    waiting = deque(chunk)
    pending = []
    while waiting:
        batch = producer.create_batch()
        while waiting and batch.append(
            key=waiting[0].key,
            value=waiting[0].value,
            timestamp=waiting[0].timestamp_ms,
            headers=list(waiting[0].headers),
        ):
            waiting.popleft()
        if not batch.record_count():
            msg = f"{part.query.topic} [{part.partition}], offset {waiting[0].offset}: it fits into no batch"
            raise NotFit(msg)
        batch.close()
        pending.append(await producer.send_batch(batch, part.target, partition=part.partition))
    await asyncio.gather(*pending)


def split(reader: Reader, query: Query, target: str, name: str, options: Mapping[str, str]) -> list[Part]:
    """A part for each partition that has records of the query."""
    rows = rows_by_partition(reader.files(query), query)
    root = reader.archive.root.resolve()
    lineage = reader.lineage(query.topic, query.topic_id)
    return [
        Part(
            root,
            replace(query, partitions=frozenset({number}), topic_id=lineage, max_records=LAST_OFFSET),
            number,
            count,
            target,
            name,
            dict(options),
        )
        for number, count in rows.items()
    ]
