"""The leader's rounds on a fake clock: which workers count as dead, which one leads, and what a deposed
leader's events count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.controllog.codec import Heartbeat
from app.controllog.events import (
    AnyControlEvent,
    Assignment,
    Claim,
    Drain,
    RouteDeleted,
    RoutePut,
    WorkloadPut,
)
from app.controllog.log import Repairable
from app.kernel.lease import Lease
from app.placement import leader as module
from app.placement.inputs import PlacementInputs
from app.placement.leader import Leader
from app.worker.members.leadership import Leadership
from app.worker.members.membership import STOPPED, Members
from tests.web.runtime_fake import definition, put, put_route, route
from tests.worker.runtime import test_job_manager

JOB = "dispatch:billing/orders:orders:0"
DEAD_AFTER_S = 3.0
LEASE_S = 2.0
LONG_S = 60.0


class Log(test_job_manager.Log):
    """A control log in memory that remembers refused events; `before_append` runs before each append."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[Repairable] = []
        self.erased: list[AnyControlEvent] = []
        self.before_append: Callable[[], None] = lambda: None

    async def drop_stale(self) -> None: ...

    def take_refused(self) -> list[Repairable]:
        refused, self.refused = self.refused, []
        return refused

    def take_erased(self) -> list[AnyControlEvent]:
        erased, self.erased = self.erased, []
        return erased

    async def append(self, *events: AnyControlEvent) -> int:
        self.before_append()
        return await super().append(*events)


