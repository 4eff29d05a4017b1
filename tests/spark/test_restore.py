"""The checks of a restore before it writes, and the name that identifies it."""

from __future__ import annotations

import random
import ssl
from dataclasses import replace

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import Row

from app.archive.errors import BadOption, InvalidArchive
from app.archive.layout import ArchiveChange, ArchivedPartition, ArchivedReach, ArchiveFile, FileSpan
from app.archive.log import Archive
from app.archive.reader import ArchivedRecord, ArchiveQuery, ArchiveReader
from spark.archive import restore
from spark.archive.packed import batches
from spark.archive.restore import (
    RestoreNeeds,
    check_target,
    client_options,
    restore_name,
    split,
    target_config,
)

CONFIG = {"message.timestamp.type": "CreateTime", "retention.ms": "1000", "cleanup.policy": "delete"}
NEEDS = RestoreNeeds(
    partitions=3, record_bytes=2_000, partition_bytes=9_000, keyless=0, oldest_ms=9_000, newest_ms=10_500
)
NOW_MS = 10_000


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"retention.ms": "-1"},
        {"retention.bytes": "9000"},
        {"max.message.bytes": "2000"},
        {"message.timestamp.after.max.ms": "500", "message.timestamp.before.max.ms": "1000"},
        target_config(NEEDS, NOW_MS),
    ],
)
def test_a_topic_that_takes_records_as_they_were_is_fit(config: dict[str, str]) -> None:
    check_target("into", 3, CONFIG | config, NEEDS, NOW_MS)


@pytest.mark.parametrize(
    ("partitions", "config", "message"),
    [
        (2, {}, "has 2 partitions and the restore needs 3"),
        (3, {"message.timestamp.type": "LogAppendTime"}, "message.timestamp.type=CreateTime"),
        (3, {"retention.ms": "999"}, "delete restored ones at once: set retention.ms=-1"),
        (
            3,
            {"retention.bytes": "8999"},
            "retention.bytes=8999 .* up to about 9000 bytes: set retention.bytes=-1",
        ),
        (3, {"cleanup.policy": "compact"}, "cleanup.policy=compact .*: set cleanup.policy=delete, or"),
        (3, {"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete .* give --compacted"),
        (3, {"max.message.bytes": "1999"}, "max.message.bytes=1999 .*: set max.message.bytes=2000"),
        (3, {"message.timestamp.after.max.ms": "499"}, "after.max.ms=499 .* 500 ms after now: set message"),
        (3, {"message.timestamp.before.max.ms": "999"}, "before.max.ms=999 .* 1000 ms before now: set"),
    ],
)
def test_a_topic_that_would_refuse_change_or_delete_records_is_refused(
    partitions: int, config: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArchive, match=message):
        check_target("into", partitions, CONFIG | config, NEEDS, NOW_MS)


def test_a_compacted_topic_takes_records_with_keys_if_requested() -> None:
    config = CONFIG | {"cleanup.policy": "compact", "retention.ms": "0", "retention.bytes": "0"}
    check_target("into", 3, config, NEEDS, NOW_MS, compacted=True)
    with pytest.raises(InvalidArchive, match="takes no records without a key, of which there are 2"):
        check_target("into", 3, config, replace(NEEDS, keyless=2), NOW_MS, compacted=True)
    config |= {"cleanup.policy": "compact,delete"}
    with pytest.raises(InvalidArchive, match=r"retention\.ms"):
        check_target("into", 3, config, NEEDS, NOW_MS, compacted=True)


@pytest.mark.parametrize("most", [1, 5_000, 100_000, restore.BATCH_BYTES, restore.KAFKA_MAX_BYTES])
def test_a_batch_fits_the_topics_limit_even_if_it_cannot_be_compressed(most: int) -> None:
    size = restore.batch_bytes({"max.message.bytes": str(most)})
    builder = DefaultRecordBatchBuilder(2, 3, 1, -1, -1, -1, size)
    dice = random.Random(1)
    records = 0
    while builder.append(records, 0, None, dice.randbytes(50), []) is not None:
        records += 1
    assert records == 1 or len(builder.build()) <= most


def test_a_restore_is_refused_only_if_its_compressed_records_do_not_fit() -> None:
    """Records of two partitions; the bounds assume that records cannot be compressed."""
    noise = random.Random(1).randbytes(3_000)
    plain = [Row(partition=0, timestamp_ms=9_000, key=None, value=bytearray(3_000), headers=None)] * 4
    noisy = [Row(partition=1, timestamp_ms=9_000, key=b"k", value=bytearray(noise), headers=[("h", None)])]
    config = CONFIG | {"retention.ms": "-1", "retention.bytes": "4000", "max.message.bytes": "3100"}
    bounds = replace(NEEDS, record_bytes=3_200, partition_bytes=12_800)
    with pytest.raises(InvalidArchive):
        check_target("into", 3, config, bounds, NOW_MS)
    assert restore.is_tight(config, bounds)
    compressible = bounds.packed(packed_sizes(config, plain))
    assert compressible.partition_bytes < 1_000
    check_target("into", 3, config, compressible, NOW_MS)
    mixed = bounds.packed(packed_sizes(config, [*noisy, *plain]))
    assert 3_000 < mixed.record_bytes < 3_100
    check_target("into", 3, config, mixed, NOW_MS)
    with pytest.raises(InvalidArchive, match=r"retention\.bytes=4000 .* up to about [67]\d\d\d bytes"):
        check_target("into", 3, config, bounds.packed(packed_sizes(config, noisy * 2)), NOW_MS)
    smaller_limit = config | {"max.message.bytes": "3000"}
    with pytest.raises(InvalidArchive, match=r"needs up to 30\d\d: set max\.message\.bytes=30\d\d"):
        check_target(
            "into", 3, smaller_limit, bounds.packed(packed_sizes(smaller_limit, [*plain, *noisy])), NOW_MS
        )


def packed_sizes(config: dict[str, str], rows: list[Row]) -> list[dict[str, int]]:
    """The sizes that `packed` computes for these records."""
    found: dict[int, dict[str, int]] = {}
    for partition, largest, size in batches(restore.batch_bytes(config), rows):
        known = found.setdefault(partition, {"record_bytes": 0, "partition_bytes": 0})
        known["record_bytes"] = max(known["record_bytes"], largest)
        known["partition_bytes"] += size
    return list(found.values())


@pytest.mark.parametrize(
    ("config", "tight"),
    [
        ({}, False),
        ({"retention.bytes": "9000", "max.message.bytes": "2000"}, False),
        ({"retention.bytes": "8999"}, True),
        ({"retention.bytes": "8999", "cleanup.policy": "compact"}, False),
        ({"max.message.bytes": "1999"}, True),
    ],
)
def test_records_are_compressed_to_know_their_size_only_where_a_topic_takes_less(
    config: dict[str, str], tight: bool
) -> None:
    assert restore.is_tight(CONFIG | config, NEEDS) == tight


def test_a_transaction_is_bounded_in_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "CHUNK_RECORDS", 3)
    monkeypatch.setattr(restore, "CHUNK_BYTES", 10)
    contents = [
        (None, None, ()),
        (b"k", b"v", ()),
        (None, b"", ()),
        (b"12345", b"12345", ()),
        (None, b"1", ()),
    ]
    contents += [(None, None, (("h", b"1234567890"), ("h", None))), (None, b"v", ())]
    records = [ArchivedRecord(0, offset, 0, 0, *one) for offset, one in enumerate(contents)]
    assert [[one.offset for one in chunk] for chunk in restore.chunks(records)] == [
        [0, 1, 2],
        [3],
        [4, 5],
        [6],
    ]


