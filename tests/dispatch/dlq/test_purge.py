"""Purging on real Kafka, by bound and by query: purged letters do not come back, whatever is killed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.dispatch.dlq.operation_history import choose, merges_of
from app.dispatch.dlq.operation_progress import OperationProgress, OperationTerms, PartitionProgress
from app.dispatch.dlq.purge import _delete_front, foresee_purge, purge, purge_chosen
from app.dispatch.dlq.query import BadQuery, LetterQuery
from app.dispatch.dlq.reader import read_one, scan
from app.dispatch.dlq.survey import foresee, stats
from app.dispatch.model import retry_headers as names
from tests.dispatch.dlq.queues import DeadLetterQueue, create, headers
from tests.dispatch.dlq.test_merge import process

LOST = OperationTerms(LetterQuery(code=("DATA_LOSS",)), purge=True)


async def purged(queue: DeadLetterQueue, operation: str, terms: OperationTerms = LOST) -> dict[str, Any]:
    return await purge_chosen(queue.client, queue.workload, operation, terms, await queue.ends())


async def left(queue: DeadLetterQueue) -> list[int]:
    """The letters that every reader sees."""
    ends = await queue.ends()
    choice = await choose(queue.client, queue.workload, LetterQuery(), ends)
    found = [o async for some, _ in scan(queue.client, queue.workload.dlq_topic(), ends) for o in some]
    return sorted(int(letter.value or b"") for letter in found if choice.holds(letter))


async def test_a_purge_deletes_what_is_before_its_bound_and_nothing_else(queue: DeadLetterQueue) -> None:
    await queue.create(2)
    for number in range(20):
        await queue.put(b"x", partition=number % 2, timestamp_ms=1_000_000 + number // 2)
    foreseen = await foresee_purge(queue.client, queue.workload, before_ms=1_000_004)
    assert foreseen["offsets"] == 8
    assert (await foresee_purge(queue.client, queue.workload, before_offsets={1: 3}))["partitions"] == {
        "1": {"start": 0, "end": 3}
    }
    assert (await foresee_purge(queue.client, queue.workload, before_ms=9_000_000))["offsets"] == 20
    assert await queue.ends() == {0: (0, 10), 1: (0, 10)}, "looking changes nothing"
    bounds = {int(p): (b["start"], b["end"]) for p, b in foreseen["partitions"].items()}
    assert await purge(queue.client, queue.workload, bounds) == {0: 4, 1: 4}
    assert await purge(queue.client, queue.workload, bounds) == {0: 4, 1: 4}
    assert await queue.ends() == {0: (4, 10), 1: (4, 10)}
    with pytest.raises(BadQuery, match="does not reach offset"):
        await purge(queue.client, queue.workload, {0: (0, 11)})


async def test_a_purge_of_a_queue_that_was_recreated_with_fewer_partitions_ends(
    queue: DeadLetterQueue,
) -> None:
    await queue.create(1)
    done = OperationProgress("once", LOST, {0: PartitionProgress(0, 0, 0), 7: PartitionProgress(0, 5, 5)})
    assert await _delete_front(queue.client, queue.workload, done) == 0


async def test_letters_purged_by_query_are_gone_for_every_reader_and_the_others_stay(
    queue: DeadLetterQueue,
) -> None:
    await queue.create(2)
    await queue.fill(range(20))
    await queue.fill(range(20, 30), code="DATA_LOSS")
    foreseen = await foresee(queue.client, queue.workload, LOST, {}, 30)
    assert (foreseen["counts"]["purged"], foreseen["reasons"], foreseen["front"]) == (
        10,
        {"not today": 10},
        0,
    )
    assert await left(queue) == list(range(30)), "a look changes nothing"
    done = await purged(queue, "op")
    assert (done["counts"]["purged"], done["counts"]["other"], done["deleted"]) == (10, 20, 0)
    assert await left(queue) == list(range(20))
    figures = await stats(queue.client, queue.workload, LetterQuery(), 30)
    assert (figures["letters"], figures["codes"]) == (20, {"INTERNAL": 20})
    await queue.fill(range(30, 32), code="DATA_LOSS")
    assert await left(queue) == [*range(20), 30, 31], "what came later was not purged"
    assert (await purged(queue, "again"))["counts"]["gone"] == 10
    counts = (await queue.merge("all", OperationTerms(again=True))).counts()
    assert (counts["merged"], counts["gone"]) == (20, 12), "what was purged is not even merged again"
    assert await queue.numbers() == list(range(20))


async def test_the_front_is_deleted_once_all_its_letters_are_purged_or_merged(queue: DeadLetterQueue) -> None:
    await queue.create()
    await queue.fill(range(5), code="DATA_LOSS")
    await queue.fill(range(5, 10), code="INTERNAL")
    await queue.fill(range(10, 15), code="DATA_LOSS")
    await queue.fill(range(15, 20), code="ABORTED")
    await queue.merge("one", OperationTerms(LetterQuery(code=("INTERNAL",))))
    async with asyncio.timeout(60):  # the group's coordinator hears of a transaction's end a moment later
        while (await foresee(queue.client, queue.workload, LOST, {}, 30))["front"] != 15:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    done = await purged(queue, "first")
    assert (done["deleted"], await queue.ends()) == (15, {0: (15, 20)})
    await queue.fill(range(20, 22), code="DATA_LOSS")
    last = await purged(queue, "last", OperationTerms(LetterQuery(since_ms=0), purge=True))
    assert (last["counts"]["purged"], await queue.ends()) == (7, {0: (22, 22)})
    known = await merges_of(queue.client, queue.workload, [0])
    assert sorted(known) == ["last", "one"], "a purge whose letters are no more is let go of"


async def test_a_letter_whose_copy_was_refused_and_raw_bytes_keep_the_front_where_they_are(
    queue: DeadLetterQueue,
) -> None:
    await queue.create()
    await create(queue.bootstrap, queue.workload.merge_topic(), 1, **{"max.message.bytes": "20000"})
    await queue.put(b"x" * 50_000, headers=headers())
    await queue.put(b"1-5", headers=[*headers(code="UNDECODABLE"), (names.RAW_BATCH, b"1-5")])
    await queue.fill([7], code="DATA_LOSS")
    assert (await queue.merge("op")).counts()["refused"] == 1
    assert ((await purged(queue, "lost"))["deleted"], await queue.ends()) == (0, {0: (0, 3)})
    await purged(queue, "all", OperationTerms(LetterQuery(attempt_min=0), purge=True))
    assert await queue.ends() == {0: (3, 3)}, "asked for, they go"


async def test_a_purge_killed_in_every_partition_resumes_where_it_was(queue: DeadLetterQueue) -> None:
    await queue.create(3)
    await queue.fill(range(3), code="DATA_LOSS")
    await queue.fill(range(3, 3000), code="INTERNAL")
    reached = -1
    for _ in range(3):
        running = await process(queue, "purge")
        assert running.stdout is not None
        assert running.stdin is not None
        async for line in running.stdout:
            state = json.loads(line)
            assert state["looked_at"] >= reached, "what was acknowledged is not done again"
            if state["looked_at"] > reached:
                reached = state["looked_at"]
                running.kill()  # SIGKILL, before it gets the permission to continue
                break
            running.stdin.write(b"\n")
        await running.communicate()
        assert running.returncode == -9
    assert 0 < reached < 3000
    await queue.fill(range(3000, 3010), code="INTERNAL")  # behind the bounds that were fixed at the start
    done = await purge_chosen(queue.client, queue.workload, "op")
    assert (done["counts"]["purged"], done["counts"]["other"], done["done"]) == (2997, 3, True)
    assert await left(queue) == [0, 1, 2, *range(3000, 3010)]
    assert await read_one(queue.client, queue.workload.dlq_topic(), 0, 1) is not None, "behind one that stays"
    again = await purge_chosen(queue.client, queue.workload, "op")
    assert again["counts"] == done["counts"]
