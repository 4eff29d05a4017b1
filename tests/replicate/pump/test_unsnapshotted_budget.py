"""The bound on records that are copied and not yet saved: a successor has to recognize all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replicate.destination.handover import ReplicaHandover
from app.replicate.destination.session import NOT_SAVED
from app.replicate.pump import send_gate, unsnapshotted_budget
from app.replicate.pump.status import job_status
from app.replicate.pump.unsnapshotted_budget import (
    LEAST_RECORDS,
    MAX_RECORDS,
    UnsnapshottedBudget,
    UnsnapshottedRecords,
)
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import assert_same, create_on_both_sides, start_copying, write

BATCH = 20  # records of a test's batch, at most


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("acts"), st.integers(0, 3))))
def test_unsnapshotted_records_are_counted_for_each_replica_and_for_all(
    steps: list[tuple[int, str, int]],
) -> None:
    together = UnsnapshottedBudget()
    replicas = [UnsnapshottedRecords(together) for _ in range(3)]
    appended, acknowledged, taken, saved = [0] * 3, [0] * 3, [{-1: 0} for _ in range(3)], [-1] * 3
    for one, act, count in steps:
        if act == "a":
            appended[one] += count
            replicas[one].appended(appended[one])
        elif act == "c":  # the acknowledgement is of another version
            acknowledged[one] = min(appended[one], acknowledged[one] + count)
        elif act == "t":
            taken[one][acknowledged[one]] = acknowledged[one]
            replicas[one].taken(acknowledged[one], acknowledged[one])
        else:  # any of those that were taken, in order
            later = [version for version in taken[one] if version >= saved[one]]
            saved[one] = sorted(later)[min(count, len(later) - 1)]
            replicas[one].saved(saved[one])
    for one, replica in enumerate(replicas):
        assert replica.records == appended[one] - taken[one][saved[one]]
    assert together.records == sum(replica.records for replica in replicas)
    for one, replica in enumerate(replicas):
        replica.close()
        replica.saved(max(taken[one]))  # batches in flight
    assert together.records == 0


def test_a_replica_with_few_unsnapshotted_records_continues_while_others_have_too_many() -> None:
    together = UnsnapshottedBudget()
    many, few = UnsnapshottedRecords(together), UnsnapshottedRecords(together)
    many.appended(MAX_RECORDS)
    few.appended(LEAST_RECORDS - 1)
    assert (many.is_full, few.is_full) == (True, False)
    few.appended(LEAST_RECORDS)
    assert few.is_full
    many.taken(1, LEAST_RECORDS + 1)
    many.saved(1)
    assert (many.is_full, few.is_full) == (False, False)


@pytest.mark.usefixtures("unjoined")
async def test_while_nothing_is_saved_copying_stops_within_a_bound_and_continues_afterwards(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsnapshotted_budget, "LEAST_RECORDS", 100)
    monkeypatch.setattr(unsnapshotted_budget, "MAX_RECORDS", 200)
    monkeypatch.setattr(send_gate, "SNAPSHOT_TIMEOUT_S", 0.0)
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 2_000, max_batch_size=400)
    pump = await rig.start_pump(topic_name)
    pump.pause(True)
    await rig.until(lambda: pump.session.is_ready)
    rig.saves = False
    pump.pause(False)
    await rig.until(lambda: pump.awaits_snapshot and not pump.in_flight)
    assert 200 <= pump.base < 200 + BATCH
    assert len(await rows(rig.target, topic_name)) == pump.base, "the bound is reached and not exceeded"
    await rig.until(lambda: job_status(pump).trouble == NOT_SAVED)
    rig.save(pump)
    await rig.until(lambda: pump.base >= 400 and pump.awaits_snapshot and not pump.in_flight)
    assert pump.base < 400 + 2 * BATCH

    rig.kill(pump)
    assert rig.budgets.unsnapshotted.records == 0
    note = ReplicaHandover.from_bytes(rig.saved[0][1])
    assert note.base >= 200, "a successor reads what lies behind it"
    rig.saves = True
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 2_000
    await rig.until(lambda: rig.budgets.unsnapshotted.records == 0)
    assert not pump.awaits_snapshot
    assert job_status(pump).trouble == ""


async def test_a_lane_that_waits_for_its_next_epoch_to_be_saved_says_so(
    rig: ReplicaRig, topic_name: str
) -> None:
    """Copies of control topics are saved rarely, but this snapshot is due at once."""
    pump = await start_copying(rig, topic_name)
    await rig.until(lambda: pump.snapshot_version == pump.version)
    assert not pump.awaits_snapshot
    rig.saves = False
    assert pump.session.lane is not None
    pump.session._on_epoch_bump(pump.session.lane)
    await rig.until(lambda: pump.awaits_snapshot)
    rig.saves = True
    await rig.until(lambda: not pump.awaits_snapshot)
