"""Failovers between regions that hear each other late: carried out by whoever leads, told when they are
stuck; and a region that comes back does not act by what it knew."""

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
from tests.failover.run.test_role_keeper import JOB, let_go, own, record, settled, the, two


def run(region: FakeRegion, name: str = "f1", **told: Any) -> FailoverRun:
    """One that makes the workload active in the region, as it was planned there."""
    return region.run(name, **told)


def state(region: FakeRegion, name: str = "f1") -> str:
    found = region.log.view.runs.get(name)
    assert found is not None
    return str(found.state)


async def test_it_waits_until_the_other_region_has_let_go_then_is_active_and_done() -> None:
    east, west = two()
    await settled(east, west)
    own(east)
    west.log.apply(run(west))
    await settled(west, east)
    assert east.role == west.role == ("west", 1, MOVING)
    assert (west.keeper.runs_here(the(west)), east.keeper.runs_here(the(east))) == (False, False)
    (one,) = west.runs.standings(west.log.view.runs.get("f1"))
    assert one.waits_for == "region east to release it"
    let_go(east)
    await settled(east, west)
    await settled(west, east)
    assert east.role == west.role == ("west", 1, ACTIVE)
    assert state(west) == DONE
    assert west.told == east.told == []


async def test_a_stuck_run_is_reported_once_with_the_remedy_and_continues_by_force() -> None:
    _, west = two()
    west.log.apply(role("east", 0))
    west.log.apply(run(west))
    for _ in range(4):
        await west.round(STUCK_AFTER_S / 2)
    (told,) = west.told
    expected = f"failover-stuck f1: failover f1 of {KEY} to west waits for region east to release it"
    assert told.startswith(expected)
    assert "switchyard failover execute f1 --force" in told
    assert "switchyard failover abort f1" in told
    west.log.apply(run(west, forced=True))
    await west.round()
    assert west.role == ("west", 1, ACTIVE)
    await west.round()
    assert state(west) == DONE


async def test_a_new_leader_continues_a_run_and_an_aborted_one_gives_its_workload_back() -> None:
    east, west = two()
    await settled(east, west)
    own(east)
    west.log.apply(run(west))
    await settled(west, east)
    fresh = FakeRegion("west")  # another worker leads now, over the same log
    fresh.log.apply(*_defined(west), *west.log.appended, run_of(west))
    fresh.log.apply(msgspec.structs.replace(run_of(west), state=ABORTED))
    await fresh.round()
    assert fresh.role == ("east", 64, ACTIVE)
    east.hear(fresh)
    await east.round()
    assert east.keeper.runs_here(the(east)) is True
    assert not [e for e in await fresh.round() if isinstance(e, RolePut | FailoverRun)], "it has come to rest"


def _defined(region: FakeRegion) -> list[Any]:
    view = region.log.view
    return [*view.failovers.values(), *view.workloads.values()]


def run_of(region: FakeRegion) -> FailoverRun:
    found = region.log.view.runs.get("f1")
    assert found is not None
    return found


def role(region: str, epoch: int, at: Any = ACTIVE, **told: Any) -> RolePut:
    return RolePut(at_ms=1, key=KEY, region=region, epoch=epoch, state=at, **told)


