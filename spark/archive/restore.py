"""Writes a range of an archive back to a topic: keys, values, headers, timestamps and tombstones unchanged.

Rules
1. A record goes to its former partition. The records of a partition keep their order.
2. One Kafka transaction writes records and the position behind them, so a restore that is killed and started
   again continues behind the last committed transaction. The position is an offset of a consumer group of the
   restore's own. Kafka forgets it after `offsets.retention.minutes`, a week by default.
3. The transactional id names the restore and the partition, so that a second start fences the first.
4. A restore's name comes from its query and target, so that a repeated command finds nothing left to do.
5. The broker assigns new offsets; the archive has the former ones.
6. A topic that would refuse, change or delete the records is refused before anything is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.archive.errors import BadOption, InvalidArchive
from app.archive.layout import ArchiveFile
from app.archive.log import Archive
from app.archive.reader import LAST_OFFSET, ArchivedRecord, ArchiveQuery, ArchiveReader
from app.kernel.json_types import JsonMapping, JsonObject

CHUNK_RECORDS = 5_000  # of one transaction
CHUNK_BYTES = 32 * 1024 * 1024  # of one transaction: fits in memory, and is written before the timeout
BATCH_BYTES = 256 * 1024  # of one batch, or the topic's limit if that is less; a larger record goes alone
LZ4_BYTES = 128  # by which lz4 may enlarge such a batch
KAFKA_MAX_BYTES = 1_048_588  # Kafka's default of `max.message.bytes`
TRANSACTION_MS = 60_000
COORDINATOR_S, COORDINATOR_AGAIN_S = 60.0, 0.5
FOREVER = "-1"
ANY_TIME = str(2**63 - 1)  # of `message.timestamp.before.max.ms` and `after`

CLIENT_OPTIONS = {
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
class RestoreTask:
    """A Spark task's share of the restore: one partition of the query."""

    root: Path
    query: ArchiveQuery
    partition: int
    rows: int
    target: str
    name: str
    options: Mapping[str, str]
    batch_bytes: int = BATCH_BYTES

    @property
    def group(self) -> str:
        """The consumer group that holds the position."""
        return f"switchyard-restore-{self.name}"


def restore_name(archive: Archive, query: ArchiveQuery, target: str, again: str = "") -> str:
    """The name of a restore. `again` distinguishes a repetition."""
    partitions = None if query.partitions is None else sorted(query.partitions)  # a set has no fixed order
    identity = (archive.cluster_id, replace(query, partitions=None), partitions, target, again)
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def rows_by_partition(files: list[ArchiveFile], query: ArchiveQuery) -> dict[int, int]:
    """The number of records in the files, at most, by partition."""
    found: dict[int, int] = {}
    for file in files:
        for span in file.spans:
            if query.wants(file, span):
                found[span.partition] = found.get(span.partition, 0) + span.rows
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class RestoreNeeds:
    """The bounds that a topic must accept; bytes are upper bounds, or about the compressed sizes.
    `record_bytes`: the largest batch of one record. `partition_bytes`: the largest partition. `keyless`:
    records without a key."""

    partitions: int
    record_bytes: int
    partition_bytes: int
    keyless: int
    oldest_ms: int
    newest_ms: int

    @classmethod
    def of(cls, sizes: Iterable[Mapping[str, int]]) -> RestoreNeeds:
        """From at least one row of `frames.sizes`."""
        rows = list(sizes)
        return cls(
            partitions=max(row["partition"] for row in rows) + 1,
            record_bytes=max(row["record_bytes"] for row in rows),
            partition_bytes=max(row["partition_bytes"] for row in rows),
            keyless=sum(row["keyless"] for row in rows),
            oldest_ms=min(row["first_ms"] for row in rows),
            newest_ms=max(row["last_ms"] for row in rows),
        )

    def packed(self, sizes: Iterable[Mapping[str, int]]) -> RestoreNeeds:
        """With the compressed sizes, from rows of `packed.packed`."""
        rows = list(sizes)
        largest = {name: max(row[name] for row in rows) for name in ("record_bytes", "partition_bytes")}
        return replace(self, **largest)


