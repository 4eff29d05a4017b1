"""A worker pauses jobs whose role another region has, or whose region may be lost, and keeps them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.controllog.events import Paused, RegionPulse, RolePut
from app.controllog.roles import ACTIVE
from app.controllog.topics import ControlTopics
from app.dispatch.definition import Workload
from app.dispatch.model.throughput_diagnosis import RESTS
from app.dispatch.push.metadata import SenderRole
from app.kafka.client.cluster import ClusterSpec
from app.kernel.job import JobId
from app.kernel.troubles import TroubleSource
from app.worker.runtime.cgroups import sample_container
from app.worker.runtime.container_watch import ContainerWatch
from app.worker.runtime.meter import Meter
from app.worker.runtime.options import WorkerOptions
from app.worker.runtime.service import Runtime
from tests.dispatch.pump.rig import definition, dispatch_rig, numbers
from tests.failover.run.region_fakes import failover
from tests.web.runtime_fake import LAYOUT, put
from tests.worker.runtime.test_job_manager import Away, Log, assigned, managed

KEY = "billing/orders"
JOB = f"dispatch:{KEY}:orders:0"
STILL_S = 60.0


def runtime() -> Runtime:
    """A worker of the east that was not started."""
    spec = ClusterSpec("east", ("h:1",))

    async def nowhere(_: Any) -> None: ...

    options = WorkerOptions(
        name="w", url="http://h:1", topics=ControlTopics("east"), control_cluster="east",
        clusters={"east": spec}, memory_budget_bytes=1 << 20, grace_s=1.0, layout=LAYOUT,
        directory=Path("unused"), schemas=Path("schemas"),
    )  # fmt: skip
    return Runtime(options, nowhere, Meter(None, None, None, ContainerWatch(sample_container())))


def renew(worker: Runtime) -> None:
    """Renews the lease, as after a heartbeat and a read of the control log."""
    worker._compose()
    worker.lease.renewed(time.monotonic())
    worker.lease.saved(time.monotonic(), 1e9)


def pulse(worker: Runtime) -> RegionPulse:
    """The region's leader is alive and counts this worker as alive."""
    return RegionPulse(at_ms=1, region="east", leader="v/0", workers=["v/0", worker.presence.name])


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_suspended_worker_sends_nothing_by_a_renewed_lease_before_it_reads_its_regions_pulse(
    contract: str,
) -> None:
    worker = runtime()
    role = RolePut(at_ms=1, key=KEY, region="east", epoch=0, state=ACTIVE)
    async with dispatch_rig(lambda _: None, mode="active-passive", target={"contract": contract}) as rig:
        rig.runtime.lease = worker.lease
        event = put(rig.runtime.workload.to_wire())
        renew(worker)
        for control_event in (failover(), event, role, pulse(worker)):
            worker.control.view.apply(control_event)
        pump = worker.kinds.dispatch.pumps[JOB] = rig.pump()
        renew(worker)
        rig.feed(pump, numbers(3))
        await rig.idle()

        worker.lease.expires_at_s = time.monotonic() - STILL_S
        rig.feed(pump, numbers(3))
        assert pump.in_flight == 0, "its lease has lapsed"
        renew(worker)
        rig.runtime.send()
        assert (pump.in_flight, pump.state) == (0, "paused")

        worker.control.view.apply(pulse(worker))
        renew(worker)
        await rig.idle()
    assert len(rig.seen) == 6


async def test_a_worker_pauses_a_job_as_soon_as_it_reads_that_another_region_is_active() -> None:
    log = Log()
    async with (
        dispatch_rig(lambda _: None, mode="active-passive") as rig,
        managed(log, Away("east")) as (jobs, _),
    ):
        runs: bool | None = True

        def runs_here(_: Workload) -> bool | None:
            return runs

        jobs.kinds.dispatch._catalog.runs_here = runs_here
        jobs.kinds.dispatch._catalog.sender_role = lambda _: SenderRole("east", False, 1)
        pump = jobs.kinds.dispatch.pumps[JOB] = rig.pump()
        log.apply(put(definition("h:1", mode="active-passive").to_wire()), assigned())
        rig.feed(pump, numbers(3))
        await rig.idle()
        runs = False
        log.apply()
        assert pump.paused, "nothing else has had its turn in between"
        assert pump.status().trouble == f"{RESTS}this region does not act for it, see failover status"
        log.apply(RolePut(at_ms=1, key=KEY, region="east", epoch=1, state=ACTIVE))
        assert pump.status().trouble == f"{RESTS}region east has just returned, see failover status"
        log.apply(RolePut(at_ms=1, key=KEY, region="west", epoch=65, state=ACTIVE))
        west = f"{RESTS}region west has it (epoch 65, active), see failover status"
        assert pump.status().trouble == west
        pump.troubles.show(TroubleSource.COMMIT, "commit: east does not answer")
        log.apply()
        assert pump.troubles.words == "commit: east does not answer", "no other trouble is hidden"
        pump.troubles.show(TroubleSource.COMMIT, "")
        assert pump.troubles.words == west
        runs = None
        log.apply()
        assert not pump.paused, "the role is unknown: the job keeps its state"
        assert pump.troubles.words == ""
        log.apply(Paused(at_ms=1, key=KEY, partition=0, paused=True, actor="me"))
        assert (pump.paused, pump.troubles.words) == (True, ""), "an operator paused it"
        del jobs.kinds.dispatch.pumps[JOB]


async def test_a_workload_whose_state_is_unknown_pauses_with_one_incident_and_heartbeats_continue() -> None:
    worker = runtime()
    async with dispatch_rig(lambda _: None) as rig:
        worker.control.view.apply(put(rig.runtime.workload.to_wire()))
        well, ill = rig.pump(), rig.pump()
        ill.job = JobId(ill.job.kind, "billing/other", "other", 0)
        worker.kinds.dispatch.pumps |= {str(ill.job): ill, JOB: well}
        known, fails = worker.catalog.workloads.workload, True

        def workload(key: str) -> Workload | None:
            if fails and key == "billing/other":
                raise ZeroDivisionError
            return known(key)

        worker.catalog.workloads.workload = workload  # type: ignore[method-assign]
        ill.pause(False)
        well.pause(True)
        with capture_logs() as logs:
            for _ in range(3):
                worker._compose()
                assert (ill.paused, well.paused) == (True, False)
        subjects = [line["subject"] for line in logs if line.get("incident") == "workload-trouble"]
        assert subjects == ["billing/other"]
        fails = False
        worker._compose()
        assert not ill.paused
