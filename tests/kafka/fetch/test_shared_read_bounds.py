"""The remembered headers of a follower are bounded, and unusable ones lead to a fetch."""

from __future__ import annotations

from unittest.mock import patch

from app.kafka.fetch import shared_read_service as followers_module
from app.kafka.records.header_arrays import BatchHeaderArrays
from tests.kafka.fetch.test_shared_read_batches import Stand, batch, every


async def test_answer_with_too_many_batches_is_not_remembered() -> None:
    stand = Stand(counts=every)
    stand.leader.next_offset = 20
    with patch.object(followers_module, "MOST_TRAIL", 3):
        await stand.answer(stand.leader, batch(20), batch(30))
        assert len(stand.follower.trail) == 1
        await stand.answer(stand.leader, *(batch(at) for at in range(40, 80, 10)))
        assert not stand.follower.trail
        await stand.answer(stand.leader, batch(80))
        assert [one.start_offset for one in stand.follower.trail] == [80]


async def test_headers_that_cannot_be_counted_are_not_skipped() -> None:
    """The fault: headers were dropped when counting them failed, and later ones were counted without them."""
    looks = 0

    def stumbles(headers: BatchHeaderArrays) -> int:
        nonlocal looks
        looks += 1
        if looks == 2:  # the first look trusts them
            raise ValueError("of no use")
        return every(headers)

    stand = Stand(counts=stumbles)
    with patch.object(followers_module, "HEADERS_WAIT_S", 0.0):
        await stand.answer(stand.leader, batch(0))
        await stand.answer(stand.leader, batch(10))
        await stand.settle()
        assert (stand.follower.next_offset, stand.budget.used_bytes, stand.waits) == (0, 0, False)
        await stand.answer(stand.follower, batch(0), batch(10))
        await stand.answer(stand.leader, batch(20))
        await stand.settle()
    assert (stand.reader.records, stand.reader.next_offset) == (30, 30)
