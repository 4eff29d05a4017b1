"""Groups kept in step again and again: those that `spec.offsets` of routes names, and those of workloads that
are passive here (`app.offsets.sync.group_syncer` does it for one).

Rules
1. A workload that is active-passive, and active in another region, needs no route that says so: the group's
   positions in this region's own cluster follow those in the active region's, of the main topic only. Retry
   topics and dead letters are each region's own.
2. Such a group may be further here than what is mapped: this region was active once. That is in step, if
   Switchyard committed that position. Somebody else's is left as it is, too, and told: were this region to
   become active, what lies between would be passed over, read or not.
3. While the active region's cluster does not answer, or the map cannot be read, nothing changes, and it is
   said. One group that fails holds up no other; it is tried again with the next round. Each is told once,
   until it does well.
4. The leader does it, while its lease holds. What was done stands with the positions: the next one goes on.
5. Groups of Switchyard's own (`switchyard-*`) are never meant by a route.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.clock import now_ms
from app.offsets.model.group_sync import BEYOND_MAPPED
from app.offsets.store.tables import NotRead, ReadableClusters
from app.offsets.sync.group_syncer import GroupOutcome, GroupState, GroupSyncer, OffsetMapViews, Wanted
from app.replicate.definition import GroupSync, RouteDefinition
from app.replicate.model.route import Route

log = structlog.get_logger(__name__)

SYNC_POLL_INTERVAL_S = 1.0
PASSIVE_SYNC_INTERVAL_S = 5.0
GROUPS_AT_ONCE = 8
GROUP_SYNC_TIMEOUT_S = 20.0  # one that takes longer is tried again
ROUND_READ_TIMEOUT_S = 60.0  # reading the map anew may take as long
OWN_GROUP_PREFIX = "switchyard-"
CLUSTER_ERRORS = (ClusterUnreachable, KafkaError, NotRead, OSError, TimeoutError)
REMEDY = "it is tried again; offsets map explains the position, offsets sync shows what would be done"

FOREIGN = "Switchyard did not commit it; set it back if what lies between was not read"

PassiveState = Literal[GroupState, "away", "starting"]
ReportIncident = Callable[[str, str, str, str], None]
SyncedRoutes = Callable[[], Mapping[str, tuple[RouteDefinition, Route]]]


@dataclass(frozen=True, slots=True)
class PassiveWorkload:
    """A workload that is passive here. `source`: the cluster that the active `region` consumes, `target` this
    region's own. `trouble`: why these cannot be named; then they are ""."""

    key: str
    group: str
    topic: str
    region: str
    source: str = ""
    target: str = ""
    trouble: str = ""


class PassiveSyncStatus(NamedTuple):
    """How well a passive workload's positions here follow the active region's.

    Attributes:
        of: the workload, the region that is active, and the clusters.
        state: as of the last round (`GroupState`); "away": a cluster or the map does not answer, nothing
            changes; "starting": there was no round yet.
        why: of one that is not in step.
        at_ms: when it was looked at last. good_ms: when it was in step last, since this worker leads.
    """

    of: PassiveWorkload
    state: PassiveState
    why: str
    at_ms: int | None
    good_ms: int | None

    def lag_s(self, now_ms: int) -> float | None:
        """How long ago it was in step last; None: it never was."""
        return None if self.good_ms is None else max(0, now_ms - self.good_ms) / 1000


@dataclass(slots=True)
class SyncedGroups:
    """What is kept in step from one cluster to another: a route's groups by their names, or passive workloads
    by their keys. `good_ms`: when each was last in step; `error`: why there was no round."""

    name: str
    source: str
    target: str
    outcomes: dict[str, GroupOutcome] = field(default_factory=dict)
    good_ms: dict[str, int] = field(default_factory=dict)
    began_s: float = float("-inf")
    took_s: float = 0.0
    rounds: int = 0
    error: str = ""

    def lag_s(self, at_ms: int) -> float | None:
        """Since when some group that has no members there was not in step; None: there is no such."""
        waiting = [
            at_ms - self.good_ms.get(name, one.at_ms)
            for name, one in self.outcomes.items()
            if one.state not in {"live", "nothing"}
        ]
        return max(0, *waiting) / 1000 if waiting else None


