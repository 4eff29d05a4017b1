"""Where a workload is passive, and which region's positions it follows."""

from __future__ import annotations

from app.controllog.events import RoleReleased
from app.controllog.roles import ACTIVE
from app.offsets.sync.group_sync_schedule import PassiveWorkload
from tests.failover.run.region_fakes import KEY, FakeRegion
from tests.failover.run.test_role_keeper import exchange_logs, own_job, release_job, two_regions

IN_WEST = PassiveWorkload(KEY, "billing", "orders", "east", "east-aggregate", "west-aggregate")
IN_EAST = PassiveWorkload(KEY, "billing", "orders", "west", "west-aggregate", "east-aggregate")


async def test_a_region_follows_the_active_one_once_it_has_released_the_workload() -> None:
    east, west = two_regions()
    assert (east.keeper.passive(), west.keeper.passive()) == ([], []), "no role is known"
    await exchange_logs(east, west)
    assert (east.keeper.passive(), west.keeper.passive()) == ([], [IN_WEST])

    own_job(east)
    await west.take_over()
    assert west.keeper.passive() == []
    await exchange_logs(east, west)
    assert east.keeper.passive() == [], "a worker of the east still owns its job"
    release_job(east)
    await exchange_logs(east, west)
    assert (east.keeper.passive(), west.keeper.passive()) == ([IN_EAST], [])


async def test_while_a_role_moves_its_region_follows_the_former_one() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    own_job(east)
    west.log.apply(west.run())
    await west.round()
    assert west.keeper.passive() == [IN_WEST]
    await exchange_logs(east, west)
    assert east.keeper.passive() == [], "it was the active region, so it follows none"
    release_job(east)
    await exchange_logs(east, west)
    assert west.role == ("west", 1, ACTIVE)
    assert west.keeper.passive() == []


async def test_of_an_active_active_workload_every_region_has_positions_of_its_own() -> None:
    regions = two_regions(mode="active-active")
    await exchange_logs(*regions)
    for region in regions:
        region.log.apply(RoleReleased(at_ms=0, key=KEY, region=region.own, epoch=100))
        assert region.keeper.passive() == []


async def test_a_cluster_that_cannot_be_named_is_trouble_of_that_workload() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    layout = west.failovers.layout
    assert layout is not None
    sites = {**layout.sites, "another": layout.sites["east-aggregate"]}
    west.failovers.layout = type(layout)(layout.own, sites, layout.control)
    (passive,) = west.keeper.passive()
    assert "region east has 2 clusters of tier aggregate" in passive.trouble


def test_a_worker_that_knows_of_no_regions_has_none() -> None:
    east = FakeRegion("east")
    east.failovers.layout = None
    assert east.keeper.passive() == []
