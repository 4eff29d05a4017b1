"""Failover runs between regions that hear each other late. The current leader carries them out, and reports
one that is stuck. A region that returns does not act on what it knew.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from app.controllog.events import FailoverRun, RegionPulse, RolePut
from app.controllog.failover_run import (
    ABORTED,
    COMING,
    DONE,
    ENDED_KEPT_MS,
    EXPIRED_KEPT_MS,
    PLANNED,
    Missing,
)
from app.controllog.roles import ACTIVE, MOVING
from app.dispatch.definition import Workload
from app.failover.run import runner
from app.failover.run.presence import OUT_OF_TOUCH_S
from app.failover.run.region_bridge import UNHEARD_S
from app.failover.run.role_keeper import PULSE_INTERVAL_S
from app.failover.run.runner import MOST_S, POSITIONS_STALL_TIMEOUT_S, STUCK_AFTER_S
from app.kernel.clock import now_ms
from tests.failover.run.region_fakes import KEY, FakeRegion
from tests.failover.run.test_role_keeper import (
    JOB,
    exchange_logs,
    own_job,
    record,
    release_job,
    shared_workload,
    two_regions,
)


def run(region: FakeRegion, name: str = "f1", **fields: Any) -> FailoverRun:
    """A run, planned in the region, that makes the workload active there."""
    return region.run(name, **fields)


def state(region: FakeRegion, name: str = "f1") -> str:
    found = region.log.view.runs.get(name)
    assert found is not None
    return str(found.state)


async def test_a_run_waits_for_the_other_regions_release_and_then_is_active_and_done() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    own_job(east)
    west.log.apply(run(west))
    await exchange_logs(west, east)
    assert east.role == west.role == ("west", 1, MOVING)
    assert (west.keeper.runs_here(shared_workload(west)), east.keeper.runs_here(shared_workload(east))) == (
        False,
        False,
    )
    (one,) = west.runs.standings(west.log.view.runs.get("f1"))
    assert one.waits_for == "region east to release it"
    release_job(east)
    await exchange_logs(east, west)
    await exchange_logs(west, east)
    assert east.role == west.role == ("west", 1, ACTIVE)
    assert state(west) == DONE
    assert west.incidents == east.incidents == []


async def test_a_stuck_run_is_reported_once_with_the_remedy_and_continues_by_force() -> None:
    _, west = two_regions()
    west.log.apply(role("east", 0))
    west.log.apply(run(west))
    for _ in range(4):
        await west.round(STUCK_AFTER_S / 2)
    (incident,) = west.incidents
    expected = f"failover-stuck f1: failover f1 of {KEY} to west waits for region east to release it"
    assert incident.startswith(expected)
    assert "switchyard failover execute f1 --force" in incident
    assert "switchyard failover abort f1" in incident
    west.log.apply(run(west, forced=True))
    await west.round()
    assert west.role == ("west", 1, ACTIVE)
    await west.round()
    assert state(west) == DONE


async def test_a_new_leader_continues_a_run_and_an_aborted_one_gives_its_workload_back() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    own_job(east)
    west.log.apply(run(west))
    await exchange_logs(west, east)
    fresh = FakeRegion("west")  # another worker leads now, with the same log
    fresh.log.apply(*_defined(west), *west.log.appended, run_of(west))
    fresh.log.apply(msgspec.structs.replace(run_of(west), state=ABORTED))
    await fresh.round()
    assert fresh.role == ("east", 64, ACTIVE)
    east.hear(fresh)
    await east.round()
    assert east.keeper.runs_here(shared_workload(east)) is True
    assert not [e for e in await fresh.round() if isinstance(e, RolePut | FailoverRun)], (
        "the run has ended, so nothing more is written"
    )


def _defined(region: FakeRegion) -> list[Any]:
    view = region.log.view
    return [*view.failovers.values(), *view.workloads.values()]


def run_of(region: FakeRegion) -> FailoverRun:
    found = region.log.view.runs.get("f1")
    assert found is not None
    return found


def role(region: str, epoch: int, at: Any = ACTIVE, **fields: Any) -> RolePut:
    return RolePut(at_ms=1, key=KEY, region=region, epoch=epoch, state=at, **fields)


async def let_tasks_run() -> None:
    """Lets started tasks run for some turns of the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class Positions:
    """A fake: the east's positions of the workload, as they arrive in the west. `behind` records are missing
    (None: unknown)."""

    def __init__(self, west: FakeRegion) -> None:
        self.behind: int | None = 9
        self.requests: list[tuple[str, str]] = []
        west.runs._arrived = self._arrived

    async def _arrived(self, wanted: list[tuple[Workload, str]]) -> dict[str, Missing]:
        self.requests.extend((workload.key, region) for workload, region in wanted)
        if self.behind is None:
            return {KEY: Missing(f"{COMING.words} (error {len(self.requests)})", None)}
        return {KEY: Missing(f"{COMING.words} ({self.behind})", self.behind) if self.behind else Missing()}