async def looked() -> None:
    """Whoever has something to do has had some turns of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class Positions:
    """Of the workload in the east, as they come to the west; none are behind when `behind` is 0."""

    def __init__(self, west: FakeRegion) -> None:
        self.behind: int | None = 9
        self.asked: list[tuple[str, str]] = []
        west.runs.arrived = self._arrived

    async def _arrived(self, wanted: list[tuple[Workload, str]]) -> dict[str, Missing]:
        self.asked.extend((workload.key, region) for workload, region in wanted)
        if self.behind is None:
            return {KEY: Missing(f"{COMING.words} (error {len(self.asked)})", None)}
        return {KEY: Missing(f"{COMING.words} ({self.behind})", self.behind) if self.behind else Missing()}


async def waiting(monkeypatch: pytest.MonkeyPatch, behind: int | None = 9) -> tuple[FakeRegion, Positions]:
    """A run that waits for them."""
    monkeypatch.setattr(runner, "ARRIVAL_POLL_INTERVAL_S", 0.0)
    east, west = two()
    await settled(east, west)
    positions = Positions(west)
    positions.behind = behind
    west.log.apply(run(west))
    await settled(west, east)
    await settled(east, west)
    assert west.role == ("west", 1, MOVING)
    await looked()
    assert positions.asked[0] == (KEY, "east")
    return west, positions


async def rounds(west: FakeRegion, *seconds: float) -> None:
    for wait_s in seconds:
        await west.round(wait_s)
        await looked()


async def test_last_positions_are_waited_for_as_long_as_they_come_nearer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    west, positions = await waiting(monkeypatch)
    for behind in range(9, 0, -1):
        positions.behind = behind
        await rounds(west, 0.25, POSITIONS_STALL_TIMEOUT_S / 3, POSITIONS_STALL_TIMEOUT_S / 3)
        assert west.role == ("west", 1, MOVING)
        (one,) = west.runs.standings(run_of(west))
        assert one.waits_for == f"{COMING.words} ({behind})", "how far they are can be seen"
        assert "failover execute f1 --force" in runner.remedy(run_of(west), one)
        west.now_s -= POSITIONS_STALL_TIMEOUT_S / 2  # so that all of it is below `MOST_S`
    assert west.news == 0
    positions.behind = 0
    await rounds(west, 0.25, 0.25)
    assert west.news > 0, "the leader need not wait for its next round"
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
    west, positions = await waiting(monkeypatch, behind)
    began_s, step_s = west.now_s, POSITIONS_STALL_TIMEOUT_S / 4
    while west.role == ("west", 1, MOVING):
        if positions.behind is not None:
            positions.behind += moves
        await rounds(west, step_s)
        assert west.now_s < began_s + 2 * MOST_S
    waited_s = west.now_s - began_s
    most_s = MOST_S if moves < 0 else POSITIONS_STALL_TIMEOUT_S
    assert most_s <= waited_s <= most_s + 3 * step_s
    said = west.log.view.roles.of(KEY).reason
    assert f" s of waiting for {COMING.words} (" in said
    assert said.endswith("messages that they would have skipped are delivered again")
    await west.round()
    assert state(west) == DONE
    assert run_of(west).result.startswith(f"1 active; {KEY}: it continued after ")
    assert run_of(west).result.endswith(said.partition("it went on")[2])
    await west.runs.stop()


async def test_a_region_that_comes_back_with_an_old_log_does_not_act_until_it_has_heard_the_others() -> None:
    east, west = two()
    await settled(east, west)
    assert east.keeper.runs_here(the(east)) is True
    west.log.apply(run(west, forced=True))  # the east is lost, all of it
    await west.round()
    back = FakeRegion("east", worker="east-2", ahead_ms=-300_000)  # a leader whose clock is behind
    back.log.apply(*_defined(east), *east.log.appended)
    assert back.role == ("east", 0, ACTIVE), "that is what it knew"
    assert back.keeper.runs_here(the(back)) is False
    told = back.keeper.sender_role(the(back))
    assert told is not None
    assert not told.primary
    await back.round(PULSE_INTERVAL_S)
    assert back.log.view.pulses["east"].returned_ms > 0
    assert back.keeper.runs_here(the(back)) is False
    back.hear(west)  # an old word: it has not heard that this one is back
    await back.round(PULSE_INTERVAL_S)
    assert back.role == ("west", 1, ACTIVE)
    west.hear(back)
    await west.round(PULSE_INTERVAL_S)
    back.hear(west)
    await back.round(PULSE_INTERVAL_S)
    assert back.log.view.pulses["east"].returned_ms == 0, "it has been answered"

    # and takes back what is its own again.
    back.log.apply(run(back, "f2"))
    for _ in range(3):
        await settled(back, west)
    assert back.role == west.role == ("east", 64, ACTIVE)
    assert back.keeper.runs_here(the(back)) is True
    assert state(back, "f2") == DONE


async def test_a_region_whose_neighbours_are_away_acts_again_after_a_while() -> None:
    east, _ = two()
    east.log.apply(role("east", 0))
    await east.round(PULSE_INTERVAL_S)
    assert east.keeper.runs_here(the(east)) is True
    east.lie_still(OUT_OF_TOUCH_S + 1)
    await east.round(0)
    assert east.keeper.runs_here(the(east)) is False
    await east.round(UNHEARD_S)
    assert east.keeper.runs_here(the(east)) is True


async def test_a_new_leader_of_a_region_that_lives_acts_at_once() -> None:
    east, west = two()
    await settled(east, west)
    other = FakeRegion("east", worker="east-2", ahead_ms=600_000)
    east.live = {other.presence.name}
    await east.round()
    other.log.apply(*_defined(east), *east.log.appended)
    assert other.keeper.runs_here(the(other)) is True, "the one that led before has named it"
    await other.round(PULSE_INTERVAL_S)
    assert other.keeper.runs_here(the(other)) is True
    assert other.log.view.pulses["east"].returned_ms == 0


async def test_nothing_is_carried_out_by_a_region_that_has_just_come_back() -> None:
    _, west = two()
    west.log.apply(role("east", 0), RegionPulse(at_ms=1, region="west", returned_ms=1))
    west.log.apply(run(west, forced=True))
    assert not [e for e in await west.round(PULSE_INTERVAL_S) if isinstance(e, RolePut)]
    await west.round(UNHEARD_S)
    await west.round()
    assert west.role == ("west", 1, ACTIVE)


async def test_the_leader_drops_expired_plans_and_old_runs_from_the_log() -> None:
    east, west = two()
    await settled(east, west)
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
    gone = ["failover-run/expired/planned", "failover-run/old/executing", "failover-run/old/done"]
    assert list(west.log.view.stale) == gone
    for key in gone:
        west.log.view.dropped(key)
    await west.round()
    assert not west.log.view.stale
    assert {one.id for one in west.log.view.runs} == {"may-begin", "new"}


async def test_a_word_of_a_run_in_another_region_s_log_is_not_this_region_s() -> None:
    east, west = two()
    await settled(east, west)
    west.log.apply(run(west))
    east.hear(west)
    await east.round()
    assert len(east.log.view.runs) == 0
    east.bridge.accept("west", [record(b"failover-run/f1/executing", b"{")])
    assert east.told == []
    assert JOB.startswith("dispatch:")


async def test_a_step_or_end_that_the_leader_cannot_write_is_reported_once() -> None:
    _, west = two()
    west.log.apply(role("east", 0))
    west.log.apply(run(west, forced=True))
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        assert west.runs.steps(west.now_s), "nothing of it comes into the log"
    (one,) = west.told
    assert one.startswith(f"failover-stuck f1: failover f1 of {KEY} to west waits for the leader of west to")
    assert "a leader whose rounds succeed" in one
    west.log.apply(role("west", 1, plan="f1", previous="east"))
    standings = west.runs.standings(run_of(west))
    assert west.runs.end_waits_for(run_of(west), standings) == "the leader of west to write that it has ended"
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        west.runs.steps(west.now_s)
    (_, end) = west.told
    assert end.startswith("failover-stuck f1: failover f1 to west waits for the leader of west to write that")
    await west.round()
    assert west.runs.end_waits_for(run_of(west), west.runs.standings(run_of(west))) == ""


async def test_a_region_that_has_just_come_back_says_that_its_runs_wait_for_that() -> None:
    _, west = two()
    west.log.apply(role("east", 0), RegionPulse(at_ms=1, region="west", returned_ms=1))
    west.log.apply(run(west, forced=True))
    (one,) = west.runs.standings(run_of(west))
    assert (one.waits_for, one.write) == ("region west to read what other regions decided", None)
    for _ in range(4):
        west.now_s += STUCK_AFTER_S / 2
        assert west.runs.steps(west.now_s) == []
    (told,) = west.told
    assert f"failover f1 of {KEY} to west waits for region west to read what other regions decided" in told
    assert "at the latest after 120 s" in told
    west.log.apply(role("west", 1, plan="f1", previous="east"))
    standings = west.runs.standings(run_of(west))
    assert (
        west.runs.end_waits_for(run_of(west), standings) == "region west to read what other regions decided"
    )