class _One(NamedTuple):
    """One group's part of a round."""

    name: str  # in `SyncedGroups.outcomes`
    group: str
    wanted: Wanted = lambda _: None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a route, or passive workloads, ask for."""

    source: str
    target: str
    every_s: float
    route: tuple[GroupSync, Route] | None = None
    passive: tuple[PassiveWorkload, ...] = ()


class GroupSyncSchedule(Service):
    """See the module.

    Args:
        routes: this region's, by name. passive: workloads that are passive here.
        may_act: whether this worker leads, and its lease holds.

    Attributes: `routes`, `passive` (what became of each route's groups; of the passive workloads, by the
        active region's cluster), on the leader.
    """

    def __init__(
        self,
        syncer: GroupSyncer,
        clusters: ReadableClusters,
        routes: SyncedRoutes,
        may_act: Callable[[], bool],
        report_incident: ReportIncident,
        passive: Callable[[], Sequence[PassiveWorkload]] = lambda: (),
    ) -> None:
        super().__init__()
        self.routes: dict[str, SyncedGroups] = {}
        self.passive: dict[str, SyncedGroups] = {}
        self._syncer = syncer
        self._clusters = clusters
        self._defined = routes
        self._passive = passive
        self._may_act = may_act
        self._report_incident = report_incident
        self._told: set[tuple[str, str]] = set()
        self._wishes: dict[str, tuple[RouteDefinition, GroupSync | None]] = {}  # parsed once a change
        self._passives: dict[str, PassiveWorkload] = {}
        self._under_way: dict[tuple[str, str, str], asyncio.Task[None]] = {}

    async def on_stop(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def passive_status(self, key: str) -> PassiveSyncStatus | None:
        """How a workload's positions follow the active region's; None: it is not passive here, or this worker
        does not lead."""
        one = self._passives.get(key)
        if one is None:
            return None
        kept = self.passive.get(one.source)
        made = None if kept is None else kept.outcomes.get(key)
        state: PassiveState = "starting" if made is None else made.state
        why = "" if made is None else made.why
        if one.trouble:
            state, why = "failed", one.trouble
        elif kept is not None and kept.error:
            state, why = "away", kept.error
        at_ms = None if made is None else made.at_ms
        return PassiveSyncStatus(one, state, why, at_ms, None if kept is None else kept.good_ms.get(key))

    def passive_statuses(self) -> dict[str, PassiveSyncStatus]:
        """Likewise, of every workload that is passive here."""
        return {key: told for key in sorted(self._passives) if (told := self.passive_status(key)) is not None}

    # -- rounds ------------------------------------------------------------------------------------

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            await self.sleep(SYNC_POLL_INTERVAL_S)
            try:
                self._poll()
            except Exception:
                log.exception("looking at what is to be kept in step failed; it is tried again")

    def _poll(self) -> None:
        self._under_way = {name: task for name, task in self._under_way.items() if not task.done()}
        if not self._may_act():
            for task in self._under_way.values():
                task.cancel()
            self.routes.clear()
            self.passive.clear()
            self._passives.clear()
            return
        self._keep(self.routes, self._of_routes())
        self._keep(self.passive, self._of_passive())

    def _of_routes(self) -> dict[str, _Wish]:
        defined = self._defined()
        for name, (definition, _) in defined.items():
            if self._wishes.get(name, (None,))[0] is not definition:
                self._wishes[name] = definition, definition.offsets
        for gone in self._wishes.keys() - defined.keys():
            del self._wishes[gone]
        wanted = ((name, wish, defined[name][1]) for name, (_, wish) in self._wishes.items())
        return {
            name: _Wish(route.source, route.target, wish.every_s, (wish, route))
            for name, wish, route in wanted
            if wish is not None
        }

    def _of_passive(self) -> dict[str, _Wish]:
        self._passives = {one.key: one for one in self._passive()}
        found: dict[str, list[PassiveWorkload]] = {}
        for one in self._passives.values():
            if one.trouble:
                self._report("", one.key, f"its offsets do not follow region {one.region}: {one.trouble}")
            else:
                found.setdefault(one.source, []).append(one)
        return {
            source: _Wish(source, many[0].target, PASSIVE_SYNC_INTERVAL_S, passive=tuple(many))
            for source, many in found.items()
        }

    def _keep(self, kept: dict[str, SyncedGroups], wishes: Mapping[str, _Wish]) -> None:
        for gone in kept.keys() - wishes.keys():
            del kept[gone]
        for name, wish in wishes.items():
            status = kept.get(name)
            if status is None or (status.source, status.target) != (wish.source, wish.target):
                status = kept[name] = SyncedGroups(name, wish.source, wish.target)
            of = ("" if wish.route is None else name, wish.source, wish.target)
            if time.monotonic() - status.began_s >= wish.every_s and of not in self._under_way:
                status.began_s = time.monotonic()
                self._under_way[of] = asyncio.get_running_loop().create_task(self._round(status, wish))

    async def _round(self, status: SyncedGroups, wish: _Wish) -> None:
        began_s = time.monotonic()
        route, name = (status.name, "") if wish.route else ("", status.name)
        try:
            parts = await self._parts(wish)
            await self._syncer.mapper.read(ROUND_READ_TIMEOUT_S)
            views = self._syncer.views(wish.source, wish.target)
            gate = asyncio.Semaphore(GROUPS_AT_ONCE)
            await asyncio.gather(*(self._one(status, part, views, gate) for part in parts))
            for gone in status.outcomes.keys() - {part.name for part in parts}:
                del status.outcomes[gone]
                status.good_ms.pop(gone, None)
            status.error = ""
        except (*CLUSTER_ERRORS, KeyError) as error:
            status.error = str(error) or repr(error)
            whose = "the groups of" if wish.route else "the offsets of workloads that are passive here, as of"
            self._report(route, name, f"{whose} {wish.source} cannot be kept in step: {status.error}")
        except Exception as error:
            status.error = repr(error)
            log.exception("a round of offset sync failed; the next one starts afresh", of=status.name)
        else:
            self._told.discard((route, name))
        finally:
            status.took_s, status.rounds = time.monotonic() - began_s, status.rounds + 1

    async def _parts(self, wish: _Wish) -> list[_One]:
        """Raises KeyError, ClusterUnreachable, KafkaError: a cluster that is needed does not answer."""
        if wish.route is None:
            for name in (wish.source, wish.target):  # not each group is to find out for itself
                await self._syncer.mapper.tables.reach(name)
            return [_One(one.key, one.group, topic=one.topic) for one in wish.passive]
        groups, route = wish.route

        def wanted(topic: str) -> Collection[str]:
            copy = route.destination(topic)
            return () if copy is None else (copy,)

        listed = await (await self._clusters.get(wish.source)).committer.groups()
        return [
            _One(group, group, wanted)
            for group in listed
            if not group.startswith(OWN_GROUP_PREFIX) and groups.groups(group)
        ]

    async def _one(
        self, status: SyncedGroups, part: _One, views: OffsetMapViews, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            try:
                async with asyncio.timeout(GROUP_SYNC_TIMEOUT_S):
                    made = await self._syncer.sync(
                        part.group, status.source, status.target, views, wanted=part.wanted, only=part.topic
                    )
            except Exception as error:  # noqa: BLE001 - whatever it is of, others are to be kept in step (rule 3)
                made = GroupOutcome(part.group, "failed", now_ms(), str(error) or repr(error))
        route = status.name
        if part.topic is not None:
            made, route = _of_passive(made, part.topic), ""
        status.outcomes[part.name] = made
        if made.is_good:
            status.good_ms[part.name] = made.at_ms
            self._told.discard((route, part.name))
        elif made.state in {"refused", "failed"}:
            message = f"group {part.group} is not kept in step in {status.target}: {made.why}"
            self._report(route, part.name, message)

    def _report(self, route: str, name: str, message: str) -> None:
        """`route` "": of passive workloads, by the workload's key or the active region's cluster."""
        if (route, name) not in self._told:
            self._told.add((route, name))
            with contextlib.suppress(Exception):
                self._report_incident("offset-sync", "/".join(filter(None, (route, name))), message, REMEDY)


def _of_passive(made: GroupOutcome, topic: str) -> GroupOutcome:
    """Rule 2; and of a topic that nothing joins, that."""
    if made.state == "nothing":
        return replace(made, why=made.unmapped.get(topic, made.why))
    foreign = [row for row in made.rows if row.decision.why == BEYOND_MAPPED and row.is_foreign]
    if foreign and made.state in {"synced", "unchanged", "refused"}:
        first, more = foreign[0], f" and {len(foreign) - 1} more" * (len(foreign) > 1)
        where = f"it is {first.have}, {first.answer.next_offset} mapped"
        why = f"partition {first.answer.partition}{more}: {BEYOND_MAPPED} ({where}), and {FOREIGN}"
        return replace(made, state="refused", why=why)
    if made.state == "refused" and {row.decision.why for row in made.rows} <= {"", BEYOND_MAPPED}:
        return replace(made, state="unchanged", why="")
    return made
