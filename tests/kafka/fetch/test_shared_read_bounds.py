"""The remembered headers of a follower are bounded, and unusable ones lead to a fetch."""

from __future__ import annotations

from unittest.mock import patch

from app.kafka.fetch import shared_read_service as followers_module
from app.kafka.records.header_arrays import BatchHeaderArrays
from tests.kafka.fetch.test_shared_read_batches import Rig, batch, every


async def test_answer_with_too_many_batches_is_not_remembered() -> None:
    rig = Rig(counts=every)
    rig.leader.next_offset = 20
    with patch.object(followers_module, "MOST_TRAIL", 3):
        await rig.answer(rig.leader, batch(20), batch(30))
        assert len(rig.follower.trail) == 1
        await rig.answer(rig.leader, *(batch(at) for at in range(40, 80, 10)))
        assert not rig.follower.trail
        await rig.answer(rig.leader, batch(80))
        assert [one.start_offset for one in rig.follower.trail] == [80]


async def test_headers_that_cannot_be_counted_are_not_skipped() -> None:
    """The fault: headers were dropped when counting them failed, and later ones were counted without them."""
    looks = 0

    def stumbles(headers: BatchHeaderArrays) -> int:
        nonlocal looks
        looks += 1
        if looks == 2:  # the first look trusts them
            raise ValueError("of no use")
        return every(headers)

    rig = Rig(counts=stumbles)
    with patch.object(followers_module, "HEADERS_WAIT_S", 0.0):
        await rig.answer(rig.leader, batch(0))
        await rig.answer(rig.leader, batch(10))
        await rig.settle()
        assert (rig.follower.next_offset, rig.budget.used_bytes, rig.waits) == (0, 0, False)
        await rig.answer(rig.follower, batch(0), batch(10))
        await rig.answer(rig.leader, batch(20))
        await rig.settle()
    assert (rig.reader.records, rig.reader.next_offset) == (30, 30)
