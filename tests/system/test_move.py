"""A workload's topic moves to another cluster under load: receivers get every message, few of them twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.dev.demo.stage import DemoStage, http, route, wait_until
from app.dev.demo.traffic import SentMessage, create_topic, messages, produce, read_all
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from app.kernel.clock import now_ms
from tests.system.test_delivery import CLUSTER, GROUP, SETTLE_S, DeliveryScenario, wait_even_spread
from tests.system.test_operators import Operator, switchyard

pytestmark = pytest.mark.system

TARGET = "east-regional"
BEFORE, AFTER, PER_SECOND = 1_800, 400, 300
RATE, FAST_RATE = (
    30,
    2_000,
)  # while it moves, far below the producers' rate, so that messages are unfinished; and afterwards
MARGIN_S = 0.5


@contextmanager
def copier(source: str, target: str, topic: str, partitions: int) -> Iterator[None]:
    """Copies the topic, partition to partition with its timestamps, while the block lasts."""
    stop = threading.Event()

    async def copy() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=source, auto_offset_reset="earliest")
        async with consumer, AIOKafkaProducer(bootstrap_servers=target, acks="all", linger_ms=5) as producer:
            consumer.assign([TopicPartition(topic, p) for p in range(partitions)])
            while not stop.is_set():
                for at, records in (await consumer.getmany(timeout_ms=100)).items():
                    for record in records:
                        await producer.send(
                            topic, record.value, record.key, at.partition, record.timestamp,
                            headers=list(record.headers),
                        )  # fmt: skip
            await producer.flush()

    thread = threading.Thread(target=lambda: asyncio.run(copy()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def commit(bootstrap: str, offsets: dict[tuple[str, int], int]) -> None:
    async def write() -> None:
        client = ClusterClient(ClusterSpec("test", (bootstrap,)))
        await client.start()
        try:
            assert await OffsetCommitter(client).commit(GROUP, offsets) == {}
        finally:
            await client.stop()

    asyncio.run(write())


@pytest.mark.deep(minutes=1.2)
def test_receivers_miss_no_message_when_a_topic_moves_to_another_cluster(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(stage, topic_name, BEFORE)
    source_bootstrap, target_bootstrap = scenario.bootstrap, stage.yard.bootstrap(TARGET)
    asyncio.run(create_topic(target_bootstrap, topic_name, scenario.partitions))
    first, second = stage.worker(), stage.worker()
    definition = scenario.definition(
        retry=[{"delay": "10s", "attempts": 3}], flow={"max_inflight": 50, "messages_per_second": RATE}
    )
    stage.deploy(first, definition)
    wait_even_spread(first, 8)
    key = f"{GROUP}/{topic_name}"
    with copier(source_bootstrap, target_bootstrap, topic_name, scenario.partitions):
        asyncio.run(produce(source_bootstrap, topic_name, scenario.sent, per_second=PER_SECOND))
        fresh = list(messages(AFTER, prefix="fresh"))
        asyncio.run(produce(target_bootstrap, topic_name, fresh))  # the producers have switched
        wait_until(
            lambda: ends(target_bootstrap, topic_name) == BEFORE + AFTER,
            SETTLE_S,
            lambda: str(ends(target_bootstrap, topic_name)),
        )
    # The target has commits of the same group, beyond the mapped position and before it.
    commit(target_bootstrap, {(topic_name, 0): 540, (topic_name, 1): 0})

    command = ["workload", "move", key, "--to", TARGET, "--margin", f"{MARGIN_S}s", "--force", "-o", "json"]
    foreseen = switchyard(first, *command)
    assert (foreseen["from"], foreseen["to"], foreseen["execute"]) == (CLUSTER, TARGET, False)
    assert foreseen["unfinished"] > 0, "all was delivered before the move: the test shows nothing"
    operator = Operator(scenario, first)
    assert operator.acts("moving") == [], "a preview changes nothing"

    # The worker that moves it first is killed: the workload stays in the source, paused. The other moves it.
    status, answer = http("POST", f"{second.url}/api/v1/workloads/{key}/move", body(execute=True))
    assert status == 202, answer
    wait_until(lambda: operator.acts("moving"), SETTLE_S, second.tail, 0.01)
    second.kill()
    _, before_move = http("GET", operator.path)
    assert before_move["definition"]["metadata"]["cluster"] == CLUSTER, (
        "the kill came too late: the test shows nothing"
    )
    assert http("POST", f"{first.url}/api/v1/dlq/{key}/merge", {"execute": True})[0] in {404, 409}
    result = switchyard(first, *command, "--execute", "--yes")
    assert result["copied"] > 0, "nothing waited for retry: the test shows nothing"
    _, after_move = http("GET", operator.path)
    assert after_move["definition"]["metadata"]["cluster"] == TARGET
    assert http("POST", f"{first.url}/api/v1/workloads/{key}/move", body())[0] == 409, "it has moved already"

    definition["metadata"]["cluster"] = TARGET
    definition["spec"]["flow"]["messages_per_second"] = FAST_RATE
    stage.deploy(first, definition)
    scenario.sent += fresh
    scenario.bootstrap = target_bootstrap
    report = scenario.settle()
    assert report.lost == (), report
    scenario.wait_committed()
    check_repetitions(scenario, result)
    (act,) = [item for item in operator.acts("operator-act") if item["action"] == "move"]
    assert act["subject"] == key
    # A changed definition, and another owner, continue at its position in the target.
    before = len(stage.deliveries())
    definition["spec"]["delay"] = "1ms"
    stage.deploy(first, definition)
    stage.worker()
    first.terminate()
    later = [SentMessage(m.id, "ok") for m in messages(50, prefix="later")]
    asyncio.run(produce(target_bootstrap, topic_name, later))
    wait_until(lambda: len(stage.deliveries()) >= before + 50, SETTLE_S, scenario._progress)
    assert {d["id"] for d in stage.deliveries()[before:]} == {m.id for m in later}


@pytest.mark.deep(minutes=0.7)
def test_along_a_route_a_move_begins_where_it_was_although_timestamps_do_not_rise(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(stage, topic_name, 0, partitions=1)
    target = stage.yard.bootstrap(TARGET)
    asyncio.run(create_topic(target, topic_name, 1))
    worker = stage.worker()
    checkpoint = {"every": "1s", "records": 50}
    stage.deploy(worker, route(f"r-{topic_name}"[:40], CLUSTER, TARGET, topic_name, checkpoint=checkpoint))
    stage.deploy(worker, scenario.definition())
    scenario.sent = [SentMessage(f"m-{n:04}", "ok") for n in range(301)]
    ago_ms = now_ms() - 600_000
    write_at(scenario, {message: ago_ms + n for n, message in enumerate(scenario.sent[:300])})
    wait_until(lambda: len(stage.deliveries()) == 300, SETTLE_S, worker.tail)
    operator, key = Operator(scenario, worker), f"{GROUP}/{topic_name}"
    wait_until(lambda: committed(scenario) == 300, SETTLE_S, worker.tail)
    command = ["workload", "move", key, "--to", TARGET, "--margin", "0s", "-o", "json"]
    # An offset sync comes at that position, unless the next record follows within its second.
    wait_until(lambda: switchyard(worker, *command)["again"] <= 3, SETTLE_S, worker.tail)
    assert http("POST", f"{operator.path}/pause", {})[0] == 200
    write_at(scenario, {scenario.sent[300]: ago_ms - 3_600_000})
    wait_until(lambda: ends(target, topic_name) == 301, SETTLE_S, worker.tail)
    wait_until(lambda: switchyard(worker, *command)["again"] <= 3, SETTLE_S, worker.tail)
    assert switchyard(worker, *command)["partitions"][0]["by"] == "offset syncs"
    moved = switchyard(worker, *command, "--execute", "--yes")
    assert http("POST", f"{operator.path}/resume", {})[0] == 200, "it stays paused when it moves"
    wanted = {message.id for message in scenario.sent}
    wait_until(lambda: {d["id"] for d in stage.deliveries()} == wanted, SETTLE_S, worker.tail)
    assert len(stage.deliveries()) - 301 <= moved["again"] <= 3


def write_at(scenario: DeliveryScenario, sent: Mapping[SentMessage, int]) -> None:
    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=scenario.bootstrap, acks="all") as producer:
            for message, at_ms in sent.items():
                await producer.send_and_wait(
                    scenario.topic, message.value(), message.id.encode(), 0, timestamp_ms=at_ms
                )

    asyncio.run(write())


def committed(scenario: DeliveryScenario) -> int | None:
    async def ask() -> int | None:
        client = ClusterClient(ClusterSpec("test", (scenario.bootstrap,)))
        await client.start()
        try:
            return (await OffsetCommitter(client).committed(GROUP, [(scenario.topic, 0)]))[scenario.topic, 0]
        finally:
            await client.stop()

    return asyncio.run(ask())


def body(**rest: Any) -> dict[str, Any]:
    return {"to": TARGET, "margin": f"{MARGIN_S}s", "force": True, **rest}


def ends(bootstrap: str, topic: str) -> int:
    return len(asyncio.run(read_all(bootstrap, topic)))


def check_repetitions(scenario: DeliveryScenario, moved: dict[str, Any]) -> None:
    """Repetitions lie within the margin, or were in flight at the kill."""
    done = Counter(d["id"] for d in scenario.stage.deliveries() if d["outcome"] == "ok")
    repeated = {name: count for name, count in done.items() if count > 1}
    assert len(repeated) <= moved["again"] + 2 * 50, (len(repeated), moved["again"])
    assert moved["again"] <= 4 * (MARGIN_S * PER_SECOND + 50), moved
    letters = [
        orjson.loads(r.value)["id"]
        for r in asyncio.run(read_all(scenario.bootstrap, f"{scenario.topic}__{GROUP}__dlq"))
    ]
    poison = {m.id for m in scenario.sent if m.behaviour == "poison"}
    assert set(letters) == poison
