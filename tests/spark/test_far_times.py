"""On real Kafka: timestamps outside Spark's range, batches with false offsets, and damaged batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.archive.log import Archive
from app.archive.reader import ArchivedRecord, ArchiveQuery, ArchiveReader
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient
from spark import raw_ranges
from spark.__main__ import main
from spark.kafka import KafkaCluster
from spark.raw_ranges import Examined
from spark.topics import Range
from tests.kafka.conftest import connected
from tests.kafka.odd_batches import append, batch, lying, record
from tests.spark.conftest import NOON_MS
from tests.spark.test_end_to_end import create

CLUSTER = "east-aggregate"
GOOD = 20  # records before the odd batches, and as many behind them
EVER = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
# In nanoseconds; the largest; too low as microseconds; the least; before the Gregorian calendar.
FAR_MS = (NOON_MS * 1_000_000, (1 << 63) - 1, -9_300_000_000_000_000, -(1 << 63), -70_000_000_000_000)
LIES = ((0, 1000, 2000), (0, 1, (1 << 31) - 1), (2, 1, 0), (0, 0, 0), (5, 6, 7))
MOVED_CODES = {3, 5, 6}  # of a topic that was made a moment ago


async def put(client: ClusterClient, topic: str, batches: Iterable[bytearray]) -> None:
    for encoded in batches:
        async with asyncio.timeout(60):
            while (answer := await append(client, topic, 0, encoded)).code in MOVED_CODES:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert answer.code == 0, answer


def good_batches() -> list[bytearray]:
    return [batch([record(0, b"good", key=b"key")], timestamp_ms=NOON_MS) for _ in range(GOOD)]


async def fill(bootstrap: str, topics: dict[str, list[bytearray]]) -> None:
    """Fills topics of one partition with good records, these batches, and good records again."""
    for topic in topics:
        await create(bootstrap, topic, 1, **EVER)
    async with connected(bootstrap) as client:
        for topic, odd in topics.items():
            await put(client, topic, [*good_batches(), *odd, *good_batches()])


def archived(root: Path, topic: str) -> list[ArchivedRecord]:
    """The archived records of the topic by offset, with quarantined ones."""
    records = ArchiveReader(Archive.open(root)).records(ArchiveQuery(topic, quarantined=True))
    return sorted(records, key=lambda one: one.offset)


@pytest.mark.deep(minutes=1)
def test_one_record_in_nanoseconds_is_quarantined_whole_and_damage_holds_up_no_other_topic(
    session: SparkSession,
    killable_yard: Yard,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bootstrap, root = killable_yard.bootstrap(CLUSTER), tmp_path / "archive"
    orders, times, stock = (f"{topic_name}-{name}" for name in ("orders", "times", "stock"))
    odd = batch([record(0, b"odd")], timestamp_ms=NOON_MS)
    far = [batch([record(0, b"far", key=b"k")], timestamp_ms=at_ms) for at_ms in FAR_MS]
    asyncio.run(fill(bootstrap, {orders: [], times: far, stock: [odd]}))
    (segment,) = (killable_yard.home / CLUSTER / "data" / f"{stock}-0").glob("*.log")
    with segment.open("r+b") as log:
        log.seek(segment.read_bytes().index(b"odd"))
        log.write(b"ODD")

    archiving = ("archive", "--bootstrap", bootstrap, "--topics", f"{topic_name}.*", "--to", str(root))
    assert main((*archiving, "--once")) == 9
    output = capsys.readouterr()
    result = json.loads(output.out.splitlines()[-1])
    assert (result["records"], result["quarantined"]) == (5 * GOOD + len(FAR_MS), len(FAR_MS))
    (unread,) = result["unread"]
    assert (unread["topic"], unread["partition"], unread["start"]) == (stock, 0, GOOD)
    assert "its checksum does not match" in unread["why"]
    assert f"{stock} [0], offsets {GOOD} to {2 * GOOD}: cannot be read: the batch of offsets" in output.err

    assert len(archived(root, orders)) == 2 * GOOD
    assert [one.offset for one in archived(root, stock)] == [*range(GOOD)], "damaged offsets were archived"
    found = archived(root, times)
    assert [one.offset for one in found] == [*range(2 * GOOD + len(FAR_MS))]
    far_records = [(one.timestamp_ms, one.key, one.value) for one in found[GOOD : GOOD + len(FAR_MS)]]
    assert far_records == [(at_ms, b"k", b"far") for at_ms in FAR_MS]
    files = ArchiveReader(Archive.open(root)).files(ArchiveQuery(times, quarantined=True))
    assert sum(file.rows for file in files if file.table == "quarantine") == len(FAR_MS)

    for topic in (times, stock):
        comparing = ("verify", "archive", "--bootstrap", bootstrap, "--topic", topic, "--archive", str(root))
        assert main(comparing) == 0, capsys.readouterr()
    capsys.readouterr()
    comparing = ("verify", "topic", "--bootstrap", bootstrap, "--topic", times)
    assert main((*comparing, "--copy-bootstrap", bootstrap, "--copy", stock)) == 9
    assert f"{stock} [0], offsets {GOOD} to {2 * GOOD}: cannot be read" in capsys.readouterr().err


@pytest.mark.deep(minutes=1)
def test_every_record_around_batches_that_lie_about_offsets_is_archived_with_its_brokers_offset(
    session: SparkSession, bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, topics = tmp_path / "archive", [f"{topic_name}-{number}" for number in range(len(LIES))]
    asyncio.run(fill(bootstrap, {topic: [lying(lie)] for topic, lie in zip(topics, LIES, strict=True)}))
    archiving = ("archive", "--bootstrap", bootstrap, "--topics", f"{topic_name}.*", "--to", str(root))
    assert main((*archiving, "--once")) == 0
    wanted = [b"good"] * GOOD + [b"odd"] * 3 + [b"good"] * GOOD
    for topic in topics:
        found = archived(root, topic)
        assert [one.offset for one in found] == [*range(len(wanted))], topic
        assert [one.value for one in found] == wanted, topic
    capsys.readouterr()
    comparing = ("verify", "archive", "--bootstrap", bootstrap, "--topic", topics[0], "--archive", str(root))
    assert main(comparing) == 0, capsys.readouterr()


def test_records_that_are_read_without_the_connector_are_as_it_reads_them(
    session: SparkSession, bootstrap: str, topic_name: str
) -> None:
    asyncio.run(fill(bootstrap, {topic_name: [batch([record(at, b"v") for at in range(9)], codec=4)]}))
    cluster = KafkaCluster(session, bootstrap)
    ranges = [Range(topic_name, 0, 5, GOOD + 4), Range(topic_name, 0, GOOD + 4, 2 * GOOD)]
    both = (cluster.read([one]).collect() + cluster.read([], [one]).collect() for one in ranges)
    for rows in both:
        half = len(rows) // 2
        assert rows[:half] == rows[half:]
        assert half
    assert [(one.reached, one.is_odd, one.why) for one in cluster.examined(ranges[:1])] == [
        (GOOD + 4, False, "")
    ]
    gone = Range(f"{topic_name}-gone", 0, 0, 5)
    assert cluster.failing([ranges[0], gone]) == [gone]
    assert cluster.renumbering(ranges[:1]) == []


def test_options_that_only_java_knows_are_named_where_python_is_needed(
    session: SparkSession, bootstrap: str, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(bootstrap, {topic_name: [lying(LIES[0])]}))
    ranges = [Range(topic_name, 0, 0, 2 * GOOD + 3)]
    known, unknown = (KafkaCluster(session, bootstrap, more) for more in ({}, {"client.rack": "a"}))
    assert known.renumbering(ranges) == ranges
    assert [unknown.renumbering(ranges) for _ in range(2)] == [[], []]
    errors = capsys.readouterr().err
    assert (
        errors.count(
            "Some ranges were not searched for batches whose records have wrong offsets: --command-config"
        )
        == 1
    )
    (found,) = unknown.examined(ranges)
    assert (found.reached, found.is_odd, found.is_away) == (0, False, False)
    assert "cannot use 'client.rack'" in found.why


def test_a_cluster_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[Range] = []

    async def away(options: Mapping[str, str], one: Range) -> Examined:
        examined.append(one)
        return Examined(one, one.start, is_odd=True, why="nobody answers", is_away=True)

    monkeypatch.setattr(raw_ranges, "_examined", away)
    ranges = [Range("orders", number, 7, 9) for number in range(3)]
    found = list(raw_ranges.examine({}, ranges))
    assert examined == ranges[:1]
    assert [(one.range, one.reached, one.is_away) for one in found] == [(one, 7, True) for one in ranges]
