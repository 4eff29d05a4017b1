"""Merging on real Kafka: exactly once, whatever is killed; nothing that is not wanted."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from aiokafka import AIOKafkaProducer

from app.core import retry_headers as names
from app.dlq.letter import MERGES
from app.dlq.merge import Merger, Superseded, UnknownOperation
from app.dlq.progress import Merge, Terms, stem
from app.dlq.query import Query
from app.dlq.read import NoQueue, queue_ends
from app.dlq.survey import foresee_merge
from app.kafka.clusters import ClusterClient, ClusterSpec
from app.yard import Yard
from tests.dlq.queues import GROUP, create, fill, headers, merged, numbers_of, of_topic

RATE = 100_000.0


async def merge(client: ClusterClient, topic: str, operation: str, terms: Terms | None = None) -> Merge:
    workload = of_topic(topic)
    ends = await queue_ends(client, workload.dlq_topic())
    return await Merger(client, workload, operation, rate=RATE).run(terms or Terms(), ends)


async def process(bootstrap: str, topic: str, rate: float) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.dlq.queues", bootstrap, topic, "op", str(rate),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_merge_killed_three_times_makes_every_copy_exactly_once(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 3)
    await fill(bootstrap, workload, range(4000))
    reached = 0
    for kill_at in (500, 1500, 2500):
        running = await process(bootstrap, topic_name, 2000)
        assert running.stdout is not None
        async for line in running.stdout:
            state = json.loads(line)
            assert state["looked_at"] >= reached, "what was acknowledged is not done again"
            reached = state["looked_at"]
            if reached >= kill_at:
                running.kill()  # SIGKILL, with the next transaction under way
                break
        await running.communicate()
        assert running.returncode == -9
    await fill(bootstrap, workload, range(4000, 4100))  # behind the bounds that were fixed at the start
    state_now = await merge(client, topic_name, "op")
    assert state_now.done
    assert state_now.counts()["merged"] == 4000
    assert numbers_of(await merged(bootstrap, workload)) == list(range(4000))
    second = await merge(client, topic_name, "later")
    assert (second.counts()["merged"], second.counts()["before"]) == (100, 4000)
    assert numbers_of(await merged(bootstrap, workload)) == list(range(4100))


async def test_a_broker_killed_under_a_merge_costs_time_and_no_message(
    killable_yard: Yard, topic_name: str
) -> None:
    bootstrap = killable_yard.bootstrap("east-regional")
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 2)
    await fill(bootstrap, workload, range(1500))
    ends = await queue_ends(client, workload.dlq_topic())
    under_way = asyncio.Event()
    merger = Merger(
        client, workload, "op", rate=500,
        report=lambda state: under_way.set() if state.counts()["merged"] else None,
    )  # fmt: skip
    task = asyncio.create_task(merger.run(Terms(), ends))
    await under_way.wait()
    await asyncio.to_thread(killable_yard.kill, "east-regional")
    await asyncio.to_thread(killable_yard.start, "east-regional")
    assert (await task).counts()["merged"] == 1500
    assert numbers_of(await merged(bootstrap, workload)) == list(range(1500))
    await client.stop()


async def test_copies_of_a_transaction_that_was_left_open_are_never_seen(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    await create(bootstrap, workload.merge_topic(), 1)
    await fill(bootstrap, workload, range(10))
    dead = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=stem(workload))
    await dead.start()
    await dead.begin_transaction()
    await dead.send_and_wait(workload.merge_topic(), b"666")
    await merge(client, topic_name, "op")
    assert numbers_of(await merged(bootstrap, workload)) == list(range(10))
    with pytest.raises(Exception, match=r".*"):
        await dead.commit_transaction()
    await dead.stop()
    assert numbers_of(await merged(bootstrap, workload)) == list(range(10))


async def test_a_merge_that_begins_ends_the_one_at_work_and_nothing_is_merged_twice(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 2)
    await fill(bootstrap, workload, range(1000))
    ends = await queue_ends(client, workload.dlq_topic())
    under_way = asyncio.Event()
    first = Merger(
        client, workload, "first", rate=50,
        report=lambda state: under_way.set() if state.counts()["merged"] else None,
    )  # fmt: skip
    task = asyncio.create_task(first.run(Terms(), ends))
    await under_way.wait()
    second = await merge(client, topic_name, "second")
    with pytest.raises(Superseded, match="Go on with operation first"):
        await task
    assert second.counts()["before"] > 0
    assert numbers_of(await merged(bootstrap, workload)) == list(range(1000))
    again = await Merger(client, workload, "first", rate=RATE).run()
    assert again.done
    assert numbers_of(await merged(bootstrap, workload)) == list(range(1000))


async def test_a_copy_is_the_message_with_its_origin_and_one_merge_more(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(workload.dlq_topic(), b"\xff\x00", headers=headers(7, merges=1))
        await producer.send_and_wait(workload.dlq_topic(), None, key=b"gone", headers=headers(8))
    await merge(client, topic_name, "op")
    first, tombstone = await merged(bootstrap, workload)
    told = dict(first.headers)
    assert (first.key, first.value, told["own"], told[MERGES]) == (None, b"\xff\x00", b"\x00kept", b"2")
    assert (told[names.ORIGIN_TOPIC], told[names.ORIGIN_OFFSET], told[names.ATTEMPT]) == (
        b"orders",
        b"7",
        b"3",
    )
    assert names.REASON not in told
    assert (tombstone.key, tombstone.value, dict(tombstone.headers)[MERGES]) == (b"gone", None, b"1")


async def test_only_what_is_asked_for_is_merged_and_the_rest_is_left_for_later(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    await fill(bootstrap, workload, range(10), code="INTERNAL")
    await fill(bootstrap, workload, range(10, 20), code="DATA_LOSS")
    await fill(bootstrap, workload, [30, 31], merges=3)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        raw = [*headers(99), (names.RAW_BATCH, b"1-5")]
        await producer.send_and_wait(workload.dlq_topic(), b"no message", headers=raw)
    terms = Terms(Query(code=("DATA_LOSS",)))
    foreseen = await foresee_merge(client, workload, terms, {}, 30)
    assert (foreseen["complete"], foreseen["counts"]["merged"]) == (True, 10)
    assert (await merge(client, topic_name, "loss", terms)).counts()["merged"] == 10
    assert numbers_of(await merged(bootstrap, workload)) == list(range(10, 20))
    counts = (await merge(client, topic_name, "all")).counts()
    assert {k: v for k, v in counts.items() if v} == {"merged": 10, "before": 10, "quarantined": 2, "raw": 1}
    assert numbers_of(await merged(bootstrap, workload)) == list(range(20))
    counts = (await merge(client, topic_name, "again", Terms(max_merges=5, again=True))).counts()
    assert (counts["merged"], counts["quarantined"]) == (22, 0)


async def test_a_letter_that_the_broker_does_not_take_is_left_and_the_others_go_on(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    await create(bootstrap, workload.merge_topic(), 1, **{"max.message.bytes": "20000"})
    await fill(bootstrap, workload, range(5))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(workload.dlq_topic(), b"x" * 50_000, headers=headers())
    await fill(bootstrap, workload, range(5, 9))
    counts = (await merge(client, topic_name, "op")).counts()
    assert (counts["merged"], counts["refused"]) == (9, 1)
    assert numbers_of(await merged(bootstrap, workload)) == list(range(9))


async def test_letters_that_were_deleted_before_their_turn_are_counted(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    from app.dlq.purge import purge

    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    await fill(bootstrap, workload, range(10))
    ends = await queue_ends(client, workload.dlq_topic())
    await purge(client, workload, {0: (0, 4)})
    counts = (await Merger(client, workload, "op", rate=RATE).run(Terms(), ends)).counts()
    assert (counts["merged"], counts["expired"]) == (6, 4)


async def test_what_is_not_there_is_said(client: ClusterClient, bootstrap: str, topic_name: str) -> None:
    workload = of_topic(topic_name)
    with pytest.raises(NoQueue, match="nothing has been dead-lettered"):
        await Merger(client, workload, "op").run(Terms(), {})
    await create(bootstrap, workload.dlq_topic(), 1)
    with pytest.raises(UnknownOperation, match=f"operation nope on {GROUP}/"):
        await Merger(client, workload, "nope").run()
    assert (await merge(client, topic_name, "empty")).done
