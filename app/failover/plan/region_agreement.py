"""Checks that another region shares a topic between the same regions as this one: epochs depend on that list
(`app.controllog.roles`, rules 1 and 6).

The other region's failover definitions are read from the copy of its control log.
"""

from __future__ import annotations

import asyncio

import structlog

from app.controllog import codec
from app.controllog.events import FailoverPut
from app.dispatch.definition import Workload
from app.failover.definition import FailoverDefinition
from app.failover.plan.document import Check
from app.failover.plan.ports import PlanPorts
from app.failover.topology import Failover, governing
from app.offsets.store.records import ROUTES, RegionStore

log = structlog.get_logger(__name__)

NAME = "regions"
SAME_FILE = "deploy the same file in both regions; if one is lost, deploy the file that it had"


class RegionDefinitions:
    """The failover definitions of other regions, read once for a plan."""

    def __init__(self, ports: PlanPorts) -> None:
        self._ports = ports
        self._known: dict[str, list[Failover] | None] = {}
        self._reading = asyncio.Lock()
        self._governing: dict[tuple[str, str], Failover | None] = {}

    async def of(self, region: str) -> list[Failover] | None:
        """A region's definitions; None: they are not known."""
        regions = self._ports.regions
        async with self._reading:
            if region not in self._known:
                self._known[region] = None
                try:
                    if regions is not None:
                        self._known[region] = await regions.tables.ask(lambda store: _read(store, region))
                except Exception as error:  # noqa: BLE001 - the check then says so
                    log.info("cannot read another region's definitions", region=region, error=repr(error))
            return self._known[region]

    async def same_regions(self, workload: Workload, region: str) -> Check:
        """Compares the definitions that govern the workload's topic, here and in `region`."""
        known = await self.of(region)
        if known is None:
            return Check(name=NAME, level="ok", detail=f"region {region}'s definitions are unknown here")
        topic, at = workload.metadata.topic, (region, workload.metadata.topic)
        if at not in self._governing:
            self._governing[at] = governing(known, topic)
        theirs, ours = self._governing[at], self._ports.failover.derived_routes.governing(topic)
        if theirs is None:  # it can give the workload to the `primary` only
            detail = f"region {region} has no Failover definition of topic {topic}: it cannot take it back"
            return Check(name=NAME, level="warn", detail=detail, remedy=SAME_FILE)
        mine = () if ours is None else ours.regions
        if set(theirs.regions) != set(mine):
            detail = (
                f"region {region} shares topic {topic} between {', '.join(sorted(theirs.regions))} "
                f"({theirs.name}), this one between {', '.join(sorted(mine)) or 'no regions'}: two regions "
                "could then issue the same epoch"
            )
            return Check(name=NAME, level="blocked", detail=detail, remedy=SAME_FILE)
        if theirs != ours:
            detail = f"the Failover definition of topic {topic} in region {region} differs ({theirs.name})"
            return Check(name=NAME, level="warn", detail=detail, remedy=SAME_FILE)
        return Check(name=NAME, level="ok", detail=f"shared between the same regions as in region {region}")


def _read(store: RegionStore, region: str) -> list[Failover] | None:
    """None: the copy of the region's control log is incomplete, or a definition in it is invalid."""
    origin = store.origin(ROUTES, region)
    if origin is None or not origin.complete or not origin.cluster:
        return None
    found = []
    for key, value in store.records(ROUTES, region, "failover/"):
        try:
            put = codec.control_event(value)
            if isinstance(put, FailoverPut):
                found.append(FailoverDefinition.from_wire(put.definition).failover())
        except ValueError as error:
            log.error("cannot read a region's failover definition", region=region, key=key,
                      error=str(error))  # fmt: skip
            return None
    return found
