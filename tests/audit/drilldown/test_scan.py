"""Two logs of a real broker, the second a faulty copy of the first: exactly the faults are named."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import Finding, FindingKind, counts, name_findings
from app.audit.drilldown.prints import EventTimeWindow, PrintReader
from app.audit.drilldown.scan import LogsChanged, Scan, Scanned, ScanRange
from app.audit.pump.counting_spec import how_of
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.offsets_at_time import spans
from switchyard.audit.model.fingerprint import FingerprintSource
from tests.audit.query.test_view import audit_plan
from tests.kafka.conftest import create, producing

START_MS = 1_700_000_040_000  # a whole minute
WINDOW = EventTimeWindow(START_MS, START_MS + 60_000)
PARTITIONS = 2
COUNT = 3_000
Sent = dict[str, Any]


@dataclass
class Story:
    """A topic's records, and those of its copy."""

    chance: random.Random
    written: list[Sent] = field(default_factory=list)
    copied: list[Sent] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    lost: list[bytes] = field(default_factory=list)  # their values

    def write_records(self, faults: dict[int, str]) -> None:
        for number in range(COUNT):
            record: Sent = {
                "partition": number % PARTITIONS, "key": b"k%d" % (number % 97) if number % 5 else None,
                "value": b"v%d" % number, "headers": [("h", b"%d" % (number % 3)), ("id", b"id-%d" % number)],
                "timestamp_ms": START_MS - 30_000 + number * 40 + self.chance.randrange(50),
            }  # fmt: skip
            self.written.append(record)
            fate = faults.get(number, "")
            is_inside = WINDOW.start_ms <= record["timestamp_ms"] < WINDOW.end_ms
            self.fates[fate] += is_inside
            if fate == "lost":
                self.lost += [record["value"]] * is_inside
                continue
            self.copied.append(record if fate != "altered" else {**record, "value": b"x%d" % number})
            if fate == "doubled":
                self.copied.append(record)


async def write(bootstrap: str, topic: str, records: list[Sent], **options: Any) -> None:
    async with producing(bootstrap, **options) as producer:
        await _send(producer, topic, records)


async def _send(producer: AIOKafkaProducer, topic: str, records: list[Sent]) -> None:
    sent = [await producer.send(topic, **record) for record in records]
    for one in sent:
        await one


async def parts_of(client: ClusterClient, topics: tuple[str, str], **spec: Any) -> list[ScanRange]:
    """The parts of both topics, as they are now."""
    plan = audit_plan(**spec)
    found: list[ScanRange] = []
    for cluster, topic in zip(("home", "away"), topics, strict=True):
        logs = await spans(client, topic, PARTITIONS, WINDOW.start_ms, WINDOW.end_ms + 5_000)
        for partition, span in logs.items():
            assert not span.is_cut
            how = how_of(plan, FingerprintSource(cluster, topic, partition))
            reader = PrintReader(ClusterPartition(cluster, topic, partition), how, WINDOW)
            found.append(ScanRange(client, reader, span.start, span.end, span.end, cluster == "home"))
    return found


async def scanned(parts: list[ScanRange]) -> Scanned:
    steps: list[dict[str, Any]] = []
    found = await Scan(parts, steps.append).run()
    assert all(step["looked_at"] <= step["of"] for step in steps)
    return found


async def findings(parts: list[ScanRange]) -> list[Finding]:
    found = await scanned(parts)
    assert not found.unread
    return name_findings(found.upstream, found.downstream)


def some_faults(chance: random.Random) -> dict[int, str]:
    numbers = chance.sample(range(COUNT), 40)
    return {number: ("lost", "doubled", "altered")[at % 3] for at, number in enumerate(numbers)}


async def both(client: ClusterClient, topic_name: str) -> tuple[str, str]:
    return await create(client, topic_name, PARTITIONS), await create(
        client, f"{topic_name}-copy", PARTITIONS
    )


@pytest.mark.parametrize("codec", [None, "lz4"])
@pytest.mark.parametrize("ids", [False, True])
async def test_every_fault_is_named_and_nothing_else(
    bootstrap: str, client: ClusterClient, topic_name: str, codec: str | None, ids: bool
) -> None:
    topics, chance = await both(client, topic_name), random.Random(7)
    story = Story(chance)
    story.write_records(some_faults(chance))
    await write(bootstrap, topics[0], story.written, compression_type=codec)
    await write(bootstrap, topics[1], story.copied, max_batch_size=4_000)
    found = await findings(await parts_of(client, topics, **({"id": {"header": "id"}} if ids else {})))
    kinds = counts(found)
    assert (kinds["missing"], kinds["altered"], kinds["doubled"], kinds["foreign"]) == (
        story.fates["lost"], story.fates["altered"], story.fates["doubled"], 0,
    )  # fmt: skip
    assert min(kinds["missing"], kinds["altered"], kinds["doubled"]) > 3
    offsets = [0] * PARTITIONS
    at: dict[bytes, tuple[int, int]] = {}
    for record in story.written:
        at[record["value"]] = record["partition"], offsets[record["partition"]]
        offsets[record["partition"]] += 1
    lost = [one.source for one in found if one.kind is FindingKind.MISSING and one.source is not None]
    assert sorted((one.place.partition, one.offset) for one in lost) == sorted(at[v] for v in story.lost)
    if ids:
        assert {one.id for one in lost} == {b"id-" + value[1:] for value in story.lost}


