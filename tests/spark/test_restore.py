"""What a restore checks before it writes, and what makes it the same one."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest

from spark.archive.layout import Change, File, Partition, Reach, Span
from spark.archive.log import Archive
from spark.archive.reader import Query, Reader
from spark.archive.restore import check_target, client_options, restore_name, split
from spark.errors import BadOption, NotFit

CONFIG = {"message.timestamp.type": "CreateTime", "retention.ms": "1000", "cleanup.policy": "delete"}


def test_a_topic_that_takes_records_as_they_were_is_fit() -> None:
    check_target("into", 3, 3, CONFIG, oldest_ms=9_000, now_ms=10_000)
    check_target("into", 3, 3, CONFIG | {"retention.ms": "-1"}, oldest_ms=0, now_ms=10_000)
    check_target("into", 3, 3, CONFIG | {"cleanup.policy": "compact"}, oldest_ms=0, now_ms=10_000)


@pytest.mark.parametrize(
    ("partitions", "config", "oldest_ms", "told"),
    [
        (2, {}, 9_000, "has 2 partitions and the restore needs 3"),
        (3, {"message.timestamp.type": "LogAppendTime"}, 9_000, "message.timestamp.type=CreateTime"),
        (3, {}, 8_999, "delete restored ones at once: set retention.ms=-1"),
    ],
)
def test_a_topic_that_would_change_or_delete_records_is_refused(
    partitions: int, config: dict[str, str], oldest_ms: int, told: str
) -> None:
    with pytest.raises(NotFit, match=told):
        check_target("into", partitions, 3, CONFIG | config, oldest_ms, now_ms=10_000)


def test_a_restore_is_what_it_restores_and_where_to(archive: Archive) -> None:
    query = Query("orders", topic_id="id-1")
    name = restore_name(archive, query, "into")
    assert name == restore_name(Archive.open(archive.root), replace(query), "into")
    ways = [frozenset([0, 8, 16]), frozenset([16, 8, 0])]  # the same set, which may print in another order
    assert len({restore_name(archive, replace(query, partitions=way), "into") for way in ways}) == 1
    others = [
        restore_name(archive, query, "elsewhere"),
        restore_name(archive, replace(query, topic_id="id-2"), "into"),
        restore_name(archive, replace(query, from_ms=5), "into"),
        restore_name(archive, replace(query, partitions=frozenset({1})), "into"),
        restore_name(archive, query, "into", "again"),
    ]
    assert len({name, *others}) == 6


def test_each_partition_with_records_of_the_query_is_a_part(archive: Archive) -> None:
    spans = (Span(0, 0, 10, 10, 100, 200), Span(2, 5, 7, 2, 300, 400))
    file = File("f", "records", "orders", "id-1", "d", "h", 1, spans)
    reach = {Partition("orders", "id-1", 0): Reach(0, 10)}
    archive.commit(Change("land", 0, (file,), reach=reach))
    reader = Reader(archive)
    options = {"bootstrap.servers": "b"}
    parts = split(reader, Query("orders"), "into", "name", options)
    assert [(part.partition, part.rows, part.query.partitions) for part in parts] == [
        (0, 10, frozenset({0})),
        (2, 2, frozenset({2})),
    ]
    (later,) = split(reader, Query("orders", from_ms=250), "into", "name", options)
    assert later.partition == 2
    assert split(reader, Query("orders", from_ms=401), "into", "n", options) == []


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
    with pytest.raises(BadOption, match="JKS: restore reads PEM files only"):
        client_options({"bootstrap.servers": "b", "ssl.truststore.type": "JKS"})
