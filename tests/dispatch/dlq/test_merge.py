"""Merging on real Kafka: exactly once, whatever is killed, and only the chosen letters."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.dev.yard import Yard
from app.dispatch.dlq.merge import MergeSuperseded, UnknownOperation
from app.dispatch.dlq.operation_progress import OperationTerms, stem
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.reader import NoQueue
from app.dispatch.dlq.survey import foresee
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from tests.dispatch.dlq.queues import GROUP, DeadLetterQueue, create, headers


async def process(queue: DeadLetterQueue, rate: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.dispatch.dlq.queues", queue.bootstrap, queue.topic, "op", rate,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_merge_killed_three_times_makes_every_copy_exactly_once(queue: DeadLetterQueue) -> None:
    await queue.create(3)
    await queue.fill(range(4000))
    reached = 0
    for kill_at in (500, 1500, 2500):
        running = await process(queue, "500")  # a kill comes long before the end
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
    await queue.fill(range(4000, 4100))  # behind the bounds that were fixed at the start
    state_now = await queue.merge("op")
    assert state_now.done
    assert state_now.counts()["merged"] == 4000
    assert await queue.numbers() == list(range(4000))
    second = await queue.merge("later")
    assert (second.counts()["merged"], second.counts()["before"]) == (100, 4000)
    assert await queue.numbers() == list(range(4100))


@pytest.mark.deep(minutes=1.7)
async def test_a_broker_killed_under_a_merge_costs_time_and_no_message(
    killable_yard: Yard, topic_name: str
) -> None:
    bootstrap = killable_yard.bootstrap("east-regional")
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    queue = DeadLetterQueue(bootstrap, topic_name, client)
    await queue.create(2)
    await queue.fill(range(1500))
    ends = await queue.ends()
    under_way = asyncio.Event()
    merger = queue.merger(
        "op", rate=500,
        report=lambda state: under_way.set() if state.counts()["merged"] else None,
    )  # fmt: skip
    task = asyncio.create_task(merger.run(OperationTerms(), ends))
    await under_way.wait()
    await asyncio.to_thread(killable_yard.kill, "east-regional")
    await asyncio.to_thread(killable_yard.start, "east-regional")
    try:
        state = await task
    except (KafkaError, ClusterUnreachable, TimeoutError):  # the broker was away for longer than it tries
        state = await merger.run()
    assert state.counts()["merged"] == 1500
    assert await queue.numbers() == list(range(1500))
    await client.stop()


async def test_copies_of_an_open_transaction_are_never_seen(queue: DeadLetterQueue) -> None:
    await queue.create()
    await create(queue.bootstrap, queue.workload.merge_topic(), 1)
    await queue.fill(range(10))
    dead = AIOKafkaProducer(bootstrap_servers=queue.bootstrap, transactional_id=stem(queue.workload))
    await dead.start()
    await dead.begin_transaction()
    await dead.send_and_wait(queue.workload.merge_topic(), b"666")
    await queue.merge("op")
    assert await queue.numbers() == list(range(10))
    with pytest.raises(Exception, match=r".*"):
        await dead.commit_transaction()
    await dead.stop()
    assert await queue.numbers() == list(range(10))


async def test_a_new_merge_ends_the_running_one_and_nothing_is_merged_twice(
    queue: DeadLetterQueue,
) -> None:
    await queue.create(2)
    await queue.fill(range(1000))
    ends = await queue.ends()
    under_way = asyncio.Event()
    first = queue.merger(
        "first", rate=50,
        report=lambda state: under_way.set() if state.counts()["merged"] else None,
    )  # fmt: skip
    task = asyncio.create_task(first.run(OperationTerms(), ends))
    await under_way.wait()
    second = await queue.merge("second")
    with pytest.raises(MergeSuperseded, match="Resume operation first"):
        await task
    assert second.counts()["before"] > 0
    assert await queue.numbers() == list(range(1000))
    again = await queue.merger("first").run()
    assert again.done
    assert await queue.numbers() == list(range(1000))


async def test_a_copy_is_the_message_with_its_origin_and_one_merge_more(queue: DeadLetterQueue) -> None:
    await queue.create()
    await queue.put(b"\xff\x00", headers=headers(7, merges=1))
    await queue.put(None, key=b"gone", headers=headers(8))
    await queue.merge("op")
    first, tombstone = await queue.merged()
    copied = dict(first.headers)
    assert (first.key, first.value, copied["own"], copied[MERGES]) == (None, b"\xff\x00", b"\x00kept", b"2")
    assert (copied[names.ORIGIN_TOPIC], copied[names.ORIGIN_OFFSET], copied[names.ATTEMPT]) == (
        b"orders",
        b"7",
        b"3",
    )
    assert names.REASON not in copied
    assert (tombstone.key, tombstone.value, dict(tombstone.headers)[MERGES]) == (b"gone", None, b"1")


async def test_only_chosen_letters_are_merged_and_the_others_stay(
    queue: DeadLetterQueue,
) -> None:
    await queue.create()
    await queue.fill(range(10), code="INTERNAL")
    await queue.fill(range(10, 20), code="DATA_LOSS")
    await queue.fill([30, 31], merges=3)
    raw = [*headers(99), (names.RAW_BATCH, b"1-5")]
    await queue.put(b"no message", headers=raw)
    terms = OperationTerms(LetterQuery(code=("DATA_LOSS",)))
    foreseen = await foresee(queue.client, queue.workload, terms, {}, 30)
    assert (foreseen["complete"], foreseen["counts"]["merged"]) == (True, 10)
    assert (await queue.merge("loss", terms)).counts()["merged"] == 10
    assert await queue.numbers() == list(range(10, 20))
    counts = (await queue.merge("all")).counts()
    assert {k: v for k, v in counts.items() if v} == {"merged": 10, "before": 10, "quarantined": 2, "raw": 1}
    assert await queue.numbers() == list(range(20))
    counts = (await queue.merge("again", OperationTerms(max_merges=5, again=True))).counts()
    assert (counts["merged"], counts["quarantined"]) == (22, 0)


@pytest.mark.parametrize(
    "setting", [{"max.message.bytes": "20000"}, {"cleanup.policy": "compact"}], ids=["size", "no key"]
)
async def test_a_letter_that_the_broker_refuses_stays_and_the_others_are_merged(
    queue: DeadLetterQueue, setting: dict[str, str]
) -> None:
    await queue.create()
    await create(queue.bootstrap, queue.workload.merge_topic(), 1, **setting)
    await queue.fill(range(5))
    await queue.put(b"x" * 50_000, headers=headers())
    await queue.fill(range(5, 9))
    counts = (await queue.merge("op")).counts()
    assert (counts["merged"], counts["refused"]) == (9, 1)
    assert await queue.numbers() == list(range(9))


async def test_letters_that_were_deleted_before_their_turn_are_counted(queue: DeadLetterQueue) -> None:
    from app.dispatch.dlq.purge import purge

    await queue.create()
    await queue.fill(range(10))
    ends = await queue.ends()
    await purge(queue.client, queue.workload, {0: (0, 4)})
    counts = (await queue.merger("op").run(OperationTerms(), ends)).counts()
    assert (counts["merged"], counts["expired"]) == (6, 4)


async def test_a_missing_queue_or_operation_is_reported(queue: DeadLetterQueue) -> None:
    with pytest.raises(NoQueue, match="has no dead letters yet"):
        await queue.merger("op").run(OperationTerms(), {})
    await queue.create()
    with pytest.raises(UnknownOperation, match=f"{GROUP}/.* has no record of operation nope"):
        await queue.merger("nope").run()
    assert (await queue.merge("empty")).done