async def waiting_run(
    monkeypatch: pytest.MonkeyPatch, behind: int | None = 9
) -> tuple[FakeRegion, Positions]:
    """A region with a run that waits for the last positions."""
    monkeypatch.setattr(runner, "ARRIVAL_POLL_INTERVAL_S", 0.0)
    east, west = two_regions()
    await exchange_logs(east, west)
    positions = Positions(west)
    positions.behind = behind
    west.log.apply(run(west))
    await exchange_logs(west, east)
    await exchange_logs(east, west)
    assert west.role == ("west", 1, MOVING)
    await let_tasks_run()
    assert positions.requests[0] == (KEY, "east")
    return west, positions


async def rounds(west: FakeRegion, *seconds: float) -> None:
    for wait_s in seconds:
        await west.round(wait_s)
        await let_tasks_run()


async def test_last_positions_are_waited_for_as_long_as_they_come_nearer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    west, positions = await waiting_run(monkeypatch)
    for behind in range(9, 0, -1):
        positions.behind = behind
        await rounds(west, 0.25, POSITIONS_STALL_TIMEOUT_S / 3, POSITIONS_STALL_TIMEOUT_S / 3)
        assert west.role == ("west", 1, MOVING)
        (one,) = west.runs.standings(run_of(west))
        assert one.waits_for == f"{COMING.words} ({behind})", "the wait shows how many records are missing"
        assert "failover execute f1 --force" in runner.remedy(run_of(west), one)
        west.now_s -= POSITIONS_STALL_TIMEOUT_S / 2  # keeps the whole wait below `MOST_S`
    assert west.rounds_requested == 0
    positions.behind = 0
    await rounds(west, 0.25, 0.25)
    assert west.rounds_requested > 0, "the leader need not wait for its next round"
    await west.round()
    assert west.role == ("west", 1, ACTIVE)
    await west.round()
    assert (state(west), run_of(west).result) == (DONE, "1 active")
    await west.runs.stop()


