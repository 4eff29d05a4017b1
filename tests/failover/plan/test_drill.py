"""A drill leaves nothing behind, and deletes the groups of a drill that was killed."""

from __future__ import annotations

import gc
import warnings

import pytest
from aiokafka.errors import KafkaError

from app.failover.plan.document import PlannedPartition
from app.failover.plan.drill import LEFTOVER_MS, PREFIX, _first_records, leftovers

NOW_MS = 1_800_000_000_000


def test_only_old_shadow_groups_count_as_leftovers() -> None:
    old, new = (f"{PREFIX}{NOW_MS - LEFTOVER_MS - ms}-3f9a2c11-billing-1" for ms in (1, -1))
    others = ["billing", f"{PREFIX}billing", f"{PREFIX}", f"{PREFIX}x{NOW_MS}-a-b", f"x{old}", "1-2-3"]
    assert leftovers([*others, old, new], NOW_MS) == [old]


async def test_a_reader_that_cannot_begin_is_closed() -> None:
    row = PlannedPartition(partition=0, log_end=9)
    gc.collect()  # objects that other tests left behind
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        with pytest.raises(KafkaError):
            await _first_records({"bootstrap_servers": "127.0.0.1:1"}, {("t", 0): 5}, {0: row})
        gc.collect()
    assert not [one for one in raised if issubclass(one.category, ResourceWarning)]
