"""Regions whose control logs are lists, each with what its leader does about the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app import wire
from app.config.definitions import FailoverDefinition, Workload
from app.control.bridge import Bridge
from app.control.catalog import local
from app.control.failover_runs import FailoverRuns
from app.control.failovers import Failovers
from app.control.role_keeper import RoleKeeper
from app.core.control_events import AnyControlEvent, FailoverPut, WorkloadPut, compaction_key
from app.core.topology import AGGREGATE, REGIONAL, Layout, Site
from tests.console.hand_fed import definition
from tests.control.test_jobs import Log

NAMES = ("east", "west", "north")
KEY = "billing/orders"
SITES = {f"{region}-{tier}": Site(region, tier) for region in NAMES for tier in (REGIONAL, AGGREGATE)}


def failover(*regions: str, name: str = "orders", **spec: Any) -> FailoverPut:
    """The event that defines it."""
    made = FailoverDefinition.model_validate({
        "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": name},
        "spec": {"regions": list(regions or NAMES[:2]), "topics": ["orders"], **spec},
    })  # fmt: skip
    return FailoverPut(
        at_ms=1, key=made.key, definition=made.to_wire(), etag=made.etag(), actor="test"
    )  # fmt: skip


def workload(mode: str = "active-passive", topic: str = "orders", **spec: Any) -> WorkloadPut:
    """Likewise, of one that runs in several regions."""
    data = definition(topic=topic, mode=mode, **spec)
    data["metadata"]["cluster"] = "east-aggregate"
    made = Workload.model_validate(data)
    return WorkloadPut(at_ms=1, key=made.key, definition=made.to_wire(), etag=made.etag(), actor="test")


class Region:
    """One region; `told` are its troubles."""

    def __init__(self, own: str, *defined: AnyControlEvent) -> None:
        self.own = own
        self.now_s = 1_000.0
        self.told: list[str] = []
        self.log: Any = Log()
        self.log.apply(*defined)
        nothing: Any = None
        self.failovers = Failovers(self.log, Layout(own, SITES, f"{own}-regional"), self._tell)
        self.bridge = Bridge(nothing, {}, list, lambda: None, self._tell)
        self.is_new = False  # all its workers are
        self.keeper = RoleKeeper(
            self.log, self.failovers, self.bridge, self._workload, self._tell, lambda _: self.is_new
        )
        self.runs = FailoverRuns(self.log, self.failovers, self.keeper, self._workload, self._tell)

    def _tell(self, kind: str, subject: str, message: str, remedy: str) -> None:
        self.told.append(f"{kind} {subject}: {message}; {remedy}")

    def _workload(self, key: str) -> Workload | None:
        put = self.log.view.workloads.get(key)
        return None if put is None else local(Workload.from_wire(put.definition), self.failovers.layout)

    async def round(self, after_s: float = 0.25) -> list[AnyControlEvent]:
        """What the leader writes, after so long on the clock."""
        self.now_s += after_s
        steps = self.failovers.steps(), self.keeper.steps(self.now_s), self.runs.steps(self.now_s)
        events = [event for step in steps for event in step]
        await self.log.append(*events)
        return events

    def hear(self, other: Region, *, twice: bool = False) -> None:
        """All of the other's control log arrives in its copy here."""
        events = self.log_of(other) * (2 if twice else 1)
        self.bridge.take(other.own, events)

    @staticmethod
    def log_of(other: Region) -> list[Any]:
        return [
            SimpleNamespace(offset=n, key=compaction_key(event).encode(), value=wire.encode(event))
            for n, event in enumerate(other.log.appended)
        ]

    @property
    def role(self) -> tuple[str, int, str] | None:
        found = self.log.view.roles.of(KEY)
        return None if found is None else (found.region, found.epoch, found.state)
