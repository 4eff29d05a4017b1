"""Roles: which region is active (or primary) for a workload, and under which epoch.

Every region keeps `Roles` from its own control log. Events from other regions' logs arrive late, twice, in
any order, or never. So nothing below `FREE_EPOCHS` depends on order, and a region acts on what it has read.

Rules
1. The number of an epoch says which region may issue it: `epoch % MAX_REGIONS` is the region's rank
   (`rank`) among those that share the topic. Two regions that are cut off from each other therefore choose
   different epochs. The higher epoch counts as soon as both have read of it.
2. A lower epoch changes nothing. Under the same epoch and region `moving` becomes `active`, never the
   reverse. Ties need differing definitions or two failovers at once: then the greater region name, and the
   greater name of the failover, wins. So all regions agree.
3. A region acts for a workload only while the role that it knows is its own and `active`. Until a region
   has read of a higher epoch, receivers protect themselves: they refuse calls under a lower epoch than
   they have seen.
4. The first role comes from the definitions, and is the same in every region without communication:
   `primary`, else the first of the regions that share the topic, under its rank as the epoch (`initial`).
   Only a higher epoch changes a recorded role, so an edit of `primary` moves nothing.
5. `RoleReleased` says that a region has read of another region's epoch and has stopped.
6. Rule 1 needs the same list of regions everywhere: while definitions differ, one epoch may belong to two
   regions. So a failover does not run while the definition of the region that it leaves, as read here,
   lists other regions (`app.failover.plan.region_agreement`). Three cases remain: a change there that has
   not arrived here, first roles recorded while definitions differ, and a third region. Then both regions
   may act under one epoch, which receivers cannot tell apart, until each has read the other's role. Rule 2
   decides from there.
7. An epoch from `FREE_EPOCHS` on counts only closely above a known one (`is_jump`), so that a forged epoch
   leaves room for the next ones. Compaction keeps every role, because each has its own key. So a reader meets
   the lower epochs first.

The state is a maximum (of epoch, region, state, plan), so any two regions that have read the same events
agree (`tests/controllog/test_roles.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from app.controllog.events import RoleEvent, RolePut, RoleReleased

MAX_REGIONS = 64
MAX_EPOCH = 1 << 53  # the largest exact integer in every JSON reader
FREE_EPOCHS = MAX_EPOCH // 2
JUMP = MAX_REGIONS << 10  # a valid step is at most `MAX_REGIONS`; several may not have arrived here
RoleState = Literal["moving", "active"]
ACTIVE: Final = "active"
MOVING: Final = "moving"
ACTIVE_PASSIVE: Final = "active-passive"  # the mode of a workload that runs in one region


def rank(region: str, regions: Sequence[str]) -> int:
    """The region's number among those that share the topic: by name, so that priorities may change.

    Raises:
        LookupError: The region does not share the topic.
    """
    try:
        return sorted(set(regions)).index(region)
    except ValueError:
        raise LookupError(
            f"region {region} is none of those that share the topic ({', '.join(regions)}); "
            "add it to spec.regions of the Failover definition, or name another region"
        ) from None


def next_epoch(above: int, region: str, regions: Sequence[str]) -> int:
    """The region's lowest epoch above `above` (-1: there is none yet).

    Raises:
        LookupError: The region does not share the topic.
    """
    own = rank(region, regions)
    following = above + 1
    return following + (own - following) % MAX_REGIONS


def initial(primary: str | None, regions: Sequence[str]) -> tuple[str, int]:
    """The region and epoch that a workload begins with.

    Raises:
        LookupError: `primary` does not share the topic, or there are no regions.
    """
    if primary is None and not regions:
        raise LookupError(
            "no Failover definition shares its topic, and it names no primary; deploy a Failover definition"
        )
    shared = regions or [primary or ""]
    region = primary or shared[0]
    return region, rank(region, shared)


class Roles:
    """The roles of all workloads, as far as this region has read them."""

    __slots__ = ("_held", "_released")

    def __init__(self) -> None:
        self._held: dict[str, RolePut] = {}
        self._released: dict[str, dict[str, RoleReleased]] = {}

    def put(self, event: RolePut) -> bool:
        """Takes a role; returns whether it is higher than the known one."""
        if self.is_jump(event) or not is_higher(event, self._held.get(event.key)):
            return False
        self._held[event.key] = event
        return True

    def release(self, event: RoleReleased) -> bool:
        """Takes a region's release; returns whether its epoch is higher than the known one."""
        if self.is_jump(event):
            return False
        by_region = self._released.setdefault(event.key, {})
        known = by_region.get(event.region)
        if known is not None and event.epoch <= known.epoch:
            return False
        by_region[event.region] = event
        return True

    def is_jump(self, event: RoleEvent) -> bool:
        """Whether the epoch cannot follow the known ones (rule 7)."""
        if 0 <= event.epoch < FREE_EPOCHS:
            return False
        held, released = self._held.get(event.key), self._released.get(event.key, {})
        known = max((one.epoch for one in (held, *released.values()) if one is not None), default=-JUMP)
        return not 0 <= event.epoch < min(known + JUMP, MAX_EPOCH)

    def of(self, key: str) -> RolePut | None:
        """The workload's role; None: none is recorded."""
        return self._held.get(key)

    def is_active(self, key: str, region: str) -> bool:
        """Whether the region acts for the workload (rule 3)."""
        role = self._held.get(key)
        return role is not None and role.region == region and role.state == ACTIVE

    def has_released(self, key: str, region: str) -> bool:
        """Whether the region has stopped, under the present epoch or a later one."""
        role, released = self._held.get(key), self._released.get(key, {}).get(region)
        return role is not None and released is not None and released.epoch >= role.epoch

    def released(self, key: str) -> dict[str, RoleReleased]:
        """The last release of each region."""
        return dict(self._released.get(key, {}))

    def __iter__(self) -> Iterator[RolePut]:
        """Every workload's role."""
        return iter(list(self._held.values()))

    def all_released(self) -> list[RoleReleased]:
        """Each region's last release of every workload."""
        return [event for by_region in self._released.values() for event in by_region.values()]


def is_higher(event: RolePut, known: RolePut | None) -> bool:
    """Whether `event` counts against `known` (rule 2)."""
    return known is None or _place(event) > _place(known)


def _place(event: RolePut) -> tuple[int, str, bool, str]:
    return event.epoch, event.region, event.state == ACTIVE, event.plan
