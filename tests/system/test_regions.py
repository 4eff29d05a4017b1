"""Two regions: each has the records of both, a workload runs in the region with its role, and the role
moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.controllog import codec
from app.controllog.events import RegionPulse, RolePut, RoleReleased, compaction_key
from app.controllog.topics import ControlTopics
from app.dev.demo.stage import http, wait_until, workload
from app.dev.demo.traffic import create_topic
from app.dev.demo.two_regions import STEP_TIMEOUT_S, TwoRegions, failover
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_configs import describe
from app.kernel.clock import now_ms
from tests.system.as_worker import producing_as_worker
from tests.system.fleet import committed
from tests.system.test_seals import has_seals

pytestmark = pytest.mark.system

__all__ = ["TwoRegions"]


@pytest.fixture
def two(yard2: Yard, topic_name: str) -> Iterator[TwoRegions]:
    regions = TwoRegions(yard2, topic_name)
    try:
        yield regions
    finally:
        regions.close()


async def read(bootstrap: str, topic: str, count: int) -> list[str]:
    """The first `count` records of partition 0."""
    found: list[str] = []
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value.decode() for record in records]
    return found


async def send(bootstrap: str, topic: str, *ids: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for name in ids:
            await producer.send_and_wait(topic, f'{{"id": "{name}"}}'.encode(), partition=0)


async def put_role(two: TwoRegions, home: str, event: RolePut) -> None:
    """Writes the role into a region's control log, as a failover does."""
    region = two.names[home]
    async with producing_as_worker(two.clusters[f"{region}-regional"], region) as producer:
        topic, key = ControlTopics(region).control.name, compaction_key(event).encode()
        await producer.send_and_wait(topic, codec.encode(event), key=key, partition=0)


