"""A workload continues in another region behind the messages that the first one finished, even out of order.

It does so while the first region runs, and after it was lost as a whole.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer

from app.controllog import codec
from app.controllog.events import RolePut, compaction_key
from app.controllog.topics import ControlTopics
from app.dev.demo.stage import wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from app.dev.demo.two_regions import STEP_TIMEOUT_S, TwoRegions, failover
from app.dev.yard import Yard
from app.kernel.ranges import Snapshot
from switchyard.receiver import Message, Receiver
from tests.system.as_worker import producing_as_worker

pytestmark = pytest.mark.system

GROUP, PARTITIONS, RECORDS = "billing", 2, 300  # records that each region's producers write at once


class RegionReceiver:
    """A region's receiver: counts the messages that it answered, and leaves some without an answer."""

    def __init__(self, topic: str) -> None:
        self.handled: Counter[str] = Counter()
        self.unanswered: set[str] = set()
        self.receiver = Receiver()
        self.receiver.on(topic=topic, group=GROUP)(self._handle)
        self.address = ""

    async def _handle(self, message: Message) -> None:
        name = str(json.loads(message.value)["id"])
        if name in self.unanswered:
            await asyncio.Event().wait()
        self.handled[name] += 1


@asynccontextmanager
async def serving_receivers(topic: str) -> AsyncIterator[dict[str, RegionReceiver]]:
    async with AsyncExitStack() as stack:
        receivers = {home: RegionReceiver(topic) for home in ("east", "west")}
        for receiver in receivers.values():
            receiver.address = f"127.0.0.1:{await receiver.receiver.start()}"
            stack.push_async_callback(receiver.receiver.stop, 0)
        yield receivers


async def send(two: TwoRegions, home: str, topic: str, *names: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=two.bootstrap(home, "regional")) as producer:
        sent = [
            await producer.send(topic, json.dumps({"id": name}).encode(), partition=at % PARTITIONS)
            for at, name in enumerate(names)
        ]
        await asyncio.gather(*sent)


async def table(two: TwoRegions, region: str, home: str, name: str, keys: str) -> list[bytes]:
    """The newest record of each key with `keys` in it, in a home's copy of a region's table."""
    topic = ControlTopics(two.names[region]).changelog(name, 0).name
    records = await read_all(two.bootstrap(home, "regional"), topic)
    return list(
        {
            record.key: record.value for record in records if record.value and keys.encode() in record.key
        }.values()
    )


async def reported_progress(two: TwoRegions, region: str, home: str, topic: str) -> list[int]:
    """Messages finished in the main topic, and the sum of source ends in the offset map, as a home knows them
    of a region."""
    jobs = [
        codec.tracker_record(one)
        for one in await table(two, region, home, "trackers", f"{GROUP}/{topic}:{topic}:")
    ]
    snapshots = [Snapshot.from_bytes(job.snapshot) for job in jobs if job.snapshot]
    lines = [
        codec.checkpoint_line(one) for one in await table(two, region, home, "checkpoints", f"/{topic}/")
    ]
    return [
        sum(one.base + sum(end - start for start, end in one.finished) for one in snapshots),
        sum(line.barriers[-1].source_end for line in lines),
    ]


async def wait_progress(two: TwoRegions, region: str, home: str, topic: str, *wanted: int) -> None:
    """Waits until a home knows this progress of a region."""
    found: list[int] = []
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while found != list(wanted):
                await asyncio.sleep(0.3)
                found = await reported_progress(two, region, home, topic)
    except TimeoutError:
        raise AssertionError(f"{home} knows progress {found} of {region}, not {wanted}") from None


async def put_active_role(two: TwoRegions, home: str, topic: str) -> int:
    """Writes the last record of a failover in the region that is to act; returns the role's epoch."""
    region = two.names[home]
    epoch = two.role(home)["epoch"] + 1
    other = next(name for name in two.names.values() if name != region)
    event = RolePut(at_ms=1, key=f"{GROUP}/{topic}", region=region, epoch=epoch, state="active",
                    previous=other, actor="test", reason="tried")  # fmt: skip
    async with producing_as_worker(two.bootstrap(home, "regional"), region) as producer:
        log = ControlTopics(region).control.name
        await producer.send_and_wait(
            log, codec.encode(event), key=compaction_key(event).encode(), partition=0
        )
    return int(epoch)


