"""A message that is due or stamped far in the future blocks no other, and is never early."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.dispatch.model.delayed_delivery import LEVELS_MS
from app.dispatch.model.outcome import Action, DeliveryDecision
from app.dispatch.model.retry_headers import (
    ATTEMPT,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    POSTPONED_TO,
    REASON,
    RETRY_COUNT,
    TIER,
    TIER_ATTEMPT,
)
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.clients import TargetClients
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.settings import create_delayed
from app.kafka.append.producer import Producer
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from app.kernel.job import JobId, Kind
from switchyard.receiver import Message, Receiver, Retry
from tests.dispatch.pump.rig import TOPIC, DispatchRig, definition, dispatch_rig, numbers, start_at

CONTRACTS = ["unary", "stream"]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DELAYED = "orders__billing__delayed"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def not_before(at_ms: int) -> list[tuple[str, bytes]]:
    return [("not-before", str(at_ms).encode())]


def plain(rig: DispatchRig) -> list[int]:
    return sorted(int(message.value) for message in rig.seen)


# -- copying away ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [8 * HOUR_MS, DAY_MS + 1_000])
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_that_is_due_in_days_stops_no_partition(contract: str, delay_ms: int) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}) as rig:
        pump = rig.pump(capacity=100)
        began_ms = now_ms()
        due_ms = began_ms + delay_ms
        rig.feed(pump, numbers(1), headers=[("h", b"x"), *not_before(due_ms)], timestamp_ms=began_ms)
        rig.feed(pump, numbers(400, 1))
        await rig.idle()

        assert plain(rig) == list(range(1, 401))
        ((topic, _, value, headers),) = rig.copied.records
        assert (topic, value) == (DELAYED, b"0")
        assert rig.copied.partitions == [4 if delay_ms < DAY_MS else 5]  # 6 h, 24 h
        fields = {ORIGIN_TOPIC: b"orders", ORIGIN_OFFSET: b"0", ATTEMPT: b"0", RETRY_COUNT: b"0"}
        fields[ORIGIN_PARTITION] = b"0"
        fields |= {ORIGIN_TIMESTAMP: str(began_ms).encode(), POSTPONED_TO: str(due_ms).encode()}
        assert headers == {"h": b"x", "not-before": str(due_ms).encode(), **fields}


async def test_thousands_of_messages_due_in_days_stop_no_partition_and_take_no_memory() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(3_000), headers=not_before(now_ms() + 2 * HOUR_MS))
        rig.feed(pump, numbers(10, 3_000))
        await rig.until(lambda: pump.delivered == 10)

        assert plain(rig) == list(range(3_000, 3_010))
        assert len(rig.copied.records) >= 2_910
        assert pump.tracker.unfinished < 100


async def test_a_message_that_is_due_within_seconds_waits_in_place_and_is_delivered_on_time() -> None:
    came: list[int] = []

    async with dispatch_rig(lambda _: came.append(now_ms())) as rig:
        pump = rig.pump(capacity=20)
        due_ms = now_ms() + 700
        rig.feed(pump, numbers(100), headers=not_before(due_ms))
        await rig.idle()

        assert min(came) >= due_ms
        assert len(came) == 100
        assert not rig.copied.records


async def test_large_waiting_messages_are_copied_away_before_the_tracker_is_full() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        for _ in range(10):
            rig.feed(pump, [(None, bytes(500_000))] * 10, headers=not_before(now_ms() + HOUR_MS))
        await rig.until(lambda: len(rig.copied.records) >= 40)


async def test_with_an_order_by_key_a_waiting_message_stays_other_keys_flow_and_trouble_is_reported() -> None:
    async with dispatch_rig(lambda _: None, ordering="key") as rig:
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(1, keys=2), headers=not_before(now_ms() + 2 * DAY_MS))
        rig.feed(pump, numbers(300, 1, keys=2))
        await rig.until(lambda: pump.troubles.words != "" and pump.tracker.room <= 10 and not pump.in_flight)

        assert "the message at 0 is not due before" in pump.troubles.words
        assert "order" in pump.troubles.words
        assert 90 <= pump.tracker.unfinished <= 100
        assert plain(rig) == list(range(1, 2 * len(rig.seen), 2))
        assert not rig.copied.records


async def test_a_key_that_waits_for_its_time_does_not_stop_other_keys() -> None:
    came: list[int] = []

    async with dispatch_rig(lambda message: came.append(int(message.value)), ordering="key") as rig:
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(1, keys=50), headers=not_before(now_ms() + HOUR_MS))
        rig.feed(pump, numbers(1_500, 1, keys=50))
        await rig.until(lambda: len(came) == 1_470 and pump.tracker.unfinished == 31)
        assert pump.troubles.words == ""
        assert all(number % 50 for number in came)

        assert pump.finish_by_operator(0, DeliveryDecision(Action.ACK, None, 0.0, "an operator skips it"))
        await rig.idle()
        assert came[1_470:] == list(range(50, 1_501, 50))
        assert pump.tracker.limit == 100
        assert not rig.copied.records


async def test_a_paused_partition_copies_no_message_away_until_it_resumes() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump(capacity=20)
        rig.feed(pump, numbers(15), headers=not_before(now_ms() + HOUR_MS))
        pump.pause(True)
        rig.feed(pump, numbers(50, 15))
        await asyncio.sleep(0.1)
        assert not rig.copied.records
        pump.pause(False)
        await rig.until(lambda: len(rig.seen) == 50)


async def test_while_the_cluster_takes_no_copies_the_trouble_is_reported_and_no_message_is_lost() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        rig.copied.refuse = True
        pump = rig.pump(capacity=20)
        rig.feed(pump, numbers(1), headers=not_before(now_ms() + HOUR_MS))
        rig.feed(pump, numbers(50, 1))
        await rig.until(lambda: "no copy in " + DELAYED in pump.troubles.words)
        assert pump.tracker.base == 0
        rig.copied.refuse = False
        await rig.idle()

        assert plain(rig) == list(range(1, 51))
        assert rig.copied.values("delayed") == [b"0"]
        assert pump.troubles.words == ""


# -- coming back ---------------------------------------------------------------------------------------


def delayed_headers(due_ms: int, offset: int = 7, **more: object) -> list[tuple[str, bytes]]:
    fields: dict[str, object] = {
        ORIGIN_TOPIC: TOPIC, ORIGIN_PARTITION: 3, ORIGIN_OFFSET: offset, ORIGIN_TIMESTAMP: 1_000,
        ATTEMPT: 0, RETRY_COUNT: 0, POSTPONED_TO: due_ms, **more,
    }  # fmt: skip
    return [(name, str(value).encode()) for name, value in fields.items()]


async def test_a_message_returns_from_its_level_when_it_is_due_with_its_first_place() -> None:
    came: list[int] = []

    async with dispatch_rig(lambda _: came.append(now_ms())) as rig:
        pump = rig.pump(0, delayed=True)
        level_ends_ms = now_ms() + 300
        due_ms = now_ms() + 600
        rig.feed(pump, numbers(1), headers=delayed_headers(due_ms), timestamp_ms=level_ends_ms - LEVELS_MS[0])
        soon = delayed_headers(now_ms() - 5)
        rig.feed(pump, numbers(1, 1), headers=soon, timestamp_ms=level_ends_ms - LEVELS_MS[0])
        await rig.idle()

        assert plain(rig) == [0, 1]
        assert min(came) >= level_ends_ms
        assert max(came) >= due_ms
        assert {(m.topic, m.partition, m.offset, m.attempt) for m in rig.seen} == {("orders", 3, 7, 1)}


async def test_a_full_level_copies_messages_to_the_longest_level_that_ends_in_time() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump(4, delayed=True, capacity=20)
        long_ago_ms = now_ms() - LEVELS_MS[4]
        headers = delayed_headers(now_ms() + 90 * 60_000)
        rig.feed(pump, numbers(100), headers=headers, timestamp_ms=long_ago_ms)
        rig.feed(pump, numbers(5, 100), headers=delayed_headers(now_ms()), timestamp_ms=long_ago_ms)
        await rig.until(lambda: len(rig.seen) == 5)

        assert set(rig.copied.partitions) == {3}
        assert {topic for topic, *_ in rig.copied.records} == {DELAYED}
        assert dict(rig.copied.records[0][3]) == dict(headers)


async def test_a_message_from_a_retry_tier_keeps_its_tier_and_attempts() -> None:
    tiers = [{"delay": "1m", "attempts": 2}, {"delay": "10m", "attempts": 3}]
    async with dispatch_rig(lambda _: Retry(), retry=tiers) as rig:
        tier = rig.pump(0, tier=1, capacity=10)
        fields: dict[str, object] = {
            TIER: 1,
            TIER_ATTEMPT: 1,
            RETRY_COUNT: 3,
            ATTEMPT: 4,
            REASON: "it failed",
        }
        headers = delayed_headers(now_ms() + HOUR_MS, **fields)
        rig.feed(tier, numbers(10), headers=headers, timestamp_ms=now_ms() - HOUR_MS)
        await rig.until(lambda: bool(rig.copied.records))
        kept = rig.copied.records[0][3]
        assert dict(headers) == kept

        rig.copied.records.clear()
        pump = rig.pump(0, delayed=True)
        back = [(name, value) for name, value in kept.items() if value is not None and name != POSTPONED_TO]
        rig.feed(pump, numbers(1, 50), headers=back, timestamp_ms=now_ms() - HOUR_MS)
        await rig.until(lambda: b"50" in rig.copied.values("retry_2"))
        again = next(headers for *_, value, headers in rig.copied.records if value == b"50")
        assert (again[TIER_ATTEMPT], again[ATTEMPT], again[RETRY_COUNT]) == (b"2", b"5", b"4")


# -- future timestamps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_timestamp_in_the_future_does_not_extend_the_workloads_delay(contract: str) -> None:
    early: list[int] = []
    fed_ms = 0

    def handle(message: Message) -> None:
        if now_ms() < fed_ms + 300:
            early.append(message.offset)

    async with dispatch_rig(handle, target={"contract": contract}, delay="300ms") as rig:
        pump = rig.pump()
        fed_ms = now_ms()
        rig.feed(pump, numbers(600), timestamp_ms=fed_ms + 400 * DAY_MS)
        rig.feed(pump, numbers(10, 600))
        await rig.idle()

        assert not early
        assert len(rig.seen) == 610


# -- a changed capacity --------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_larger_tracker_delivers_no_message_early(contract: str) -> None:
    early: list[int] = []
    due_ms = now_ms() + 60_000

    def handle(message: Message) -> None:
        if now_ms() < due_ms:
            early.append(message.offset)

    async with dispatch_rig(handle, target={"contract": contract}) as rig:
        pump = rig.pump(capacity=5)
        due_ms = now_ms() + 1_000
        rig.feed(pump, numbers(60), headers=not_before(due_ms))
        await rig.until(lambda: pump.status().postponed == 5)
        pump.tracker.capacity = 50
        pump.refill()
        rig.runtime.send()
        await rig.until(lambda: pump.status().postponed == 50)
        await rig.idle()

        assert not early
        assert len(rig.seen) == 60


# -- a receiver's wish ---------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_retry_waits_as_long_as_the_receiver_requested(contract: str) -> None:
    requested_ms: dict[bytes, int] = {}
    came_ms: dict[bytes, int] = {}

    def handle(message: Message) -> Any:
        if message.attempt > 1:
            came_ms[message.value] = now_ms()
            return None
        requested_ms[message.value] = now_ms()
        return Retry(after=0.8) if message.value == b"0" else Retry()

    tiers = [{"delay": "100ms", "attempts": 3}]
    async with dispatch_rig(handle, target={"contract": contract}, retry=tiers) as rig:
        main, tier = rig.pump(), rig.pump(0, tier=0)
        rig.feed(main, numbers(2))
        await rig.until(lambda: len(rig.copied.records) == 2)
        for _, key, value, headers in sorted(rig.copied.records, key=lambda record: record[2] or b""):
            fields = [(name, content) for name, content in headers.items() if content is not None]
            rig.feed(tier, [(key, value)], headers=fields)
        await rig.until(lambda: b"1" in came_ms)
        assert b"0" not in came_ms or came_ms[b"1"] <= came_ms[b"0"]
        await rig.idle()

        assert came_ms[b"0"] >= requested_ms[b"0"] + 800


# -- on real Kafka -------------------------------------------------------------------------------------


async def test_on_real_kafka_messages_pass_through_levels_and_are_delivered_once_and_never_early(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels_ms = (200, 500, 1_000, 2_000, 4_000, 8_000)
    for module in ("app.dispatch.model.delayed_delivery", "app.dispatch.pump.ready_queue"):
        monkeypatch.setattr(f"{module}.LEVELS_MS", levels_ms)
    monkeypatch.setattr("app.dispatch.pump.delayed_messages.SOON_MS", levels_ms[0])
    came_ms: dict[bytes, int] = {}
    seen: list[Message] = []
    receiver = Receiver()

    @receiver.on(topic=topic_name, group="billing")
    def handle(message: Message) -> None:
        seen.append(message)
        came_ms[message.value] = now_ms()

    pumps: dict[Any, DispatchPump] = {}

    async def deliver(item: object) -> None:
        assert isinstance(item, FetchedBatches), item
        pumps[item.key].accept(item)

    async with AsyncExitStack() as stack:
        rig = DispatchRig(handle)
        port = await receiver.start()
        stack.push_async_callback(receiver.stop, 0)
        client = ClusterClient(ClusterSpec("east", (bootstrap,)))
        producer, fetch = Producer(client.spec), FetchService(client, deliver, ByteBudget(1 << 26))
        for part in (client, producer, fetch):
            await part.start()
            stack.push_async_callback(part.stop)
        workload = definition(f"127.0.0.1:{port}")
        metadata = workload.metadata.model_copy(update={"topic": topic_name})
        workload = workload.model_copy(update={"metadata": metadata})
        await ensure_topics(client, [TopicSpec(topic_name, 1)])
        runtime = WorkloadRuntime(
            workload, TargetClients("w1"), producer, rig.lease, lambda: create_delayed(client, workload)
        )
        stack.push_async_callback(runtime.close)

        def pump(topic: str, partition: int) -> DispatchPump:
            job = JobId(Kind.DISPATCH, workload.key, topic, partition)
            is_merged = topic != topic_name
            made = DispatchPump(job, 1, runtime, start_at(0), tier=None, merged=is_merged)
            made.tracker.capacity = 20
            pumps[topic, partition] = made
            fetch.add((topic, partition), topic, partition, 0)
            stack.callback(made.close)
            return made

        began_ms = now_ms()
        dues_ms = [began_ms + 12_000 + number * 7 for number in range(200)]  # the others have arrived by then
        headers = [not_before(due_ms) for due_ms in dues_ms] + [[]] * 100
        rows = [(b"%d" % number, [*of]) for number, of in enumerate(headers)]
        await asyncio.gather(*(producer.send(topic_name, None, value, [*of]) for value, of in rows))
        main = pump(topic_name, 0)
        await rig.until(lambda: all(b"%d" % number in came_ms for number in range(200, 300)))
        assert min(dues_ms) > max(came_ms[b"%d" % number] for number in range(200, 300))
        levels = [pump(workload.delayed_topic(), partition) for partition in range(len(levels_ms))]
        await rig.until(lambda: len(came_ms) == 300)

        assert all(came_ms[b"%d" % number] >= due_ms for number, due_ms in enumerate(dues_ms))
        await rig.until(lambda: main.tracker.base == 300 and all(level.tracker.idle for level in levels))
        assert sorted(message.offset for message in seen) == list(range(300))
        assert {(message.topic, message.attempt) for message in seen} == {(topic_name, 1)}
