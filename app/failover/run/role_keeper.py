"""Keeps the roles of workloads with a mode: first roles, other regions' decisions, and releases.

`app.controllog.roles` has the rules of roles. `steps` is the leader's; the other methods are for every
worker.

Rules
1. The leader writes what another region's log says into this region's log, when it says more.
2. A workload without a role gets its first role. Other regions may know better when this region returns
   without its log. So a first role that would make this region active waits until the others have answered,
   or have been silent for `UNHEARD_S`; at most `MAX_WAIT_FOR_REGIONS_S`. This holds also for a role from
   another region's old log.
3. When another region has a higher epoch, this region releases the workload. For an active-passive workload
   no worker here may have a job of it any more. For an active-active one every worker must have read the new
   role: a worker that has not does not act (`app.worker.members.membership`).
4. A region that shares topics writes a pulse every `PULSE_INTERVAL_S`, and at once when a worker is new. If
   its leader does not know that it ran without a break (`app.failover.run.presence`), the pulse says that the
   region has just returned. Other regions may have taken its roles meanwhile. So it acts by no role until the
   others have answered, or for as long as rule 2 waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from app.controllog.events import AnyControlEvent, RegionPulse, RolePut, RoleReleased
from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE, ACTIVE_PASSIVE, MOVING, Roles, initial, is_higher
from app.dispatch.definition import Workload
from app.dispatch.push.metadata import SenderRole
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.presence import Presence
from app.failover.run.region_bridge import UNHEARD_S, RegionBridge
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident
from app.offsets.sync.group_sync_schedule import PassiveWorkload
from app.placement.model.plan import name_of

MAX_WAIT_FOR_REGIONS_S = 120.0
PULSE_INTERVAL_S = 2.0
READ_BY_ALL_S = 5.0  # above a lease and a heartbeat: by then each acting worker has read an older event


class RoleKeeper:
    """The roles of one region.

    Args:
        presence: This worker's.
        live: The names of the workers that live in this region.
        clock_ms: The wall clock of events; it decides nothing.
    """

    def __init__(
        self,
        control: ControlLog,
        derived_routes: DerivedRoutes,
        bridge: RegionBridge,
        workload: Callable[[str], Workload | None],
        report_incident: ReportIncident,
        *,
        presence: Presence,
        live: Callable[[], Collection[str]] = tuple,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._control = control
        self._derived_routes = derived_routes
        self._presence = presence
        self._live = live
        self._clock_ms = clock_ms
        self._returned_as = "", 0.0  # the name under which the region asks as returned, and since when
        self._named: set[str] = set()
        self._bridge = bridge
        self._workload = workload
        self._report_incident = report_incident
        self._since_s: dict[str, float] = {}  # workload -> when it was first seen without a role
        self._replaced_s: dict[str, tuple[int, float]] = {}  # workload -> epoch, and when it was first seen
        self._last_pulses: dict[
            str, tuple[RegionPulse, float]
        ] = {}  # region -> its last pulse, and when it was seen
        self._pulse_s = float("-inf")
        self._reported: dict[str, str] = {}  # workload -> why it has no role
        self._new_term = NewTerm()

    @property
    def own(self) -> str:
        """This region; "": the worker knows no regions."""
        return "" if self._derived_routes.layout is None else self._derived_routes.layout.own

    def moded(self) -> Iterator[Workload]:
        """Every workload with a mode whose definition can be read."""
        for key in list(self._control.view.workloads):
            workload = self._workload(key)
            if workload is not None and workload.spec.mode is not None:
                yield workload

    # -- the leader's ----------------------------------------------------------------------------

    def steps(self, now_s: float) -> list[AnyControlEvent]:
        """The events that the leader has to write now."""
        if not self.own:
            return []
        events: list[AnyControlEvent] = []
        self._presence.update(now_s)
        moded, view = list(self.moded()), self._control.view
        keys = {workload.key for workload in moded}
        if self._new_term.has_begun(view.term):
            self._reported.clear()
        self._reported = {
            key: why for key, why in self._reported.items() if key in keys and view.roles.of(key) is None
        }
        self._since_s = {key: at for key, at in self._since_s.items() if key in keys}
        self._replaced_s = {key: at for key, at in self._replaced_s.items() if key in keys}
        busy: Collection[str] | None = None
        for workload in moded:
            key, role = workload.key, view.roles.of(workload.key)
            heard = self._bridge.roles.of(key)
            if heard is not None and is_higher(heard, role):
                if role is not None or not self._is_premature(workload, heard.region, now_s):
                    events.append(heard)
                continue
            events += self._released_in_other_regions(key)
            if role is None:
                events += self._first_role(workload, now_s)
            elif role.region != self.own and not view.roles.has_released(key, self.own):
                if busy is None:
                    busy = {name_of(job) for job, held in view.assignments.items() if held.worker}
                events += self._released(workload, role, key in busy, now_s)
        others = self._derived_routes.others()
        live = {self._presence.name, *self._live()}
        if others and (now_s - self._pulse_s >= PULSE_INTERVAL_S or not live <= self._named):
            self._pulse_s, self._named = now_s, live
            events.append(self._pulse(others, now_s))  # after the roles, because it answers the other regions
        return events

    def _pulse(self, others: Collection[str], now_s: float) -> RegionPulse:
        """The pulse of rule 4."""
        at_ms, name, pulses = self._clock_ms(), self._presence.name, self._bridge.pulses
        last, returned_ms = self._control.view.pulses.get(self.own), 0
        if last is not None and not self._presence.knows(last):
            if self._returned_as[0] != name:
                self._returned_as = name, now_s
            if self._waits_for_other_regions(others, self._returned_as[1], now_s):
                returned_ms = last.returned_ms or at_ms
        ages = {region: self._bridge.age_s(region) for region in others}
        return RegionPulse(
            at_ms=at_ms, region=self.own, returned_ms=returned_ms, leader=name, workers=sorted(self._named),
            heard={region: at_ms - round(age * 1000) for region, age in ages.items() if age is not None},
            answers={region: pulses[region].leader for region in others & pulses.keys()},
        )  # fmt: skip

    def _released_in_other_regions(self, key: str) -> Iterator[RoleReleased]:
        known = self._control.view.roles.released(key)
        for region, event in self._bridge.roles.released(key).items():
            if region != self.own and (region not in known or known[region].epoch < event.epoch):
                yield event

    def _first_role(self, workload: Workload, now_s: float) -> Iterator[RolePut]:
        key, regions = workload.key, self._derived_routes.regions_of(workload)
        try:
            region, epoch = initial(workload.spec.primary, regions)
        except LookupError as error:
            message, _, remedy = str(error).rpartition("; ")
            if self._reported.get(key) != message:
                self._reported[key] = message
                self._report_incident(
                    "role-unknown", key, f"no region is active for it: {message}", remedy,
                    until_deposed(self._control, lambda: self._reported.get(key) != message),
                )  # fmt: skip
            return
        self._reported.pop(key, None)
        if self._is_premature(workload, region, now_s):
            return
        yield RolePut(
            at_ms=now_ms(), key=key, region=region, epoch=epoch, state=ACTIVE, actor="definition",
            reason="the definition names it primary" if workload.spec.primary else "the first of its regions",
        )  # fmt: skip

    def _is_premature(self, workload: Workload, first: str, now_s: float) -> bool:
        """Whether a first role in region `first` has to wait (rule 2)."""
        since_s = self._since_s.setdefault(workload.key, now_s)
        if first != self.own:
            return False
        others = set(self._derived_routes.regions_of(workload)) - {self.own}
        return self._waits_for_other_regions(others, since_s, now_s)

    def _waits_for_other_regions(self, others: Collection[str], since_s: float, now_s: float) -> bool:
        """Whether another region has not answered yet, and may still do so."""
        name = self._presence.name
        for region in others:
            if self._bridge.has_answered(region, self.own, name) or now_s - since_s >= MAX_WAIT_FOR_REGIONS_S:
                continue
            pulse = self._bridge.pulses.get(region)
            last, arrived_s = self._last_pulses.get(region, (None, since_s))
            if pulse is not None and pulse is not last:
                self._last_pulses[region], arrived_s = (pulse, now_s), now_s
            if now_s - max(since_s, arrived_s) < UNHEARD_S:
                return True
        return False

    def _released(
        self, workload: Workload, role: RolePut, is_busy: bool, now_s: float
    ) -> Iterator[RoleReleased]:
        key = workload.key
        epoch, since_s = self._replaced_s.get(key, (-1, now_s))
        if epoch != role.epoch:
            epoch, since_s = self._replaced_s[key] = role.epoch, now_s
        waits = is_busy if workload.spec.mode == ACTIVE_PASSIVE else now_s - since_s < READ_BY_ALL_S
        if not waits:
            yield RoleReleased(at_ms=now_ms(), key=key, region=self.own, epoch=epoch)

    # -- everybody's -----------------------------------------------------------------------------

    def runs_here(self, workload: Workload) -> bool | None:
        """Whether this region runs jobs of the workload; None: that is not known yet."""
        if workload.spec.mode != ACTIVE_PASSIVE or not self.own:
            return True
        roles = self._control.view.roles
        if roles.of(workload.key) is None:
            return None
        return roles.is_active(workload.key, self.own) and not self.has_just_returned()

    def has_just_returned(self) -> bool:
        """Whether the region lay still, and has not read yet what others decided meanwhile (rule 4)."""
        last = self._control.view.pulses.get(self.own)
        if last is None or not self._derived_routes.others():
            return False
        return not self._presence.knows(last) or last.returned_ms > 0

    def passive(self) -> list[PassiveWorkload]:
        """The workloads that this region has released, or never ran.

        Their positions here follow the active region; while the role is moving, the one that was active
        before.
        """
        layout, roles, found = self._derived_routes.layout, self._control.view.roles, []
        if layout is None:
            return []
        for workload in self.moded():
            key, metadata, role = workload.key, workload.metadata, roles.of(workload.key)
            if workload.spec.mode != ACTIVE_PASSIVE or role is None:
                continue
            region = role.previous if role.state == MOVING else role.region
            if region in {"", self.own} or not (role.region == self.own or roles.has_released(key, self.own)):
                continue
            one = PassiveWorkload(key, metadata.group, metadata.topic, region)
            try:
                source = layout.cluster(region, layout.sites[metadata.cluster].tier)
            except LookupError as error:
                found.append(replace(one, trouble=str(error)))
            else:
                found.append(replace(one, source=source, target=metadata.cluster))
        return found

    def doubt(self, workload: Workload) -> str:
        """Why no region would be active for the workload, with a remedy; "": one will be, or is."""
        roles = self._control.view.roles
        if workload.spec.mode is None or not self.own or roles.of(workload.key) is not None:
            return ""
        try:
            initial(workload.spec.primary, self._derived_routes.regions_of(workload))
        except LookupError as error:
            return f"no region will be active for it: {error}"
        return ""

    def sender_role(self, workload: Workload) -> SenderRole | None:
        """The role that receivers are given; None: the workload has no mode."""
        if workload.spec.mode is None or not self.own:
            return None
        role = self._control.view.roles.of(workload.key)
        is_primary = self._control.view.roles.is_active(workload.key, self.own)
        is_primary = is_primary and not self.has_just_returned()
        return SenderRole(self.own, is_primary, 0 if role is None else role.epoch)

    def highest(self, key: str) -> RolePut | None:
        """The workload's highest role, also one that has arrived and is not written here yet."""
        known = Roles()
        for roles in (self._control.view.roles, self._bridge.roles):
            if (role := roles.of(key)) is not None:
                known.put(role)
        return known.of(key)