@pytest.mark.deep(minutes=1.7)
async def test_messages_finished_out_of_order_in_one_region_are_not_delivered_again_in_the_other(
    killable_yard: Yard, topic_name: str
) -> None:
    killable_yard.up(regions=2)
    topic, two = topic_name, TwoRegions(killable_yard, topic_name)
    for stage in two.stages.values():
        stage.settings["worker"] = {"grace": "1s"}
    try:
        async with serving_receivers(topic) as receivers:
            await check_both_directions(two, topic, receivers)
    finally:
        await asyncio.to_thread(two.close)


async def check_both_directions(two: TwoRegions, topic: str, receivers: dict[str, RegionReceiver]) -> None:
    east, west = receivers["east"], receivers["west"]
    for home in two.names:
        await create_topic(two.bootstrap(home, "regional"), topic, PARTITIONS)
    await asyncio.to_thread(two.start)
    two.deploy(failover("shared", list(two.names.values()), topic))
    for home, stage in two.stages.items():
        definition = workload(
            GROUP, topic, f"{two.names['east']}-aggregate", receivers[home].address, mode="active-passive",
            start="latest", target={"timeout": "10m"}, flow={"max_inflight": 256},
        )  # fmt: skip
        await asyncio.to_thread(stage.deploy, two.workers[home], definition)
    for home in two.names:
        await asyncio.to_thread(two.until_routes, home)
    await asyncio.to_thread(
        wait_until,
        lambda: two.roles("west") and two.role("west")["region"] == two.names["east"],
        STEP_TIMEOUT_S,
        lambda: f"{two.roles('west')}",
    )

    def running_jobs() -> list[str]:
        items = two.ask("east", "assignments?limit=1000")["items"]
        return [item["job"] for item in items if item["worker"] and item["job"].startswith("dispatch:")]

    await asyncio.to_thread(
        wait_until, lambda: len(running_jobs()) == PARTITIONS, STEP_TIMEOUT_S, lambda: f"{running_jobs()}"
    )

    # The east finishes the messages of both regions, but for some; the west learns of it.
    first = {home: [f"{home}-{at}" for at in range(RECORDS)] for home in two.names}
    east.unanswered = {f"{home}-{at}" for home in two.names for at in (7, 40, 41, 222)}
    for home, names in first.items():
        await send(two, home, topic, *names)
    unanswered_count = len(east.unanswered)
    await wait_handled(east, set(first["east"] + first["west"]) - east.unanswered)
    await wait_progress(two, "east", "west", topic, 2 * RECORDS - unanswered_count, 2 * RECORDS)
    await wait_progress(two, "west", "west", topic, 0, 2 * RECORDS)
    assert east.handled == Counter(set(first["east"] + first["west"]) - east.unanswered)

    # The west takes over while the east runs: it delivers only the unfinished and the new messages.
    west.unanswered = {"west-new-3", "east-new-4"}
    epoch = await put_active_role(two, "west", topic)
    await asyncio.to_thread(
        wait_until, lambda: two.role("west")["released"].get(two.names["east"]) == epoch, STEP_TIMEOUT_S,
        lambda: f"{two.role('west')}",
    )  # fmt: skip
    new = {home: [f"{home}-new-{at}" for at in range(20)] for home in two.names}
    for home, names in new.items():
        await send(two, home, topic, *names)
    expected = (east.unanswered | set(new["east"] + new["west"])) - west.unanswered
    await wait_handled(west, expected)
    assert west.handled == Counter(expected)
    assert sum(east.handled.values()) == 2 * RECORDS - unanswered_count

    # The west is lost as a whole; the east continues with its copies.
    everything = 2 * RECORDS + 40
    await wait_progress(two, "west", "east", topic, everything - 2, everything)
    await wait_progress(two, "east", "east", topic, 2 * RECORDS - unanswered_count, everything)
    before = Counter(east.handled)
    await asyncio.to_thread(two.lose, "west")
    remaining, east.unanswered = set(west.unanswered), set()
    await put_active_role(two, "east", topic)
    await send(two, "east", topic, "east-last-0", "east-last-1")
    await wait_handled(east, remaining | {"east-last-0", "east-last-1"} | set(before))
    assert east.handled - before == Counter(remaining | {"east-last-0", "east-last-1"})


async def wait_handled(receiver: RegionReceiver, expected: set[str]) -> None:
    """Waits until the receiver has handled all of these, and two seconds more for others."""
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while not expected <= receiver.handled.keys():  # noqa: ASYNC110 - the receiver changes it
            await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)
