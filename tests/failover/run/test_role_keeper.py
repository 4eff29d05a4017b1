"""Roles are recorded, exchanged between the regions' logs, and released in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from app.controllog import codec
from app.controllog.events import Assignment, RegionPulse, Released, RolePut, RoleReleased, WorkloadDeleted
from app.controllog.roles import ACTIVE, MAX_EPOCH, MOVING
from app.dispatch.push.metadata import SenderRole
from app.failover.run.region_bridge import UNHEARD_S
from app.failover.run.role_keeper import MAX_WAIT_FOR_REGIONS_S, PULSE_INTERVAL_S, READ_BY_ALL_S
from tests.failover.run.region_fakes import KEY, FakeRegion, failover, workload

JOB = f"dispatch:{KEY}:orders:0"


def two_regions(*, mode: str = "active-passive", **spec: Any) -> tuple[FakeRegion, FakeRegion]:
    defined = failover(), workload(mode, **spec)
    return FakeRegion("east", *defined), FakeRegion("west", *defined)


async def exchange_logs(*regions: FakeRegion) -> None:
    """All regions run rounds and hear each other, three times: enough for each to answer the others."""
    for _ in range(3):
        for region in regions:
            await region.round(PULSE_INTERVAL_S)
        for region in regions:
            for other in regions:
                if other is not region:
                    region.hear(other)


def own_job(region: FakeRegion, epoch: int = 1) -> None:
    region.log.apply(Assignment(at_ms=0, job=JOB, worker="w", epoch=epoch, term=1, reason=""))


def release_job(region: FakeRegion, epoch: int = 1) -> None:
    region.log.apply(Released(at_ms=0, job=JOB, worker="w", epoch=epoch))


async def test_the_first_role_is_the_same_in_all_regions() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)

    assert east.role == west.role == ("east", 0, ACTIVE)
    assert east.log.view.roles.is_active(KEY, "east")


async def test_primary_sets_the_first_active_region_and_moves_nothing_later() -> None:
    east, west = two_regions(primary="west")
    await exchange_logs(east, west)
    assert east.role == west.role == ("west", 1, ACTIVE)
    for region in (east, west):
        region.log.apply(workload(primary="east"))
    await exchange_logs(east, west)
    assert east.role == west.role == ("west", 1, ACTIVE)


async def test_a_region_that_comes_back_with_nothing_hears_the_others_before_it_is_active() -> None:
    _, west = two_regions()
    await west.round()
    moved = await west.take_over()
    east, _ = two_regions()  # its control log is lost
    await east.round()
    assert east.role is None
    east.hear(west)
    await east.round()

    assert east.role == ("west", moved.epoch, ACTIVE)
    assert not any(isinstance(e, RolePut) and e.region == "east" for e in east.log.appended)


async def test_a_region_that_hears_no_neighbour_becomes_active_after_a_while() -> None:
    east, _ = two_regions()
    await east.round()
    assert east.role is None
    await east.round(UNHEARD_S)
    assert east.role == ("east", 0, ACTIVE)


async def test_a_pulse_from_before_the_other_region_heard_this_one_is_no_answer() -> None:
    _, west = two_regions()
    east, _ = two_regions()  # starts with an empty log, while a long log of the west arrives
    for _ in range(int(MAX_WAIT_FOR_REGIONS_S / UNHEARD_S)):
        await west.round(PULSE_INTERVAL_S)
        west.log.appended[-1] = msgspec.structs.replace(
            west.log.appended[-1], heard={"east": 2**50}, answers={"east": "east-0/0"}
        )
        east.hear(west)
        await east.round(UNHEARD_S - 1)
        assert east.role is None, "new events still arrive, and one may name an active region"
    later = RegionPulse(at_ms=0, region="west", answers={"east": east.presence.name})
    east.bridge.accept("west", [record(b"pulse/west", codec.encode(later))])
    await east.round()
    assert east.role == ("east", 0, ACTIVE)


async def test_without_a_failover_definition_only_primary_makes_a_region_active() -> None:
    east = FakeRegion("east", workload(primary="east"))
    await east.round()
    assert east.role == ("east", 0, ACTIVE)
    without_primary = FakeRegion("east", workload())
    await without_primary.round()
    await without_primary.round(UNHEARD_S)
    assert without_primary.role is None
    assert len(without_primary.incidents) == 1
    assert (
        "no region is active for it: no Failover definition shares its topic" in without_primary.incidents[0]
    )


async def test_a_move_reaches_the_other_region_which_releases_the_workload_after_its_jobs() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    own_job(east)
    west.log.apply(west.run())
    await west.round()
    assert (west.role, west.keeper.runs_here(shared_workload(west))) == (("west", 1, MOVING), False)
    await exchange_logs(west, east)
    assert east.role == ("west", 1, MOVING)
    assert east.keeper.runs_here(shared_workload(east)) is False
    assert not east.log.view.roles.has_released(KEY, "east"), "its job is not released yet"
    release_job(east)
    await exchange_logs(east, west)
    assert west.log.view.roles.has_released(KEY, "east")
    await exchange_logs(west, east)
    assert east.role == west.role == ("west", 1, ACTIVE)
    active = west.log.view.roles.of(KEY)
    assert active is not None
    assert (active.previous, west.keeper.runs_here(shared_workload(west))) == ("east", True)


def shared_workload(region: FakeRegion) -> Any:
    return region._workload(KEY)


async def test_after_two_moves_at_once_all_regions_follow_the_higher_epoch() -> None:
    defined = failover("east", "west", "north"), workload()
    regions = [FakeRegion(name, *defined) for name in ("east", "west", "north")]
    await exchange_logs(*regions)
    east, west, north = regions
    one = await west.take_over()
    other = await north.take_over("f2")
    await exchange_logs(*regions)

    assert one.epoch != other.epoch
    winner = max((one, other), key=lambda role: role.epoch)
    assert {region.role for region in regions} == {(winner.region, winner.epoch, ACTIVE)}
    assert [region.keeper.runs_here(shared_workload(region)) for region in (east, west, north)] == [
        region.own == winner.region for region in (east, west, north)
    ]


async def test_active_active_runs_in_every_region_and_receivers_learn_the_primary() -> None:
    east, west = two_regions(mode="active-active")
    assert east.keeper.sender_role(shared_workload(east)) == SenderRole("east", primary=False, epoch=0), (
        "not known yet"
    )
    await exchange_logs(east, west)
    own_job(east)
    moved = await west.take_over()
    await exchange_logs(west, east)

    assert (
        east.keeper.runs_here(shared_workload(east)) is west.keeper.runs_here(shared_workload(west)) is True
    )
    assert east.keeper.sender_role(shared_workload(east)) == SenderRole(
        "east", primary=False, epoch=moved.epoch
    )
    assert west.keeper.sender_role(shared_workload(west)) == SenderRole(
        "west", primary=True, epoch=moved.epoch
    )
    assert not west.log.view.roles.has_released(KEY, "east")
    await east.round(READ_BY_ALL_S)
    await exchange_logs(east, west)
    assert west.log.view.roles.has_released(KEY, "east"), (
        "it keeps its jobs, and all its workers have read the move"
    )


async def test_a_role_outlives_the_workload() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    moved = await west.take_over()
    for region in (east, west):
        region.log.apply(WorkloadDeleted(at_ms=0, key=KEY, actor="me"))
        region.log.apply(workload())
    await exchange_logs(east, west)

    assert east.role == west.role == ("west", moved.epoch, ACTIVE)


async def test_a_role_that_is_heard_twice_or_by_the_next_leader_is_written_once() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    await west.take_over()
    east.hear(west, twice=True)
    await east.round()
    await east.round()
    before = len([e for e in east.log.appended if isinstance(e, RolePut | RoleReleased)])
    following = FakeRegion("east")  # another worker leads, with the same log
    following.log.apply(failover(), workload(), *east.log.appended)
    following.hear(west, twice=True)
    assert [e for e in await following.round() if isinstance(e, RolePut | RoleReleased)] == []
    east.hear(west)
    await east.round()
    assert len([e for e in east.log.appended if isinstance(e, RolePut | RoleReleased)]) == before


async def test_only_roles_of_workloads_defined_here_are_taken_over() -> None:
    east = FakeRegion("east", failover())
    _, west = two_regions()
    await exchange_logs(west)
    await west.take_over()
    east.hear(west)
    await east.round()
    assert east.role is None
    east.log.apply(workload())
    await east.round()
    assert east.role == ("west", 1, ACTIVE), "once it is defined, the role that was heard before counts"


async def test_regions_send_pulses_with_the_regions_that_they_heard() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    pulses = [event for event in east.log.appended if isinstance(event, RegionPulse)]

    assert {pulse.region for pulse in pulses} == {"east"}
    assert pulses[-1].heard.keys() == {"west"}
    assert not [e for e in await east.round(PULSE_INTERVAL_S / 2) if isinstance(e, RegionPulse)]
    alone = FakeRegion("east", workload(primary="east"))
    assert not [e for e in await alone.round(PULSE_INTERVAL_S) if isinstance(e, RegionPulse)]


def record(key: bytes | None, value: bytes | None) -> Any:
    return SimpleNamespace(offset=7, key=key, value=value)


async def test_garbage_in_a_copy_is_skipped_and_reported_once() -> None:
    east, _ = two_regions()
    too_high = RolePut(at_ms=0, key=KEY, region="west", epoch=MAX_EPOCH - 1, state=ACTIVE)
    too_long = RolePut(at_ms=0, key="x" * 501, region="west", epoch=1, state=ACTIVE)
    good = RolePut(at_ms=0, key=KEY, region="west", epoch=1, state=ACTIVE)
    foreign = RegionPulse(at_ms=5, region="north")
    east.bridge.accept("west", [
        record(None, b"x"), record(b"role/a", None), record(b"role/a", b"\xff"), record(b"role/a", b"{}"),
        record(b"role/a", b'{"event": "role-put", "epoch": "high"}'), record(b"claim/1/w", b"{"),
        *(record(b"role/a", codec.encode(event)) for event in (too_high, too_long, foreign, good)),
    ])  # fmt: skip

    assert east.bridge.roles.of(KEY) == good
    assert east.bridge.pulses == {}
    assert len(east.incidents) == 1
    assert "the worker skips it; find out what else writes to that topic" in east.incidents[0]
