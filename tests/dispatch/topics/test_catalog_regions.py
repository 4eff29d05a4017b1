"""The jobs of a workload of several regions: by mode and role, on the region's own cluster."""

from __future__ import annotations

from typing import Any

import pytest

from app.controllog.events import RolePut
from app.controllog.roles import ACTIVE, MOVING, RoleState
from app.worker.catalog import Catalog
from app.worker.readable_definitions import ReadableDefinitions
from tests.failover.run.region_fakes import KEY, SITES, FakeRegion, failover, workload
from tests.web.runtime_fake import assigned
from tests.worker.runtime.test_job_manager import Away

JOBS = {f"dispatch:{KEY}:orders:{partition}" for partition in range(2)}


def catalog_of(region: FakeRegion) -> Catalog:
    """The leader's catalog, which has seen the topic; its clusters do not answer since."""
    clusters: Any = Away(*SITES)
    layout = region.failovers.layout
    log: Any = region.log

    def report(*trouble: str) -> None:
        region.incidents.append(trouble[2])

    catalog = Catalog(log, clusters, report, ReadableDefinitions(log, report, layout), region.keeper)
    catalog.workloads._partitions[f"{region.own}-aggregate", "orders"] = 2
    return catalog


def role(region: str, epoch: int, state: RoleState = ACTIVE) -> RolePut:
    return RolePut(at_ms=0, key=KEY, region=region, epoch=epoch, state=state)


async def test_an_active_passive_workload_has_jobs_where_it_is_active_and_on_that_regions_cluster() -> None:
    west = FakeRegion("west", failover(), workload())
    catalog = catalog_of(west)
    found = catalog.workloads.workload(KEY)
    assert found is not None
    assert found.metadata.cluster == "west-aggregate"
    assert await catalog.jobs() == set(), "the active region is not known yet"
    west.log.apply(role("east", 0))
    assert await catalog.jobs() == set()
    west.log.apply(role("west", 1, MOVING))
    assert await catalog.jobs() == set(), "not before the other region has released its jobs"
    west.log.apply(role("west", 1))
    assert await catalog.jobs() == JOBS
    west.log.apply(role("east", 64))
    assert await catalog.jobs() == set()


async def test_running_jobs_continue_while_the_active_region_is_unknown() -> None:
    west = FakeRegion("west", failover(), workload())
    job = min(JOBS)
    west.log.view.assignments[job] = assigned(job)

    assert await catalog_of(west).jobs() == {job}


@pytest.mark.parametrize("active", ["east", "west"])
async def test_an_active_active_workload_has_jobs_in_every_region(active: str) -> None:
    west = FakeRegion("west", failover(), workload("active-active"), role(active, 0))

    assert await catalog_of(west).jobs() == JOBS


async def test_a_workload_whose_cluster_this_region_lacks_is_reported_with_the_remedy() -> None:
    west = FakeRegion("west", failover(), workload())
    assert west.failovers.layout is not None
    sites = {name: site for name, site in SITES.items() if name != "west-aggregate"}
    object.__setattr__(west.failovers.layout, "sites", sites)
    catalog = catalog_of(west)

    assert catalog.workloads.workload(KEY) is None
    assert "region west has no cluster of tier aggregate; give each region one" in west.incidents[0]