def target_config(needs: RestoreNeeds, now_ms: int) -> dict[str, str]:
    """The settings of a new topic, whatever the cluster's defaults are."""
    config = {
        "cleanup.policy": "delete",
        "retention.ms": FOREVER,
        "retention.bytes": FOREVER,
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": str(max(needs.record_bytes, KAFKA_MAX_BYTES)),
    }
    if needs.newest_ms > now_ms:  # brokers before 3.6 refuse this setting, as unknown
        config["message.timestamp.after.max.ms"] = ANY_TIME
    return config


def batch_bytes(config: Mapping[str, str]) -> int:
    """The most bytes of a batch before compression that a topic of this configuration accepts."""
    return min(BATCH_BYTES, max(1, int(config.get("max.message.bytes", KAFKA_MAX_BYTES)) - LZ4_BYTES))


def is_tight(config: Mapping[str, str], needs: RestoreNeeds) -> bool:
    """Whether the bounds exceed the topic's limits, so that only compressed sizes can tell (`packed`)."""
    retention_bytes = int(config.get("retention.bytes", FOREVER))
    is_short = "delete" in config.get("cleanup.policy", "delete") and (
        0 <= retention_bytes < needs.partition_bytes
    )
    return is_short or int(config.get("max.message.bytes", KAFKA_MAX_BYTES)) < needs.record_bytes


def check_target(
    topic: str,
    partitions: int,
    config: Mapping[str, str],
    needs: RestoreNeeds,
    now_ms: int,
    *,
    compacted: bool = False,
) -> None:
    """Checks that the topic accepts the records unchanged, and does not delete them at once. `compacted`: it
    may delete records that a later record of the same key supersedes.

    Raises:
        InvalidArchive: It would refuse, change or delete them; the text names the setting.
    """
    if partitions < needs.partitions:
        raise InvalidArchive(
            f"topic {topic} has {partitions} partitions and the restore needs {needs.partitions}: add some"
        )
    if config.get("message.timestamp.type") != "CreateTime":
        raise InvalidArchive(
            f"topic {topic} would replace the timestamps: set message.timestamp.type=CreateTime"
        )
    policy = config.get("cleanup.policy", "delete")
    if "compact" in policy and not compacted:
        raise InvalidArchive(
            f"topic {topic} has cleanup.policy={policy} and would delete all but the latest record of each "
            "key: set cleanup.policy=delete, or give --compacted if the latest is enough"
        )
    if "compact" in policy and needs.keyless:
        raise InvalidArchive(
            f"topic {topic} has cleanup.policy={policy} and takes no records without a key, of which there "
            f"are {needs.keyless:,}: set cleanup.policy=delete"
        )
    if "delete" in policy:
        _check_retention(topic, config, needs, now_ms)
    most = int(config.get("max.message.bytes", KAFKA_MAX_BYTES))
    if most < needs.record_bytes:
        raise InvalidArchive(
            f"topic {topic} has max.message.bytes={most} and the largest record needs up to "
            f"{needs.record_bytes}: set max.message.bytes={needs.record_bytes}"
        )
    for name, off_ms in (("before", now_ms - needs.oldest_ms), ("after", needs.newest_ms - now_ms)):
        setting = f"message.timestamp.{name}.max.ms"
        if int(config.get(setting, ANY_TIME)) < off_ms:
            raise InvalidArchive(
                f"topic {topic} has {setting}={config[setting]} and would refuse records with timestamps "
                f"{off_ms} ms {name} now: set {setting}={ANY_TIME}"
            )


def _check_retention(topic: str, config: Mapping[str, str], needs: RestoreNeeds, now_ms: int) -> None:
    retention_ms = int(config.get("retention.ms", FOREVER))
    if 0 <= retention_ms < now_ms - needs.oldest_ms:
        raise InvalidArchive(
            f"topic {topic} keeps records for {retention_ms} ms and would delete restored ones at once: "
            f"set retention.ms={FOREVER} while you need them"
        )
    retention_bytes = int(config.get("retention.bytes", FOREVER))
    if 0 <= retention_bytes < needs.partition_bytes:
        raise InvalidArchive(
            f"topic {topic} has retention.bytes={retention_bytes} and would delete restored records at once, "
            f"of which a partition has up to about {needs.partition_bytes} bytes: "
            f"set retention.bytes={FOREVER} while you need them"
        )


def restore_parts(parts: Iterable[RestoreTask]) -> Iterator[tuple[int, int]]:
    """Restores the parts in a Spark task; returns the number of records written, by partition."""
    for part in parts:
        yield part.partition, asyncio.run(restore_part(part))