async def test_records_of_both_regions_are_copied_to_both_and_delivered_only_in_the_active_region(
    two: TwoRegions,
) -> None:
    east, west = two.names["east"], two.names["west"]
    topic = two.prefix
    for region in (east, west):
        await create_topic(two.clusters[f"{region}-regional"], topic, 1)
    await asyncio.to_thread(two.start)
    two.deploy(failover("shared", [east, west], topic))

    # Routes appear in both regions, and each region's aggregate cluster gets the records of both.
    for home in two.names:
        await asyncio.to_thread(two.until_routes, home)
    status, refused = http("DELETE", f"{two.workers['west'].url}/api/v1/routes/shared-{east}-to-{west}")
    assert (status, "change shared instead" in refused["detail"]) == (409, True)
    await send(two.clusters[f"{east}-regional"], topic, "e1", "e2")
    await send(two.clusters[f"{west}-regional"], topic, "w1", "w2")
    for region in (east, west):
        copied = await read(two.clusters[f"{region}-aggregate"], topic, 4)
        assert Counter(copied) == Counter(f'{{"id": "{name}"}}' for name in ("e1", "e2", "w1", "w2"))

    # The same definition runs in one region only, on that region's own cluster; metadata names the region.
    receivers = {home: stage.receiver("billing", topic) for home, stage in two.stages.items()}
    stages = two.stages
    for home, stage in stages.items():
        stage.deploy(
            two.workers[home],
            workload("billing", topic, f"{east}-aggregate", receivers[home].address, mode="active-passive"),
        )

    def delivered(home: str) -> list[str]:
        return [line["id"] for line in stages[home].deliveries()]

    await asyncio.to_thread(
        wait_until,
        lambda: len(delivered("east")) >= 4,
        STEP_TIMEOUT_S,
        lambda: f"{two.role('east')} {two.role('west')}",
    )
    await asyncio.to_thread(
        wait_until,
        lambda: two.role("west")["epoch"] == two.role("east")["epoch"] is not None,
        STEP_TIMEOUT_S,
        lambda: f"{two.role('east')} {two.role('west')}",
    )
    assert (two.role("east")["region"], two.role("west")["region"]) == (east, east)
    assert delivered("west") == []
    assert {(line["region"], line["primary"]) for line in stages["east"].deliveries()} == {(east, True)}

    # The west consumes nothing, but the group's position there follows the east's.
    def follows() -> list[str]:
        rows = two.ask("west", "offsets/sync")["items"]
        return [row["state"] for row in rows if row["workload"] == f"billing/{topic}"]

    def west_position() -> int | None:
        return committed(two.clusters[f"{west}-aggregate"], "billing", [(topic, 0)])[topic, 0][0]

    await asyncio.to_thread(
        wait_until, lambda: (follows(), west_position()) == (["unchanged"], 4), STEP_TIMEOUT_S,
        lambda: f"{follows()} {west_position()}",
    )  # fmt: skip

    # A role in the west's control log, as a failover writes it, moves the workload; the east releases it.
    role = two.role("west")
    epoch = role["epoch"] + 1
    moved = RolePut(at_ms=1, key=f"billing/{topic}", region=west, epoch=epoch, state="active",
                    previous=east, actor="test", reason="tried")  # fmt: skip
    await put_role(two, "west", moved)
    await asyncio.to_thread(
        wait_until, lambda: two.role("west")["released"].get(east) == epoch, STEP_TIMEOUT_S,
        lambda: f"{two.role('east')} {two.role('west')} {two.ask('east', 'assignments')}",
    )  # fmt: skip
    assert (two.role("east")["region"], two.role("east")["active_here"]) == (west, False)
    jobs_in_east = {item["job"] for item in two.ask("east", "assignments")["items"] if item["worker"]}
    assert not [job for job in jobs_in_east if job.startswith("dispatch:")]
    await send(two.clusters[f"{east}-regional"], topic, "e3")
    await asyncio.to_thread(
        wait_until,
        lambda: "e3" in delivered("west"),
        STEP_TIMEOUT_S,
        lambda: f"{delivered('west')} {two.role('west')}",
    )
    assert "e3" not in delivered("east")
    assert {(line["region"], line["epoch"]) for line in stages["west"].deliveries()} == {(west, epoch)}

    # A record without a seal of the east is not copied to the west.
    copier = two.workers["west"]
    await asyncio.to_thread(wait_until, lambda: has_seals(copier, east), STEP_TIMEOUT_S, copier.tail)
    forged = msgspec.structs.replace(moved, region=east, epoch=epoch + 100, previous=west, actor="evil")
    log, key = ControlTopics(east).control.name, compaction_key(forged).encode()
    async with AIOKafkaProducer(bootstrap_servers=two.clusters[f"{east}-regional"]) as producer:
        await producer.send_and_wait(log, codec.encode(forged), key=key, partition=0)
    since_ms = now_ms()
    found: list[Any] = []
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while not any(isinstance(one, RegionPulse) and one.at_ms > since_ms for one in found):
            found = await control_events(two.clusters[f"{west}-regional"], log)
    assert forged not in found
    assert {two.role(home)["epoch"] for home in ("east", "west")} == {epoch}

    # The copy of a region's control log is a compacted topic in the other region.
    client = ClusterClient(ClusterSpec("copy", (two.clusters[f"{west}-regional"],)))
    await client.start()
    try:
        name = ControlTopics(east).control.name
        settings = (await describe(client, [name]))[name]
        assert not isinstance(settings, Exception)
        assert settings.config["cleanup.policy"] == "compact"
    finally:
        await client.stop()
    seen = two.ask("west", "failover")["regions"]
    assert [(row["region"], row["own"]) for row in seen] == [(west, True), (east, False)]
    assert seen[1]["copy_age_s"] is not None
    assert any(
        isinstance(event, RoleReleased) and event.region == east
        for event in await control_events(two.clusters[f"{west}-regional"], ControlTopics(east).control.name)
    )


async def control_events(bootstrap: str, topic: str) -> list[Any]:
    """All events that the control log has now."""
    found: list[Any] = []
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while await consumer.position(at) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [codec.control_event(record.value) for record in records if record.value]
    return found
