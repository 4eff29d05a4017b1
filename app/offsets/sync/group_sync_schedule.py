"""Offset sync of groups in rounds: the groups in routes' `spec.offsets`, and those of passive workloads.

`app.offsets.sync.group_syncer` syncs one group.

Rules
1. An active-passive workload that is active in another region needs no route for this. Its group's
   positions in this region's own cluster follow those in the active region's, for the main topic only.
   Retry topics and dead letter queues belong to each region.
2. Such a group may be ahead of the mapped position here, because this region was active before. It counts
   as in step if Switchyard committed that position. Another client's position is left alone, and
   an incident is reported. If this region became active, it would skip the messages in between, read or not.
3. While the active region's cluster or the offset map is unavailable, positions stay, and the state says
   so. One failing group does not delay the others. The next round tries it again. A failure is reported
   once until the group succeeds.
4. The leader syncs groups while its lease holds. Its results are in the positions, so the next leader
   continues.
5. Routes never sync Switchyard's own groups (`switchyard-*`).
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
from app.kernel.incidents import ReportIncident
from app.offsets.model.group_sync import BEYOND_MAPPED
from app.offsets.store.tables import NotRead, ReadableClusters
from app.offsets.sync.group_syncer import GroupOutcome, GroupState, GroupSyncer, OffsetMapViews, Wanted
from app.replicate.definition import GroupSync, RouteDefinition
from app.replicate.model.route import Route

log = structlog.get_logger(__name__)

SYNC_POLL_INTERVAL_S = 1.0
PASSIVE_SYNC_INTERVAL_S = 5.0
GROUPS_AT_ONCE = 8
GROUP_SYNC_TIMEOUT_S = 20.0  # then the next round tries the group again
ROUND_READ_TIMEOUT_S = 60.0  # enough to read the offset map from its start
OWN_GROUP_PREFIX = "switchyard-"
CLUSTER_ERRORS = (ClusterUnreachable, KafkaError, NotRead, OSError, TimeoutError)
REMEDY = (
    "the next round tries again; `switchyard offsets map` explains the position, "
    "`switchyard offsets sync` shows the planned commits"
)

FOREIGN = "Switchyard did not commit it; set it back if the messages in between were not read"

PassiveState = Literal[GroupState, "away", "starting"]
SyncedRoutes = Callable[[], Mapping[str, tuple[RouteDefinition, Route]]]


@dataclass(frozen=True, slots=True)
class PassiveWorkload:
    """A workload that is passive here, with the active `region`'s cluster `source` and this region's
    `target`. `trouble`: why the clusters cannot be named; then both are ""."""

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
        state: The last round's `GroupState`; "away": a cluster or the offset map is unavailable;
            "starting": no round yet.
        why: The reason if it is not in step.
        at_ms, good_ms: When it was last looked at, and last in step since this worker leads.
    """

    workload: PassiveWorkload
    state: PassiveState
    why: str
    at_ms: int | None
    good_ms: int | None

    def lag_s(self, now_ms: int) -> float | None:
        """Seconds since it was in step; None: never since this worker leads."""
        return None if self.good_ms is None else max(0, now_ms - self.good_ms) / 1000


@dataclass(slots=True)
class SyncedGroups:
    """The groups synced from one cluster to another: a route's by name, or passive workloads' by key.
    `good_ms`: when each was last in step. `error`: why the last round failed."""

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
        """The longest time, in seconds, since a group without members was in step; None: no such group."""
        waiting = [
            at_ms - self.good_ms.get(name, one.at_ms)
            for name, one in self.outcomes.items()
            if one.state not in {"live", "nothing"}
        ]
        return max(0, *waiting) / 1000 if waiting else None


class _GroupPart(NamedTuple):
    """One group in a round."""

    name: str  # in `SyncedGroups.outcomes`
    group: str
    wanted: Wanted = lambda _: None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class _Sync:
    """The sync that a route, or the passive workloads of one region, need."""

    source: str
    target: str
    every_s: float
    route: tuple[GroupSync, Route] | None = None
    passive: tuple[PassiveWorkload, ...] = ()