async def restore_part(part: RestoreTask) -> int:
    """Restores the rest of the part; returns the number of records."""
    from aiokafka import AIOKafkaProducer, TopicPartition
    from aiokafka.structs import OffsetAndMetadata

    options = client_options(part.options)
    producer = AIOKafkaProducer(
        **options,
        transactional_id=f"{part.group}-{part.partition}",
        transaction_timeout_ms=TRANSACTION_MS,
        max_batch_size=part.batch_bytes,
        compression_type="lz4",
        linger_ms=5,
    )
    await producer.start()  # fences the former producer and aborts its open transaction
    try:
        at = TopicPartition(part.target, part.partition)
        position = await _position(options, part.group, at)
        query = _behind(part.query, position)
        if query is None:
            return 0
        reader = ArchiveReader(Archive.open(part.root))
        written = 0
        for chunk in chunks(reader.records(query)):
            async with producer.transaction():
                await _send(producer, part, chunk)
                reached = OffsetAndMetadata(chunk[-1].offset + 1, "")
                await producer.send_offsets_to_transaction({at: reached}, part.group)
            written += len(chunk)
        return written
    finally:
        await producer.stop()


def chunks(records: Iterable[ArchivedRecord]) -> Iterator[list[ArchivedRecord]]:
    """Splits the records into transactions of up to `CHUNK_RECORDS` records, or about `CHUNK_BYTES`."""
    chunk: list[ArchivedRecord] = []
    held_bytes = 0
    for record in records:
        chunk.append(record)
        held_bytes += len(record.key or b"") + len(record.value or b"")
        held_bytes += sum(len(value or b"") for _, value in record.headers)
        if len(chunk) == CHUNK_RECORDS or held_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, held_bytes = [], 0
    if chunk:
        yield chunk


def client_options(options: Mapping[str, str]) -> JsonObject:
    """A Kafka client's properties as aiokafka's: PLAIN or SCRAM, and PEM files for TLS.

    Raises:
        BadOption: aiokafka does not have the property.
    """
    found: JsonObject = {}
    files: dict[str, str] = {}
    for key, value in options.items():
        if key in CLIENT_OPTIONS:
            found[CLIENT_OPTIONS[key]] = value
        elif key in PEM_FILES:
            files[PEM_FILES[key]] = value
        elif key == "sasl.jaas.config" and (login := JAAS.search(value)):
            found |= {"sasl_plain_username": login["name"], "sasl_plain_password": login["word"]}
        elif key in PEM_TYPES and value != "PEM":
            raise BadOption(f"--command-config: {key}={value}: Python reads PEM files only")
        elif key not in PEM_TYPES:
            known = ", ".join((*CLIENT_OPTIONS, *PEM_FILES, *PEM_TYPES, "sasl.jaas.config"))
            raise BadOption(f"--command-config: Python's Kafka client cannot use {key!r}; it knows {known}")
    if "SSL" in found.get("security_protocol", ""):
        from aiokafka.helpers import create_ssl_context

        found["ssl_context"] = create_ssl_context(**files)
    return found


def _behind(query: ArchiveQuery, position: int | None) -> ArchiveQuery | None:
    """The rest of the query; None if nothing is left."""
    if position is None or position <= query.start:
        return query
    if position >= query.end:
        return None
    return replace(query, start=position)


async def _position(options: JsonMapping, group: str, at: Any) -> int | None:
    """The offset to continue at. A cluster's first group waits until Kafka has made its offsets topic."""
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


async def _send(producer: Any, part: RestoreTask, chunk: list[ArchivedRecord]) -> None:
    """Sends batches, because aiokafka's `send` refuses records with neither key nor value."""
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
            msg = f"{part.query.topic} [{part.partition}], offset {waiting[0].offset}: too large for a batch"
            raise InvalidArchive(msg)
        batch.close()
        pending.append(await producer.send_batch(batch, part.target, partition=part.partition))
    await asyncio.gather(*pending)


def split(
    reader: ArchiveReader, query: ArchiveQuery, target: str, name: str, options: Mapping[str, str]
) -> list[RestoreTask]:
    """A task for each partition that has records of the query."""
    rows = rows_by_partition(reader.files(query), query)
    root = reader.archive.root.resolve()
    lineage = reader.lineage(query.topic, query.topic_id)
    return [
        RestoreTask(
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
