"""Regions whose control logs are lists, each with the leader's part for failover between regions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.controllog import codec
from app.controllog.events import (
    AnyControlEvent,
    FailoverPut,
    FailoverRun,
    RolePut,
    RunWorkload,
    WorkloadPut,
    compaction_key,
)
from app.controllog.failover_run import EXECUTING
from app.dispatch.definition import Workload
from app.dispatch.topics.readable_workloads import local
from app.failover.definition import FailoverDefinition
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.presence import Presence
from app.failover.run.region_bridge import RegionBridge
from app.failover.run.role_keeper import RoleKeeper
from app.failover.run.runner import FailoverRuns
from app.failover.topology import AGGREGATE, REGIONAL, Layout, Site
from app.kernel.clock import now_ms
from tests.web.runtime_fake import definition
from tests.worker.runtime.test_job_manager import Log

NAMES = ("east", "west", "north")
KEY = "billing/orders"
SITES = {f"{region}-{tier}": Site(region, tier) for region in NAMES for tier in (REGIONAL, AGGREGATE)}


def failover(*regions: str, name: str = "orders", **spec: Any) -> FailoverPut:
    """The event that defines a failover between the regions."""
    made = FailoverDefinition.model_validate({
        "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": name},
        "spec": {"regions": list(regions or NAMES[:2]), "topics": ["orders"], **spec},
    })  # fmt: skip
    return FailoverPut(
        at_ms=1, key=made.key, definition=made.to_wire(), etag=made.etag(), actor="test"
    )  # fmt: skip


def workload(mode: str = "active-passive", topic: str = "orders", **spec: Any) -> WorkloadPut:
    """The event that defines a workload of several regions."""
    data = definition(topic=topic, mode=mode, **spec)
    data["metadata"]["cluster"] = "east-aggregate"
    made = Workload.model_validate(data)
    return WorkloadPut(at_ms=1, key=made.key, definition=made.to_wire(), etag=made.etag(), actor="test")


class FakeRegion:
    """One region as its leader `worker` sees it, whose clock may be wrong; `incidents` are those that it
    reported."""

    def __init__(self, own: str, *defined: AnyControlEvent, worker: str = "", clock_skew_ms: int = 0) -> None:
        self.own = own
        self.clock_skew_ms = clock_skew_ms
        self.now_s = 1_000.0
        self.incidents: list[str] = []
        self.log: Any = Log()
        self.log.apply(*defined)
        nothing: Any = None
        self.failovers = DerivedRoutes(self.log, Layout(own, SITES, f"{own}-regional"), self._report)
        self.bridge = RegionBridge(nothing, {}, list, lambda: None, self._report, lambda: self.now_s)
        self.in_touch_s = self.now_s  # the last contact with its control log
        self.presence = Presence(worker or f"{own}-1", lambda: self.in_touch_s)
        self.live: set[str] = set()  # other workers of the region
        self.keeper = RoleKeeper(
            self.log, self.failovers, self.bridge, self._workload, self._report,
            presence=self.presence, live=lambda: self.live, clock_ms=lambda: now_ms() + self.clock_skew_ms,
        )  # fmt: skip
        self.rounds_requested = 0  # early rounds that the runner requested
        self.runs = FailoverRuns(
            self.log, self.failovers, self.keeper, self._workload, self._report, self._on_news
        )

    def _report(self, kind: str, subject: str, message: str, remedy: str, *_: object) -> None:
        self.incidents.append(f"{kind} {subject}: {message}; {remedy}")

    def _on_news(self) -> None:
        self.rounds_requested += 1

    def _workload(self, key: str) -> Workload | None:
        put = self.log.view.workloads.get(key)
        return None if put is None else local(Workload.from_wire(put.definition), self.failovers.layout)

    async def round(self, after_s: float = 0.25) -> list[AnyControlEvent]:
        """Moves the clock, runs one round of the leader, and returns the events that it wrote."""
        self.now_s += after_s
        self.in_touch_s = self.now_s
        steps = self.failovers.steps(), self.keeper.steps(self.now_s), self.runs.steps(self.now_s)
        events = [event for step in steps for event in step]
        await self.log.append(*events)
        return events

    def lose_touch(self, for_s: float) -> None:
        """The region has no contact with its control log for this time; then a heartbeat succeeds."""
        self.now_s += for_s
        self.presence.update(self.now_s)

    def hear(self, other: FakeRegion, *, twice: bool = False) -> None:
        """The other region's whole control log arrives in its copy in this region."""
        events = self.log_of(other) * (2 if twice else 1)
        self.bridge.accept(other.own, events)

    def run(self, name: str = "f1", key: str = KEY, **fields: Any) -> FailoverRun:
        """A failover run, planned here, that makes the workload active in this region."""
        role = self.keeper.highest(key)
        assert role is not None
        return FailoverRun(
            at_ms=1, id=name, to=self.own, workloads=[RunWorkload(key, role.region, role.epoch)],
            state=EXECUTING, actor="me", **fields,
        )  # fmt: skip

    async def take_over(self, name: str = "f1") -> RolePut:
        """Runs a forced failover to this region to its end; returns the new role."""
        self.log.apply(self.run(name, forced=True))
        await self.round()
        role: RolePut | None = self.log.view.roles.of(KEY)
        assert role is not None
        assert role.region == self.own
        return role

    @staticmethod
    def log_of(other: FakeRegion) -> list[Any]:
        return [
            SimpleNamespace(offset=n, key=compaction_key(event).encode(), value=codec.encode(event))
            for n, event in enumerate(other.log.appended)
        ]

    @property
    def role(self) -> tuple[str, int, str] | None:
        found = self.log.view.roles.of(KEY)
        return None if found is None else (found.region, found.epoch, found.state)