class GroupSyncSchedule(Service):
    """Runs the rounds while this worker may act (it leads, and its lease holds). `routes` has the results of
    each route's groups, `passive` those of passive workloads by the active region's cluster. The arguments of
    these names return this region's routes, and the workloads that are passive here."""

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
        self._reported: set[tuple[str, str]] = set()
        self._parsed: dict[str, tuple[RouteDefinition, GroupSync | None]] = {}  # parsed once per change
        self._passives: dict[str, PassiveWorkload] = {}
        self._running: dict[tuple[str, str, str], asyncio.Task[None]] = {}

    async def on_stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def passive_status(self, key: str) -> PassiveSyncStatus | None:
        """The status of a workload; None: it is not passive here, or this worker does not lead."""
        one = self._passives.get(key)
        if one is None:
            return None
        kept = self.passive.get(one.source)
        outcome = None if kept is None else kept.outcomes.get(key)
        state: PassiveState = "starting" if outcome is None else outcome.state
        why = "" if outcome is None else outcome.why
        if one.trouble:
            state, why = "failed", one.trouble
        elif kept is not None and kept.error:
            state, why = "away", kept.error
        at_ms = None if outcome is None else outcome.at_ms
        return PassiveSyncStatus(one, state, why, at_ms, None if kept is None else kept.good_ms.get(key))

    def passive_statuses(self) -> dict[str, PassiveSyncStatus]:
        """The status of every workload that is passive here, by key."""
        return {key: one for key in sorted(self._passives) if (one := self.passive_status(key)) is not None}

    # -- rounds ------------------------------------------------------------------------------------

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            await self.sleep(SYNC_POLL_INTERVAL_S)
            try:
                self._poll()
            except Exception:
                log.exception("finding the groups for offset sync failed; it is tried again in a second")

    def _poll(self) -> None:
        self._running = {name: task for name, task in self._running.items() if not task.done()}
        if not self._may_act():
            for task in self._running.values():
                task.cancel()
            self.routes.clear()
            self.passive.clear()
            self._passives.clear()
            self._reported.clear()
            return
        self._start_rounds(self.routes, self._route_syncs())
        self._start_rounds(self.passive, self._passive_syncs())
        self._reported = {one for one in self._reported if self._is_wanted(*one)}

    def _route_syncs(self) -> dict[str, _Sync]:
        defined = self._defined()
        for name, (definition, _) in defined.items():
            if self._parsed.get(name, (None,))[0] is not definition:
                self._parsed[name] = definition, definition.offsets
        for gone in self._parsed.keys() - defined.keys():
            del self._parsed[gone]
        wanted = ((name, sync, defined[name][1]) for name, (_, sync) in self._parsed.items())
        return {
            name: _Sync(route.source, route.target, sync.every_s, (sync, route))
            for name, sync, route in wanted
            if sync is not None
        }

    def _passive_syncs(self) -> dict[str, _Sync]:
        self._passives = {one.key: one for one in self._passive()}
        found: dict[str, list[PassiveWorkload]] = {}
        for one in self._passives.values():
            if one.trouble:
                self._report("", one.key, f"offset sync does not follow region {one.region}: {one.trouble}")
            else:
                found.setdefault(one.source, []).append(one)
        return {
            source: _Sync(source, many[0].target, PASSIVE_SYNC_INTERVAL_S, passive=tuple(many))
            for source, many in found.items()
        }

    def _start_rounds(self, kept: dict[str, SyncedGroups], syncs: Mapping[str, _Sync]) -> None:
        for gone in kept.keys() - syncs.keys():
            del kept[gone]
        for name, sync in syncs.items():
            status = kept.get(name)
            if status is None or (status.source, status.target) != (sync.source, sync.target):
                status = kept[name] = SyncedGroups(name, sync.source, sync.target)
            of = ("" if sync.route is None else name, sync.source, sync.target)
            if time.monotonic() - status.began_s >= sync.every_s and of not in self._running:
                status.began_s = time.monotonic()
                self._running[of] = asyncio.get_running_loop().create_task(self._round(status, sync))

    async def _round(self, status: SyncedGroups, sync: _Sync) -> None:
        began_s = time.monotonic()
        route, name = (status.name, "") if sync.route else ("", status.name)
        try:
            parts = await self._parts(sync)
            await self._syncer.mapper.read(ROUND_READ_TIMEOUT_S)
            views = self._syncer.views(sync.source, sync.target)
            gate = asyncio.Semaphore(GROUPS_AT_ONCE)
            await asyncio.gather(*(self._sync_group(status, part, views, gate) for part in parts))
            for gone in status.outcomes.keys() - {part.name for part in parts}:
                del status.outcomes[gone]
                status.good_ms.pop(gone, None)
            status.error = ""
        except (*CLUSTER_ERRORS, KeyError) as error:
            status.error = str(error) or repr(error)
            groups = "groups" if sync.route else "groups of passive workloads"
            self._report(route, name, f"{groups} of cluster {sync.source} cannot be synced: {status.error}")
        except Exception as error:
            status.error = repr(error)
            log.exception("a round of offset sync failed; the next one starts again", of=status.name)
        else:
            self._reported.discard((route, name))
        finally:
            status.took_s, status.rounds = time.monotonic() - began_s, status.rounds + 1

    async def _parts(self, sync: _Sync) -> list[_GroupPart]:
        """The groups of a round. Raises KeyError, ClusterUnreachable, KafkaError: a cluster does not
        answer."""
        if sync.route is None:
            for name in (sync.source, sync.target):  # once for all groups of the round
                await self._syncer.mapper.tables.reach(name)
            return [_GroupPart(one.key, one.group, topic=one.topic) for one in sync.passive]
        groups, route = sync.route

        def wanted(topic: str) -> Collection[str]:
            copy = route.destination(topic)
            return () if copy is None else (copy,)

        listed = await (await self._clusters.get(sync.source)).committer.groups()
        return [
            _GroupPart(group, group, wanted)
            for group in listed
            if not group.startswith(OWN_GROUP_PREFIX) and groups.groups(group)
        ]

    async def _sync_group(
        self, status: SyncedGroups, part: _GroupPart, views: OffsetMapViews, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            try:
                async with asyncio.timeout(GROUP_SYNC_TIMEOUT_S):
                    outcome = await self._syncer.sync(
                        part.group, status.source, status.target, views, wanted=part.wanted, only=part.topic
                    )
            except Exception as error:  # noqa: BLE001 - one group's error must not stop the others (rule 3)
                outcome = GroupOutcome(part.group, "failed", now_ms(), str(error) or repr(error))
        route = status.name
        if part.topic is not None:
            outcome, route = _passive_outcome(outcome, part.topic), ""
        status.outcomes[part.name] = outcome
        if outcome.is_good:
            status.good_ms[part.name] = outcome.at_ms
            self._reported.discard((route, part.name))
        elif outcome.state in {"refused", "failed"}:
            message = f"group {part.group} is not in step in {status.target}: {outcome.why}"
            self._report(route, part.name, message)

    def _is_wanted(self, route: str, name: str) -> bool:
        """Whether a part that was reported still is synced here."""
        if not route:
            return name in self._passives or name in self.passive
        kept = self.routes.get(route)
        return kept is not None and (not name or name in kept.outcomes)

    def _report(self, route: str, name: str, message: str) -> None:
        """`route` "": `name` is a passive workload's key, or the active region's cluster."""
        part = route, name
        if part not in self._reported:
            self._reported.add(part)
            with contextlib.suppress(Exception):
                self._report_incident(
                    "offset-sync", "/".join(filter(None, part)), message, REMEDY,
                    lambda: part not in self._reported,
                )  # fmt: skip


def _passive_outcome(outcome: GroupOutcome, topic: str) -> GroupOutcome:
    """A passive workload's outcome by rule 2; without a related topic, with the reason for its topic."""
    if outcome.state == "nothing":
        return replace(outcome, why=outcome.unmapped.get(topic, outcome.why))
    foreign = [row for row in outcome.rows if row.decision.why == BEYOND_MAPPED and row.is_foreign]
    if foreign and outcome.state in {"synced", "unchanged", "refused"}:
        first, more = foreign[0], f" and {len(foreign) - 1} more" * (len(foreign) > 1)
        where = f"{first.have}, mapped {first.answer.next_offset}"
        why = f"partition {first.answer.partition}{more}: {BEYOND_MAPPED} ({where}), and {FOREIGN}"
        return replace(outcome, state="refused", why=why)
    if outcome.state == "refused" and {row.decision.why for row in outcome.rows} <= {"", BEYOND_MAPPED}:
        return replace(outcome, state="unchanged", why="")
    return outcome
