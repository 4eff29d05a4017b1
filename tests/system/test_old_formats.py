"""A topic from before Kafka 0.11: records of format 0 and 1 are reported, and later records are processed.

Today's brokers keep such segments and return them unchanged (KIP-724), but cannot write them. The test
therefore writes a segment file while the broker is stopped.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from app.dev.demo.stage import DemoStage, Process, http, route, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, read_all
from app.dev.yard import Yard
from app.kafka.fetch.offsets_at_time import offsets_at
from tests.kafka.conftest import connected, producing
from tests.kafka.records.batches import make_batch, old_messages
from tests.system.fleet import incidents
from tests.system.test_audit import plan, window_counts

pytestmark = pytest.mark.system

SOURCE, TARGET, GROUP = "east-regional", "east-aggregate", "billing"
SETTLE_S = 120.0
FORMAT_0 = old_messages(0, [b"a", b"b"], magic=0)
FORMAT_1 = old_messages(2, [b"c"] * 3) + old_messages(5, [b"d"] * 4, codec=1)
PIECES = [(0, 2, FORMAT_0), (2, 9, FORMAT_1)]
NEW = [SentMessage(f"new-{at}", "ok") for at in range(20)]
FIRST_MS = 1_700_000_000_000  # of the first new record; those of format 1 are of 1,000


def write_segment(yard: Yard, cluster: str, topic: str, data: bytes) -> None:
    """Replaces the segment of an empty partition 0 by `data`."""
    yard.kill(cluster)
    folder = yard._broker(cluster).data_dir / f"{topic}-0"
    for pattern in ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"):
        for file in folder.glob(pattern):
            file.unlink()
    (folder / f"{0:020}.log").write_bytes(data)
    yard.start(cluster)


async def offset_at(bootstrap: str, topic: str, time_ms: int) -> int:
    async with connected(bootstrap) as client:
        return (await offsets_at(client, [(topic, 0)], time_ms))[topic, 0]


async def send(bootstrap: str, topic: str, messages: list[SentMessage]) -> None:
    async with producing(bootstrap) as producer:
        for message in messages:
            await producer.send_and_wait(topic, message.value(), partition=0)


def wait_reported(worker: Process, kind: str) -> None:
    """Waits until incidents of this kind name both formats and the remedy."""

    def names_formats() -> bool:
        messages = " ".join(one["message"] for one in incidents(worker, kind))
        return all(part in messages for part in ("record format 0,", "record format 1,", "MirrorMaker 2"))

    wait_until(names_formats, SETTLE_S, worker.tail)


def skip_range(url: str, body: dict[str, object]) -> bool:
    return bool(http("POST", url, body)[1].get("count"))


@pytest.mark.deep(minutes=0.3)
def test_records_in_old_formats_are_reported_with_a_remedy_and_later_records_are_processed(
    killable_stage: DemoStage, topic_name: str
) -> None:
    stage = killable_stage
    for cluster in (SOURCE, TARGET):
        asyncio.run(create_topic(stage.yard.bootstrap(cluster), topic_name, 1))
    first = make_batch(9, [(b"k", one.value()) for one in NEW[:5]], timestamp_ms=FIRST_MS)
    write_segment(stage.yard, SOURCE, topic_name, FORMAT_0 + FORMAT_1 + first)
    source, target = stage.yard.bootstrap(SOURCE), stage.yard.bootstrap(TARGET)
    asyncio.run(send(source, topic_name, NEW[5:]))
    assert asyncio.run(offset_at(source, topic_name, 1_000)) == 2, (
        "a reader by time starts at the old records"
    )
    assert asyncio.run(offset_at(source, topic_name, FIRST_MS)) == 9
    receiver = stage.receiver(GROUP, topic_name)
    worker = stage.worker()
    stage.deploy(worker, workload(GROUP, topic_name, SOURCE, receiver.address))
    stage.deploy(worker, route("copy", SOURCE, TARGET, topic_name))
    stage.deploy(worker, plan("all", topic_name))

    wanted = {message.id for message in NEW}
    wait_until(lambda: {one["id"] for one in stage.deliveries()} == wanted, SETTLE_S, worker.tail)
    letters = asyncio.run(read_all(source, f"{topic_name}__{GROUP}__dlq"))
    assert [one.value for one in letters] == [raw for _, _, raw in PIECES], "not a byte is lost"
    for magic, letter in enumerate(letters):
        headers = b" ".join(value for _, value in letter.headers).decode()
        assert f"record format {magic}, from before Kafka 0.11" in headers
        assert "MirrorMaker 2" in headers
    wait_until(lambda: incidents(worker, "undecodable"), SETTLE_S, worker.tail)

    skip = f"{worker.url}/api/v1/routes/copy/topics/{topic_name}/partitions/0/skip"
    for start, end, _ in PIECES:
        body = {"start": start, "end": end, "reason": "old", "execute": True}
        wait_until(partial(skip_range, skip, body), SETTLE_S, worker.tail)
    wait_reported(worker, "replica-stuck")
    wait_until(lambda: len(asyncio.run(read_all(target, topic_name))) == len(NEW), SETTLE_S, worker.tail)
    copied = asyncio.run(read_all(target, topic_name))
    assert [one.value for one in copied] == [one.value() for one in NEW]

    wait_until(lambda: window_counts(worker, topic_name).total() == len(NEW), SETTLE_S, worker.tail)
    wait_reported(worker, "audit-damage")
    assert worker.running
