"""What rests here without being given back, and from when on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.config.definitions import Workload
from app.control.meter import Meter
from app.control.runtime import Runtime
from app.core.control_events import RegionPulse, RolePut
from app.core.roles import ACTIVE
from app.kafka.clusters import ClusterSpec
from app.topics import ControlTopics
from tests.console.hand_fed import LAYOUT, put
from tests.control.regions_by_hand import failover
from tests.control.test_jobs import Away, Log, assigned, managed
from tests.pump.stand import definition, numbers, standing

KEY = "billing/orders"
JOB = f"dispatch:{KEY}:orders:0"
STILL_S = 60.0


def runtime() -> Runtime:
    """A worker of the east that was not started."""
    spec = ClusterSpec("east", ("h:1",))

    async def nowhere(_: Any) -> None: ...

    return Runtime(
        name="w", url=lambda: "http://h:1", topics=ControlTopics("east"), control_spec=spec,
        clusters={"east": spec}, deliver=nowhere, memory_budget_bytes=1 << 20, grace_s=1.0,
        meter=Meter(None, None, None), layout=LAYOUT,
    )  # fmt: skip


def renew(worker: Runtime) -> None:
    """A heartbeat came through, and the log was read since."""
    worker._compose()
    worker.lease.renewed(time.monotonic())
    worker.lease.saved(time.monotonic(), 1e9)


def pulse(worker: Runtime) -> RegionPulse:
    """The region goes on, and this worker lives in it."""
    return RegionPulse(at_ms=1, region="east", leader="v/0", workers=["v/0", worker.presence.name])


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_who_lay_still_sends_nothing_by_a_renewed_lease_before_it_knows_that_its_region_goes_on(
    contract: str,
) -> None:
    worker = runtime()
    role = RolePut(at_ms=1, key=KEY, region="east", epoch=0, state=ACTIVE)
    async with standing(lambda _: None, mode="active-passive", target={"contract": contract}) as stand:
        stand.runtime.lease = worker.lease
        event = put(stand.runtime.workload.to_wire())
        renew(worker)
        for told in (failover(), event, role, pulse(worker)):
            worker.control.view.apply(told)
        pump = worker.jobs.pumps[JOB] = stand.pump()
        renew(worker)
        stand.feed(pump, numbers(3))
        await stand.idle()

        worker.lease.expires_at_s = time.monotonic() - STILL_S
        stand.feed(pump, numbers(3))
        assert pump.in_flight == 0, "its lease has lapsed"
        renew(worker)
        stand.runtime.send()
        assert (pump.in_flight, pump.state) == (0, "paused")

        worker.control.view.apply(pulse(worker))
        renew(worker)
        await stand.idle()
    assert len(stand.seen) == 6


async def test_a_region_rests_at_the_moment_in_which_a_worker_reads_that_another_one_acts() -> None:
    log = Log()
    async with (
        standing(lambda _: None, mode="active-passive") as stand,
        managed(log, Away("east")) as (jobs, _),
    ):
        runs: bool | None = True

        def runs_here(_: Workload) -> bool | None:
            return runs

        jobs._catalog.runs_here = runs_here
        pump = jobs.pumps[JOB] = stand.pump()
        log.apply(put(definition("h:1", mode="active-passive").to_wire()), assigned())
        stand.feed(pump, numbers(3))
        await stand.idle()
        runs = False
        log.apply()
        assert pump.paused, "nothing else has had its turn in between"
        runs = None
        log.apply()
        assert not pump.paused, "that is not known: it stays as it is"
        del jobs.pumps[JOB]