class Region:
    """Workers that hear each other, each with its leader's rounds, on one log and one clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.log = Log()
        self.members = Members(DEAD_AFTER_S)
        self.wanted: dict[str, Callable[[], Awaitable[set[str]]]] = {}
        self.leaders = {name: self._leader(name) for name in names}
        self.lapsed: set[str] = set()  # workers whose heartbeats arrive but renew no lease
        self.hanging: dict[str, asyncio.Task[None]] = {}

    def _leader(self, name: str) -> Leader:
        async def one() -> set[str]:
            return {JOB}

        self.wanted[name] = one
        log: Any = self.log
        placing = PlacementInputs(lambda _: None, lambda *_: None)

        async def jobs() -> set[str]:
            return await self.wanted[name]()

        leadership = Leadership(name, log, Lease(LEASE_S))
        return Leader(leadership, log, self.members, jobs, placing, dict)

    def send_heartbeats(self, *names: str, state: str = "running") -> None:
        """A heartbeat of each worker arrives and renews the sender's lease."""
        for name in names:
            term = self.leaders[name].term
            beat = Heartbeat(worker=name, at_ms=0, started_ms=0, url="", state=state, term=term)
            self.members.observe(beat, self.now_s)
            if name not in self.lapsed:
                self.leaders[name]._lease.renewed(self.now_s)

    async def round(self, name: str) -> None:
        """Runs a round as the service does: one at a time, and a failed round is tried again."""
        if name in self.hanging:
            return
        making = asyncio.create_task(self.leaders[name]._round())
        await asyncio.wait([making], timeout=0.05)
        if not making.done():
            self.hanging[name] = making
        elif (error := making.exception()) is not None and not isinstance(error, ZeroDivisionError):
            raise error

    async def run_for(self, seconds: float, *names: str, until: Callable[[], bool] = lambda: False) -> None:
        """These workers send heartbeats and run rounds for this long on the clock."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and not until():
            self.send_heartbeats(*names)
            for name in names:
                await self.round(name)
            self.now_s += module.PLACEMENT_INTERVAL_S

    @property
    def owner(self) -> str:
        held = self.log.view.owner(JOB)
        return held.worker if held else ""

    def assign_to(self, worker: str) -> None:
        """Assigns the job to this worker."""
        view = self.log.view
        self.log.apply(
            Assignment(at_ms=0, job=JOB, worker=worker, epoch=view.next_epoch(JOB), term=view.term, reason="")
        )


async def a_region_in_which_a_leads(monkeypatch: pytest.MonkeyPatch) -> Region:
    region = Region(monkeypatch, "a", "b")
    region.log.apply(Claim(at_ms=0, term=2, worker="a"), put(definition()))
    region.assign_to("b")
    await region.run_for(2 * DEAD_AFTER_S, "a", "b")
    assert (region.log.view.leader, region.owner) == ("a", "b")
    return region


async def test_silence_of_all_workers_is_no_death_and_silence_of_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    region.now_s += LONG_S  # the control cluster was unavailable for all
    await region.round("a")
    region.send_heartbeats("a")
    await region.round("a")
    assert region.owner == "b", "b may have been silent only while all workers were"
    await region.run_for(2 * DEAD_AFTER_S, "a")
    assert region.owner == "a", "a is heard again, and b is not"


async def test_after_everybodys_silence_a_goodbye_is_believed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    region.now_s += LONG_S
    await region.round("a")
    region.log.apply(Drain(at_ms=0, worker="b", draining=True, actor="ann"))
    region.send_heartbeats("b", state=STOPPED)
    region.send_heartbeats("a")
    await region.round("a")
    assert region.owner == "a"
    assert region.log.view.draining == {}


async def test_a_decision_from_before_another_leader_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    region.send_heartbeats("b", state=STOPPED)  # so the job has to move
    region.send_heartbeats("a")
    region.log.before_append = lambda: region.log.apply(Claim(at_ms=0, term=3, worker="b"))
    await region.round("a")
    assert any(isinstance(event, Assignment) for event in region.log.appended)
    assert region.owner == "b"


async def test_nothing_is_written_with_the_term_of_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)

    async def meanwhile() -> set[str]:
        region.log.apply(Claim(at_ms=0, term=3, worker="b"))
        return {JOB}

    region.wanted["a"] = meanwhile
    region.send_heartbeats("b", state=STOPPED)
    region.send_heartbeats("a")
    await region.round("a")
    assert region.owner == "b"


@pytest.mark.parametrize("sickness", ["its rounds fail", "its round hangs", "its lease does not hold"])
async def test_a_live_leader_whose_rounds_do_not_succeed_is_replaced(
    sickness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)

    async def fails() -> set[str]:
        raise ZeroDivisionError

    async def hangs() -> set[str]:
        await asyncio.Event().wait()
        raise AssertionError

    if sickness == "its lease does not hold":
        region.lapsed.add("a")
    else:
        region.wanted["a"] = fails if sickness == "its rounds fail" else hangs
    try:
        await region.run_for(LONG_S, "a", "b", until=lambda: region.log.view.leader == "b")
        assert region.log.view.leader == "b"
        await region.run_for(LONG_S, "a", "b")
        assert (region.log.view.leader, region.log.view.term) == ("b", 3), "b stays the leader"
    finally:
        for task in region.hanging.values():
            task.cancel()


async def test_a_leader_whose_rounds_succeed_keeps_leading(monkeypatch: pytest.MonkeyPatch) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    await region.run_for(LONG_S, "a", "b")
    assert region.log.view.term == 2


async def test_a_repair_of_a_definition_leaves_an_operators_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    current = region.log.view.workloads["billing/orders"]
    region.log.refused = [msgspec.structs.replace(current, etag="refused", expected="of long ago")]
    newer = msgspec.structs.replace(current, etag="newer", actor="ann")
    region.log.before_append = lambda: region.log.apply(newer)
    region.send_heartbeats("a", "b")
    await region.round("a")
    written = [event for event in region.log.appended if isinstance(event, WorkloadPut)]
    assert [event.etag for event in written] == [current.etag], "the repair was written"
    assert region.log.view.workloads["billing/orders"] == newer


async def test_refused_definitions_of_routes_are_repaired_with_the_current_one_or_its_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = await a_region_in_which_a_leads(monkeypatch)
    current = put_route(route())
    region.log.apply(current)
    late = msgspec.structs.replace(current, etag="late", expected="of long ago")
    region.log.refused = [late, RouteDeleted(at_ms=0, key="gone", actor="ann", expected="of long ago")]
    region.send_heartbeats("a", "b")
    await region.round("a")
    written = {
        event.key: event for event in region.log.appended if isinstance(event, RoutePut | RouteDeleted)
    }
    assert written["mirror"] == msgspec.structs.replace(current, expected=current.etag)
    assert isinstance(written["gone"], RouteDeleted)
    assert written["gone"].expected == ""
    assert region.log.view.routes == {"mirror": written["mirror"]}
