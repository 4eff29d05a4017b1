"""A route between real workers that are killed and drained: the copy equals the source, record by record."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from app.dev.demo.stage import DemoStage, Process, http, route, wait_until
from app.dev.demo.traffic import create_topic
from app.replicate.pump.route_runtime import group_of
from tests.kafka.conftest import producing
from tests.system.compare_topics import compare_topics
from tests.system.fleet import assignments, committed, start_workers

pytestmark = pytest.mark.system

HOME, AWAY = "east-regional", "east-aggregate"
PARTITIONS = 4
ENOUGH_S = 150.0
SEED, LEAST = 6, 5_000


async def _produce(bootstrap: str, topic: str, ending: threading.Event) -> None:
    """Writes batches of all sizes and codecs until the end, and more than `LEAST` records."""
    chance, number = random.Random(SEED), 0
    while not ending.is_set() or number <= LEAST:
        codec = chance.choice([None, "lz4", "zstd", "gzip"])
        async with producing(
            bootstrap, max_batch_size=chance.choice([500, 16_000]), compression_type=codec
        ) as producer:
            for _ in range(20):
                for _ in range(chance.choice([5, 400])):
                    await producer.send(
                        topic,
                        None if number % 11 == 0 else b"%d" % number * (number % 9 + 1),
                        key=b"%d" % (number % 50),
                        partition=number % PARTITIONS,
                        headers=[("n", b"%d" % number)][: number % 2],
                    )
                    number += 1
                await asyncio.sleep(0.2)


def _route_status(worker: Process) -> dict[str, object]:
    status: dict[str, object] = http("GET", f"{worker.url}/api/v1/routes/copy")[1]["status"]
    return status


def _wait_copying(worker: Process) -> None:
    """Waits until every partition has an owner and the count of copies rises."""
    wait_until(lambda: len(assignments(worker)) == PARTITIONS, ENOUGH_S, lambda: str(assignments(worker)))
    before = _route_status(worker)["copied"]
    wait_until(
        lambda: _route_status(worker)["copied"] != before, ENOUGH_S, lambda: str(_route_status(worker))
    )


def test_a_copy_equals_its_source_after_workers_were_killed_and_drained(
    stage: DemoStage, topic_name: str
) -> None:
    home, away = stage.yard.bootstrap(HOME), stage.yard.bootstrap(AWAY)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    workers = start_workers(stage)
    stage.deploy(workers[0], route("copy", HOME, AWAY, topic_name))
    ending = threading.Event()
    producer = threading.Thread(target=lambda: asyncio.run(_produce(home, topic_name, ending)))
    producer.start()
    try:
        for kills in (True, False, True):
            _wait_copying(workers[-1])
            owners = Counter(dict(workers[0].jobs()))
            victim = max(workers, key=lambda worker: owners[worker.url])
            assert owners[victim.url], "the victim has no jobs"
            workers.remove(victim)
            workers.append(stage.worker())
            if kills:
                victim.kill()
            else:
                assert victim.terminate() == 0
    finally:
        ending.set()
        producer.join()
    worker = workers[0]
    at = [(topic_name, partition) for partition in range(PARTITIONS)]
    # An owner's reported lag may be older than the last records; committed positions are current.
    wait_until(
        lambda: all(done == end for done, end in committed(home, group_of("copy"), at).values()),
        ENOUGH_S, lambda: str(_route_status(worker)), 0.5,
    )  # fmt: skip
    comparison = asyncio.run(compare_topics(home, topic_name, away, topic_name))
    assert not comparison.differences, str(comparison)
    assert comparison.same > LEAST
    # A job of the worker killed last may be at its end already, and still without an owner.
    wait_until(
        lambda: _route_status(worker)["troubles"] == [], ENOUGH_S, lambda: str(_route_status(worker)), 0.5
    )