def test_a_restores_name_depends_on_its_query_and_its_target(archive: Archive) -> None:
    query = ArchiveQuery("orders", topic_id="id-1")
    name = restore_name(archive, query, "into")
    assert name == restore_name(Archive.open(archive.root), replace(query), "into")
    partition_sets = [
        frozenset([0, 8, 16]),
        frozenset([16, 8, 0]),
    ]  # one set, whose elements may print in another order
    assert (
        len({restore_name(archive, replace(query, partitions=numbers), "into") for numbers in partition_sets})
        == 1
    )
    others = [
        restore_name(archive, query, "elsewhere"),
        restore_name(archive, replace(query, topic_id="id-2"), "into"),
        restore_name(archive, replace(query, from_ms=5), "into"),
        restore_name(archive, replace(query, partitions=frozenset({1})), "into"),
        restore_name(archive, query, "into", "again"),
    ]
    assert len({name, *others}) == 6


def test_each_partition_with_records_of_the_query_is_a_part(archive: Archive) -> None:
    spans = (FileSpan(0, 0, 10, 10, 100, 200), FileSpan(2, 5, 7, 2, 300, 400))
    file = ArchiveFile("f", "records", "orders", "id-1", "d", "h", 1, spans)
    reach = {ArchivedPartition("orders", "id-1", 0): ArchivedReach(0, 10)}
    archive.commit(ArchiveChange("land", 0, (file,), reach=reach))
    reader = ArchiveReader(archive)
    options = {"bootstrap.servers": "b"}
    parts = split(reader, ArchiveQuery("orders"), "into", "name", options)
    assert [(part.partition, part.rows, part.query.partitions) for part in parts] == [
        (0, 10, frozenset({0})),
        (2, 2, frozenset({2})),
    ]
    (later,) = split(reader, ArchiveQuery("orders", from_ms=250), "into", "name", options)
    assert later.partition == 2
    assert split(reader, ArchiveQuery("orders", from_ms=401), "into", "n", options) == []


def test_a_kafka_clients_properties_are_translated() -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="p w";'
    given = {"bootstrap.servers": "b", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    found = client_options(given | {"sasl.jaas.config": login})
    assert isinstance(found.pop("ssl_context"), ssl.SSLContext)
    assert found == {
        "bootstrap_servers": "b",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "p w",
    }


def test_an_option_that_a_restore_cannot_use_is_named() -> None:
    with pytest.raises(BadOption, match=r"cannot use 'ssl\.cipher\.suites'"):
        client_options({"bootstrap.servers": "b", "ssl.cipher.suites": "x"})
    with pytest.raises(BadOption, match="JKS: Python reads PEM files only"):
        client_options({"bootstrap.servers": "b", "ssl.truststore.type": "JKS"})
