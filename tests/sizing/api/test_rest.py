"""Sizes by REST and as metrics, from the workers' measurements, each with its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML

from app.controllog.codec import Heartbeat, JobStatus
from app.controllog.events import Drain
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.kernel.load import Load
from tests.web.client import Console
from tests.web.runtime_fake import ME, assigned, beat, definition, flowing, job, put

ALL, ONE = "/api/v1/sizing", "/api/v1/workloads/billing/orders/sizing"
SCALED = Path(__file__).parents[3] / "docker/kubernetes/scaledobject.yaml"
WORKER = Load(1.0, 2 << 30, 125e6)
RETRY = "orders__billing__retry_1"


def busy(name: str, **fields: Any) -> JobStatus:
    """A job that uses a tenth of a worker at 500 messages a second, and has carried 1,000."""
    load = Load(0.1, 32 << 20, 1e6)
    known: dict[str, Any] = {"arriving": 500.0, "ceiling": 1000.0, "load": load, "committed": 40}
    return flowing(name, **known | fields)


def heartbeat(*jobs: JobStatus, latency_ms: float = 20.0, worker: str = ME, group: str = "") -> Heartbeat:
    target = TargetStatus(address="billing:443", latency_ms=latency_ms, calls=40)
    record = beat(*jobs, worker=worker, targets=[target])
    return msgspec.structs.replace(record, capacity=WORKER, group=group)


def flow(console: Console, **spec: Any) -> None:
    console.fed.apply(put(definition(**spec)), assigned(job(0)), assigned(job(1)))


def metrics(console: Console) -> dict[str, float]:
    lines = console.metrics().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)
            if not name.startswith("#")}  # fmt: skip


def test_a_size_is_what_was_measured_times_the_headroom_and_says_so(console: Console) -> None:
    flow(console)
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1))))
    size = console.ask("GET", ONE).json
    assert size["measured"]["rate_per_s"] == 1000
    assert size["measured"]["latency_ms"] == 20
    assert (size["in_flight"]["value"], size["in_flight"]["now"]) == (26, 100)  # 1000/s x 20 ms x 1.3
    assert (size["partitions"]["value"], size["partitions"]["now"]) == (2, 2)  # 1000 x 1.3 / 1000
    assert (size["workers"]["value"], size["workers"]["now"]) == (2, 1)
    assert "Little's law" in size["in_flight"]["why"]
    (fleet,) = console.ask("GET", ALL).json["fleets"]
    assert fleet["load_ratio"] == 0.2
    assert (fleet["fullest"], fleet["jobs"], fleet["estimated"]) == ("cpu", 2, 0)
    assert (fleet["workers"]["value"], fleet["workers"]["now"]) == (2, 1)


def test_retries_count_as_in_flight_but_need_no_partition_of_the_main_topic(console: Console) -> None:
    flow(console, retry=[{"delay": "1m"}])
    console.fed.apply(assigned(job(0, RETRY)))
    retries = busy(job(0, RETRY), arriving=500.0, ceiling=9000.0)
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1)), retries))
    size = console.ask("GET", ONE).json
    assert size["measured"]["retries_per_s"] == 500
    assert size["in_flight"]["value"] == 39
    assert (size["partitions"]["value"], size["partitions"]["now"]) == (2, 2)


def test_unknown_stays_unknown_and_the_reason_says_what_is_missing(console: Console) -> None:
    flow(console)
    console.fed.observe(beat(flowing(job(0)), flowing(job(1))))
    size = console.ask("GET", ONE).json
    for figure, missing in (("partitions", "rate"), ("in_flight", "rate"), ("workers", "load")):
        assert size[figure]["value"] is None
        assert missing in size[figure]["why"]
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1), arriving=-1.0), latency_ms=-1.0))
    size = console.ask("GET", ONE).json
    assert size["measured"]["rate_per_s"] is None, "a sum with an unknown part is known"
    assert size["measured"]["latency_ms"] is None
    assert not any(name.startswith("switchyard_recommended_in_flight") for name in metrics(console))


def test_an_unmeasured_job_counts_as_its_siblings_and_the_reason_says_so(console: Console) -> None:
    flow(console)
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1), load=None)))
    (fleet,) = console.ask("GET", ALL).json["fleets"]
    assert fleet["load"]["cpu_cores"] == 0.2
    assert "1 of 2 jobs are estimated" in fleet["workers"]["why"]


def test_messages_that_wait_for_their_delay_are_no_lag(console: Console) -> None:
    flow(console, delay="10s")
    waiting = {"committed": 0, "high_watermark": 6_500}
    console.fed.observe(heartbeat(busy(job(0), **waiting), busy(job(1), **waiting)))
    size = console.ask("GET", ONE).json
    assert (
        size["measured"]["lag_messages"] == 2_000
    )  # 13,000 less 11 s at 1,000/s: the delay and one second in flow
    assert "a lag of 2,000" in size["in_flight"]["why"]


def test_each_isolation_group_is_a_fleet_without_its_draining_workers(console: Console) -> None:
    flow(console, placement={"group": "gold"})
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1)), group="gold"))
    console.fed.observe(heartbeat(worker="w2"))
    console.fed.observe(heartbeat(worker="w3"))
    console.fed.apply(Drain(at_ms=1, worker="w3", draining=True, actor="me"))
    rest, gold = console.ask("GET", ALL).json["fleets"]
    assert (rest["group"], rest["jobs"], rest["workers"]["now"], rest["load_ratio"]) == ("", 0, 1, 0)
    assert (gold["group"], gold["jobs"], gold["workers"]["now"], gold["load_ratio"]) == ("gold", 2, 1, 0.2)


def test_jobs_without_a_worker_of_their_group_still_ask_for_workers(console: Console) -> None:
    flow(console, placement={"group": "gold"})
    (gold,) = console.ask("GET", ALL).json["fleets"]
    assert (gold["workers"]["now"], gold["load_ratio"]) == (0, None)
    assert gold["workers"]["value"] >= 1


def test_a_hibernated_workload_needs_nothing_and_every_answer_says_so(console: Console) -> None:
    flow(console, hibernate={"after": "30m"})
    why = "hibernated: nothing arrived for 30 minutes; it wakes with the first message"
    for partition in (0, 1):
        console.fed.apply(assigned(job(partition), worker="", epoch=2, reason=why))
    console.fed.observe(heartbeat())
    size = console.ask("GET", ONE).json
    assert (size["workers"]["value"], size["in_flight"]["value"], size["partitions"]["value"]) == (0, 0, 2)
    assert size["workers"]["why"] == why
    (fleet,) = console.ask("GET", ALL).json["fleets"]
    assert fleet["jobs"] == 0
    body = console.ask("GET", "/api/v1/workloads/billing/orders").json
    assert body["status"]["hibernated"] == body["flow"]["why"] == why.removeprefix("hibernated: ")
    assert (body["flow"]["bound"], body["status"]["waiting"], body["status"]["troubles"]) == (
        "hibernated", 0, [],
    )  # fmt: skip
    assert {row["state"] for row in body["partitions"]} == {"hibernated"}
    assert console.ask("GET", "/api/v1/overview").json["totals"]["lag_messages"] == 0


def test_a_list_of_sizes_is_paged(console: Console) -> None:
    for number in range(5):
        console.fed.apply(put(definition(f"g{number}")))
    first = console.ask("GET", f"{ALL}?limit=2").json
    assert [size["key"] for size in first["items"]] == ["g0/orders", "g1/orders"]
    rest = console.ask("GET", f"{ALL}?limit=9&cursor={first['next']}").json
    assert (len(rest["items"]), rest["next"]) == (3, None)
    assert all(size["partitions"]["value"] is None for size in rest["items"])


@pytest.mark.parametrize(("throttled", "needed"), [(0.0, 2), (0.02, 2), (0.49, 4)])
def test_a_throttled_fleet_does_not_shrink(console: Console, throttled: float, needed: int) -> None:
    flow(console)
    throttles = msgspec.structs.replace(heartbeat(busy(job(0)), busy(job(1))), cpu_throttled=throttled)
    console.fed.observe(throttles)
    for worker in ("w2", "w3", "w4"):
        console.fed.observe(heartbeat(worker=worker))
    (fleet,) = console.ask("GET", ALL).json["fleets"]
    assert (fleet["workers"]["value"], fleet["workers"]["now"]) == (needed, 4)
    assert ("CPU quotas throttle 1 of 4 workers" in fleet["workers"]["why"]) is (needed == 4)
    assert metrics(console)['switchyard_recommended_workers{group=""}'] == needed


def test_half_a_core_is_full_when_half_a_core_is_used(console: Console) -> None:
    flow(console)
    jobs = [busy(job(partition), load=Load(0.23, 32 << 20, 1e6)) for partition in (0, 1)]
    half = msgspec.structs.replace(heartbeat(*jobs), capacity=Load(0.5, 2 << 30, 125e6))
    console.fed.observe(half)
    (fleet,) = console.ask("GET", ALL).json["fleets"]
    assert (fleet["workers"]["value"], fleet["load_ratio"], fleet["fullest"]) == (3, 0.92, "cpu")


def test_no_such_workload_has_no_size(console: Console) -> None:
    assert console.ask("GET", "/api/v1/workloads/no/such/sizing").status == 404


def test_only_the_leader_exports_the_regions_metrics(console: Console) -> None:
    flow(console)
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1))))
    series = metrics(console)
    assert series['switchyard_recommended_workers{group=""}'] == 2
    assert series['switchyard_fleet_workers{group=""}'] == 1
    assert series['switchyard_fleet_load_ratio{group=""}'] == 0.2
    assert series['switchyard_recommended_partitions{workload="billing/orders"}'] == 2
    assert series['switchyard_recommended_in_flight_messages{workload="billing/orders"}'] == 26
    assert series['switchyard_recommended_workload_workers{workload="billing/orders"}'] == 2
    console.fed.leader.leads = False
    assert not any("recommended" in name or "fleet" in name for name in metrics(console))


def test_the_scaled_object_uses_an_existing_metric(console: Console) -> None:
    (scaled,) = YAML(typ="safe").load_all(SCALED)
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    series = trigger["metadata"]["query"].removeprefix("max(").removesuffix(")")
    flow(console)
    console.fed.observe(heartbeat(busy(job(0)), busy(job(1))))
    used = re.fullmatch(r'(\w+)\{region="east", (group="")\}', series)
    assert used is not None
    assert f"{used[1]}{{{used[2]}}}" in metrics(console)


@pytest.mark.parametrize("latency_ms", [(10.0, 30.0), (20.0, 20.0)])
def test_the_latency_is_the_mean_over_all_workers(console: Console, latency_ms: tuple[float, float]) -> None:
    console.fed.apply(put(definition()), assigned(job(0)), assigned(job(1), "w2"))
    console.fed.observe(heartbeat(busy(job(0)), latency_ms=latency_ms[0]))
    console.fed.observe(heartbeat(busy(job(1)), latency_ms=latency_ms[1], worker="w2"))
    assert console.ask("GET", ONE).json["measured"]["latency_ms"] == 20
