"""Roles: which region is active (or primary) for a workload, and under which epoch. Pure.

Every region keeps `Roles` of what its own control log says. What another region's log says comes here late,
twice, in any order, or not at all: so nothing here depends on order, and a region acts by what it knows.

Rules
1. An epoch is one region's by its number: `epoch % MAX_REGIONS` is the region's rank (`rank`) among those
   that share the topic. Two regions that decide at the same moment, cut off from each other, decide on
   different epochs; the higher one counts as soon as both have heard of it.
2. Only a higher epoch changes the region. Under the same epoch and region `moving` becomes `active`, never
   the other way round. Should two definitions that differ have given one epoch to two regions, the one whose
   name is greater has it, so that all come to agree. Likewise of two failovers that took the same step at
   once the one with the greater name has made it.
3. A region acts for a workload only while the role that it knows is its own and `active`. Receivers that take
   nothing from a lower epoch than they have seen are safe while a region has not heard yet.
4. The first role comes from the definitions, the same in every region without talking: `primary`, else the
   first of the regions that share the topic, under the epoch that is its rank (`initial`). A role that was
   recorded is changed by nothing but a higher epoch: editing `primary` later moves nothing.
5. A `RoleReleased` says that a region has heard of an epoch that is not its own, and does nothing any more.
6. Rule 1 holds among regions that count the same ones: while the definitions differ, one number may be two
   regions'. So a failover is not carried out while the definition of the region that is left, as it came
   here, has other regions (`app.failover.plan.region_agreement`). What remains: a definition that was changed
   there and has not come here, first roles that are recorded while it differs, and a third region's. Then,
   for as long as the two have not heard each other, both may act under one epoch, which receivers cannot
   tell apart; once they have, rule 2 decides.
7. An epoch from `FREE_EPOCHS` on counts only close above one that is known (`is_jump`): one that nobody can
   have meant leaves room for those that follow it. Each role has a record key of its own, so every region
   reads the earlier ones first.

The state is a maximum (of epoch, region, state, plan), so any two regions that have heard the same events
agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from app.controllog.events import RoleEvent, RolePut, RoleReleased

MAX_REGIONS = 64
MAX_EPOCH = 1 << 53  # what every JSON reader can still count exactly
FREE_EPOCHS = MAX_EPOCH // 2
JUMP = MAX_REGIONS << 10  # an honest step is below `MAX_REGIONS`; several may be unheard here
RoleState = Literal["moving", "active"]
ACTIVE: Final = "active"
MOVING: Final = "moving"
ACTIVE_PASSIVE: Final = "active-passive"  # the mode of a workload that one region alone runs


def rank(region: str, regions: Sequence[str]) -> int:
    """The region's number among those that share the topic: by name, so that priorities may change.

    Raises:
        LookupError: it is none of them.
    """
    try:
        return sorted(set(regions)).index(region)
    except ValueError:
        raise LookupError(
            f"region {region} is none of those that share the topic ({', '.join(regions)}); "
            "add it to spec.regions of the Failover definition, or name another"
        ) from None


def next_epoch(above: int, region: str, regions: Sequence[str]) -> int:
    """The lowest epoch above `above` (-1: none yet) that is the region's. Raises LookupError."""
    own = rank(region, regions)
    following = above + 1
    return following + (own - following) % MAX_REGIONS


def initial(primary: str | None, regions: Sequence[str]) -> tuple[str, int]:
    """Region and epoch that a workload begins with.

    Raises:
        LookupError: `primary` is none of the regions, or there are none.
    """
    if primary is None and not regions:
        raise LookupError(
            "no Failover definition shares its topic, and it names no primary; deploy a Failover definition"
        )
    shared = regions or [primary or ""]
    region = primary or shared[0]
    return region, rank(region, shared)


class Roles:
    """See the module. Keeps what `put` and `release` were told, of all workloads."""

    __slots__ = ("_held", "_released")

    def __init__(self) -> None:
        self._held: dict[str, RolePut] = {}
        self._released: dict[str, dict[str, RoleReleased]] = {}

    def put(self, event: RolePut) -> bool:
        """Whether it says more than is known; if so, it is known now."""
        if self.is_jump(event) or not says_more(event, self._held.get(event.key)):
            return False
        self._held[event.key] = event
        return True

    def release(self, event: RoleReleased) -> bool:
        """Likewise."""
        if self.is_jump(event):
            return False
        of = self._released.setdefault(event.key, {})
        known = of.get(event.region)
        if known is not None and event.epoch <= known.epoch:
            return False
        of[event.region] = event
        return True

    def is_jump(self, event: RoleEvent) -> bool:
        """Whether its epoch is none that can follow what is known (rule 7)."""
        if 0 <= event.epoch < FREE_EPOCHS:
            return False
        held, told = self._held.get(event.key), self._released.get(event.key, {})
        known = max((one.epoch for one in (held, *told.values()) if one is not None), default=-JUMP)
        return not 0 <= event.epoch < min(known + JUMP, MAX_EPOCH)

    def of(self, key: str) -> RolePut | None:
        """The workload's role; None: nobody has recorded one."""
        return self._held.get(key)

    def is_active(self, key: str, region: str) -> bool:
        """Whether the region acts for the workload (rule 3)."""
        role = self._held.get(key)
        return role is not None and role.region == region and role.state == ACTIVE

    def has_released(self, key: str, region: str) -> bool:
        """Whether the region does nothing any more, having heard of the present epoch or a later one."""
        role, told = self._held.get(key), self._released.get(key, {}).get(region)
        return role is not None and told is not None and told.epoch >= role.epoch

    def released(self, key: str) -> dict[str, RoleReleased]:
        """The last word of each region that has let go."""
        return dict(self._released.get(key, {}))

    def __iter__(self) -> Iterator[RolePut]:
        """Every workload's role."""
        return iter(list(self._held.values()))

    def all_released(self) -> list[RoleReleased]:
        """Every region's last word of every workload."""
        return [event for of in self._released.values() for event in of.values()]


def says_more(event: RolePut, known: RolePut | None) -> bool:
    """Whether it counts where `known` does (rule 2)."""
    return known is None or _place(event) > _place(known)


def _place(event: RolePut) -> tuple[int, str, bool, str]:
    return event.epoch, event.region, event.state == ACTIVE, event.plan
