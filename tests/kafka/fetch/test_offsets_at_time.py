"""A time leads to its first record, whatever offsets the batches around it contain."""

from __future__ import annotations

import random

import pytest

from app.kafka.append.transactions import transactional
from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient
from app.kafka.fetch import offsets_at_time as module
from app.kafka.fetch.offsets_at_time import offsets_at, offsets_at_time, spans
from app.kernel.clock import now_ms
from tests.kafka.conftest import create
from tests.kafka.odd_batches import append, batch, record

LIES = ((0, 1000, 2000), (5, 6, 7), (2, 1, 0), (0, 0, 0), (-1, 0, 1), (-3, 40, 2), (0, 1, (1 << 31) - 1))
STEP_MS = 40_000
COUNT = 60


@pytest.mark.parametrize("seed", range(2))
async def test_first_record_of_a_time_is_found_among_batches_with_wrong_offsets(
    client: ClusterClient, topic_name: str, seed: int
) -> None:
    """Batches of three records, `STEP_MS` apart; sound ones are found to the record, others to the batch."""
    await create(client, topic_name)
    chance, began_ms = random.Random(seed), now_ms() - COUNT * STEP_MS
    sound: list[bool] = []
    steps: list[int] = []
    for number in range(COUNT):
        lies = number % 3 == 1
        deltas = chance.choice(LIES) if lies else (0, 1, 2)
        later_ms = chance.choice((0, 1))  # each record than the one before it
        rows = [record(delta, b"%d" % number, at * later_ms) for at, delta in enumerate(deltas)]
        steps.append(later_ms)
        answer = await append(client, topic_name, 0, batch(rows, timestamp_ms=began_ms + number * STEP_MS))
        assert (answer.code, answer.base_offset) == (0, 3 * number)
        sound.append(not lies)
    at = topic_name, 0
    brokers_answer = await client.offsets([at], began_ms + STEP_MS)
    for number in range(COUNT):
        for later_ms in (0, 2, STEP_MS // 2):
            time_ms = began_ms + number * STEP_MS + later_ms
            found = (await offsets_at(client, [at], time_ms))[at]
            first = number + (later_ms > 2 * steps[number])
            if first == COUNT:
                assert found == -1
            elif sound[first]:
                assert found == 3 * first + later_ms * (first == number)
            else:
                assert 3 * first <= found <= 3 * first + later_ms * (first == number), (
                    number,
                    brokers_answer,
                )
    assert (await offsets_at(client, [at], EARLIEST))[at] == 0
    assert (await offsets_at(client, [at], LATEST))[at] == 3 * COUNT


async def test_open_transaction_does_not_delay_the_search(client: ClusterClient, topic_name: str) -> None:
    """An honest log costs no search, whatever transaction is open behind what is wanted."""
    await create(client, topic_name)
    began_ms = now_ms() - 10 * STEP_MS
    for number in range(5):
        one = batch([record(0, b"x")], timestamp_ms=began_ms + number * STEP_MS)
        assert (await append(client, topic_name, 0, one)).code == 0
    at = topic_name, 0
    async with transactional(client, topic_name, max_request_bytes=1 << 20) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"open", partition=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module._Logs, "search", None)
            for number in range(5):
                assert (await offsets_at(client, [at], began_ms + number * STEP_MS))[at] == number
            assert (await offsets_at(client, [at], began_ms + 6 * STEP_MS))[at] == 5
        await producer.abort_transaction()


async def test_time_span_is_complete_with_wrong_offsets_at_both_ends(
    client: ClusterClient, topic_name: str
) -> None:
    await create(client, topic_name)
    began_ms = now_ms() - 5 * STEP_MS
    for number, deltas in enumerate([(0,), (1000,), (0,), (-7,), (0,)]):
        rows = [record(delta, b"%d" % number) for delta in deltas]
        answer = await append(client, topic_name, 0, batch(rows, timestamp_ms=began_ms + number * STEP_MS))
        assert (answer.code, answer.base_offset) == (0, number)
    span = (await spans(client, topic_name, 1, began_ms + STEP_MS, began_ms + 3 * STEP_MS))[0]
    assert (span.start, span.end) == (1, 3)
    found = await offsets_at_time(client, [(topic_name, 0)], began_ms + 1)
    assert found == {(topic_name, 0): (1, began_ms + STEP_MS)}