@pytest.mark.parametrize(
    ("behind", "moves"), [(9, 0), (9, 1), (None, 0), (10_000, -1)],
    ids=["they stand still", "they fall behind", "they cannot be read", "they come for ever"],
)  # fmt: skip
async def test_the_wait_for_last_positions_is_bounded_and_the_run_says_so(
    behind: int | None, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    west, positions = await waiting_run(monkeypatch, behind)
    began_s, step_s = west.now_s, POSITIONS_STALL_TIMEOUT_S / 4
    while west.role == ("west", 1, MOVING):
        if positions.behind is not None:
            positions.behind += moves
        await rounds(west, step_s)
        assert west.now_s < began_s + 2 * MOST_S
    waited_s = west.now_s - began_s
    most_s = MOST_S if moves < 0 else POSITIONS_STALL_TIMEOUT_S
    assert most_s <= waited_s <= most_s + 3 * step_s
    reason = west.log.view.roles.of(KEY).reason
    assert f" s of waiting for {COMING.words} (" in reason
    assert reason.endswith("messages that they would have skipped are delivered again")
    await west.round()
    assert state(west) == DONE
    assert run_of(west).result.startswith(f"1 active; {KEY}: it continued after ")
    assert run_of(west).result.endswith(reason.partition("it continued after")[2])
    await west.runs.stop()


async def test_a_region_that_comes_back_with_an_old_log_does_not_act_until_it_has_heard_the_others() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    assert east.keeper.runs_here(shared_workload(east)) is True
    west.log.apply(run(west, forced=True))  # the whole east is lost
    await west.round()
    returned = FakeRegion("east", worker="east-2", clock_skew_ms=-300_000)  # a leader whose clock is behind
    returned.log.apply(*_defined(east), *east.log.appended)
    assert returned.role == ("east", 0, ACTIVE), "its old log says so"
    assert returned.keeper.runs_here(shared_workload(returned)) is False
    sender_role = returned.keeper.sender_role(shared_workload(returned))
    assert sender_role is not None
    assert not sender_role.primary
    await returned.round(PULSE_INTERVAL_S)
    assert returned.log.view.pulses["east"].returned_ms > 0
    assert returned.keeper.runs_here(shared_workload(returned)) is False
    returned.hear(west)  # an old log: the west has not heard of the return yet
    await returned.round(PULSE_INTERVAL_S)
    assert returned.role == ("west", 1, ACTIVE)
    west.hear(returned)
    await west.round(PULSE_INTERVAL_S)
    returned.hear(west)
    await returned.round(PULSE_INTERVAL_S)
    assert returned.log.view.pulses["east"].returned_ms == 0, "the west has answered it"

    # A failback makes the workload active in the east again.
    returned.log.apply(run(returned, "f2"))
    for _ in range(3):
        await exchange_logs(returned, west)
    assert returned.role == west.role == ("east", 64, ACTIVE)
    assert returned.keeper.runs_here(shared_workload(returned)) is True
    assert state(returned, "f2") == DONE


async def test_a_region_whose_neighbours_are_away_acts_again_after_a_while() -> None:
    east, _ = two_regions()
    east.log.apply(role("east", 0))
    await east.round(PULSE_INTERVAL_S)
    assert east.keeper.runs_here(shared_workload(east)) is True
    east.lose_touch(OUT_OF_TOUCH_S + 1)
    await east.round(0)
    assert east.keeper.runs_here(shared_workload(east)) is False
    await east.round(UNHEARD_S)
    assert east.keeper.runs_here(shared_workload(east)) is True


async def test_a_new_leader_of_a_region_that_lives_acts_at_once() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    other = FakeRegion("east", worker="east-2", clock_skew_ms=600_000)
    east.live = {other.presence.name}
    await east.round()
    other.log.apply(*_defined(east), *east.log.appended)
    assert other.keeper.runs_here(shared_workload(other)) is True, "the leader before it has named it"
    await other.round(PULSE_INTERVAL_S)
    assert other.keeper.runs_here(shared_workload(other)) is True
    assert other.log.view.pulses["east"].returned_ms == 0


async def test_a_region_that_has_just_returned_runs_no_failover() -> None:
    _, west = two_regions()
    west.log.apply(role("east", 0), RegionPulse(at_ms=1, region="west", returned_ms=1))
    west.log.apply(run(west, forced=True))
    assert not [e for e in await west.round(PULSE_INTERVAL_S) if isinstance(e, RolePut)]
    await west.round(UNHEARD_S)
    await west.round()
    assert west.role == ("west", 1, ACTIVE)


async def test_the_leader_drops_expired_plans_and_old_runs_from_the_log() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    at_ms = now_ms()
    old = run(west, "old")
    west.log.apply(
        msgspec.structs.replace(run(west, "expired"), state=PLANNED, expires_ms=at_ms - EXPIRED_KEPT_MS - 1),
        msgspec.structs.replace(run(west, "may-begin"), state=PLANNED, expires_ms=at_ms + 60_000),
        old,
        msgspec.structs.replace(old, state=DONE, at_ms=at_ms - ENDED_KEPT_MS - 1),
        msgspec.structs.replace(run(west, "new"), state=DONE, at_ms=at_ms),
    )
    assert not west.log.view.stale
    await west.round()
    dropped_keys = ["failover-run/expired/planned", "failover-run/old/executing", "failover-run/old/done"]
    assert list(west.log.view.stale) == dropped_keys
    for key in dropped_keys:
        west.log.view.dropped(key)
    await west.round()
    assert not west.log.view.stale
    assert {one.id for one in west.log.view.runs} == {"may-begin", "new"}


async def test_a_run_in_another_regions_log_does_not_run_here() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    west.log.apply(run(west))
    east.hear(west)
    await east.round()
    assert len(east.log.view.runs) == 0
    east.bridge.accept("west", [record(b"failover-run/f1/executing", b"{")])
    assert east.incidents == []
    assert JOB.startswith("dispatch:")


async def test_a_step_or_end_that_the_leader_cannot_write_is_reported_once() -> None:
    _, west = two_regions()
    west.log.apply(role("east", 0))
    west.log.apply(run(west, forced=True))
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        assert west.runs.steps(west.now_s), "the test appends none of the events to the log"
    (incident,) = west.incidents
    assert incident.startswith(
        f"failover-stuck f1: failover f1 of {KEY} to west waits for the leader of west to"
    )
    assert "a leader whose rounds succeed" in incident
    west.log.apply(role("west", 1, plan="f1", previous="east"))
    standings = west.runs.standings(run_of(west))
    assert west.runs.end_waits_for(run_of(west), standings) == "the leader of west to write that it has ended"
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        west.runs.steps(west.now_s)
    (_, end) = west.incidents
    assert end.startswith("failover-stuck f1: failover f1 to west waits for the leader of west to write that")
    await west.round()
    assert west.runs.end_waits_for(run_of(west), west.runs.standings(run_of(west))) == ""


async def test_the_runs_of_a_region_that_has_just_returned_wait_for_other_regions() -> None:
    _, west = two_regions()
    west.log.apply(role("east", 0), RegionPulse(at_ms=1, region="west", returned_ms=1))
    west.log.apply(run(west, forced=True))
    (one,) = west.runs.standings(run_of(west))
    assert (one.waits_for, one.write) == ("region west to read what other regions decided", None)
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        assert west.runs.steps(west.now_s) == []
    (incident,) = west.incidents
    assert (
        f"failover f1 of {KEY} to west waits for region west to read what other regions decided" in incident
    )
    assert "at the latest after 120 s" in incident
    west.log.apply(role("west", 1, plan="f1", previous="east"))
    standings = west.runs.standings(run_of(west))
    assert (
        west.runs.end_waits_for(run_of(west), standings) == "region west to read what other regions decided"
    )