async def test_equal_logs_need_no_decoding(
    bootstrap: str, client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, story = await both(client, topic_name), Story(random.Random(1))
    story.write_records({})
    for topic in topics:
        async with producing(bootstrap, linger_ms=1_000, max_batch_size=1 << 20) as producer:
            await _send(producer, topic, story.written)
    monkeypatch.setattr(PrintReader, "_rows", None)
    assert await scanned(await parts_of(client, topics)) == Scanned([], [])


async def test_a_late_copy_behind_newer_records_is_not_missing(
    bootstrap: str, client: ClusterClient, topic_name: str
) -> None:
    topics, story = await both(client, topic_name), Story(random.Random(2))
    story.write_records({1_000: "lost", 1_001: "lost"})
    later: list[Sent] = [
        {**story.written[p], "timestamp_ms": WINDOW.end_ms + 900_000} for p in range(PARTITIONS)
    ]
    await write(bootstrap, topics[0], story.written + later)
    await write(bootstrap, topics[1], story.copied + later)
    ended = await parts_of(client, topics)
    assert counts(await findings(ended))["missing"] == 2
    await write(bootstrap, topics[1], [story.written[1_000]])
    now = await parts_of(client, topics)
    assert [part.end for part in now] == [part.end for part in ended], (
        "its timestamp does not tell where it is"
    )
    logs = await spans(client, topics[1], PARTITIONS, 0, 1 << 50)
    parts = [
        part if part.is_upstream else part._replace(log_end=logs[part.reader.place.partition].end)
        for part in now
    ]
    (missing,) = await findings(parts)
    assert (missing.kind, missing.source and missing.source.offset) == (FindingKind.MISSING, 500)


async def test_headers_that_copying_adds_or_leaves_out_do_not_count(
    bootstrap: str, client: ClusterClient, topic_name: str
) -> None:
    topics, story = await both(client, topic_name), Story(random.Random(3))
    story.write_records({1_500: "lost"})
    await write(bootstrap, topics[0], story.written)
    edited = [
        {
            **one,
            "headers": [*one["headers"][:1], ("switchyard-route", b"r"), ("switchyard-origin", b"c/t/0/1")],
        }
        for one in story.copied
    ]
    await write(bootstrap, topics[1], edited)
    parts = await parts_of(client, topics)
    for part in parts:
        part.reader._keeps = lambda name: name == "h"
    (missing,) = await findings(parts)
    assert (missing.kind, missing.source and missing.source.offset) == (FindingKind.MISSING, 750)


async def test_a_provenance_header_distinguishes_equal_records(
    bootstrap: str, client: ClusterClient, topic_name: str
) -> None:
    topics = await both(client, topic_name)
    record: Sent = {"partition": 0, "value": b"same", "timestamp_ms": START_MS + 5}
    await write(bootstrap, topics[0], [record] * 5)
    await write(
        bootstrap, topics[1],
        [{**record, "headers": [("switchyard-origin", b"cluster/%s/0/%d" % (topics[0].encode(), at))]}
         for at in (0, 1, 3, 4)],
    )  # fmt: skip
    parts = await parts_of(client, topics)
    for part in parts:
        if not part.is_upstream:
            from app.audit.drilldown.copy_origins import CopyOrigins
            from app.kernel.fencing import LogId

            part.reader._origins, part.reader._cluster_names = (
                CopyOrigins([], 0, LogId()),
                {"cluster": "home"},
            )
    (missing,) = await findings(parts)
    assert missing.source is not None
    assert (missing.kind, missing.source.offset, missing.one_of) == (FindingKind.MISSING, 2, 1)


async def test_more_differences_than_a_first_sieve_holds_are_all_named(
    bootstrap: str, client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audit.drilldown.sieve.FIRST_CELLS", 64)
    topics, story = await both(client, topic_name), Story(random.Random(4))
    story.write_records(dict.fromkeys(range(800, 2_200), "lost"))
    await write(bootstrap, topics[0], story.written)
    await write(bootstrap, topics[1], story.copied)
    found = await findings(await parts_of(client, topics))
    assert counts(found)["missing"] == story.fates["lost"] > 1_000


async def test_records_deleted_meanwhile_are_never_reported_as_lost(
    bootstrap: str, client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, story = await both(client, topic_name), Story(random.Random(5))
    story.write_records({1_500: "lost"})
    await write(bootstrap, topics[0], story.written)
    await write(bootstrap, topics[1], story.copied)
    parts = await parts_of(client, topics)
    scan = Scan(parts, lambda _: None)
    places = scan._places

    async def gone(*arguments: Any) -> Scanned:
        scan._parts = [part._replace(start=part.end) if part.is_upstream else part for part in parts]
        return await places(*arguments)

    monkeypatch.setattr(scan, "_places", gone)
    with pytest.raises(LogsChanged):
        await scan.run()
