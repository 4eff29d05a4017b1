"""The console names the true reason why a workload stands still: real pumps and receivers in each state."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.controllog.codec import (
    MAX_EVENT_BYTES,
    Heartbeat,
    JobStatus,
    WorkloadStatus,
    encode,
    heartbeat,
    heartbeat_events,
)
from app.dispatch.jobs.heartbeat_status import MAX_ENDPOINTS, job_status, workload_statuses
from app.dispatch.model.throughput_diagnosis import RESTS
from app.dispatch.view import WorkloadFlow, workload_flow
from app.kernel.broker_throttle import BrokerThrottle
from app.kernel.clock import now_ms
from app.kernel.limit_shares import ALL
from app.kernel.troubles import TroubleSource
from app.worker.runtime.heartbeat_status import job_statuses
from switchyard.receiver import Message
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig, numbers


def seen(rig: DispatchRig, cpu_throttled: float = 0.0) -> WorkloadFlow:
    """The console's view of the workload, encoded into a heartbeat and decoded."""
    runtime = rig.runtime
    key = runtime.workload.key
    (event,) = heartbeat_events(
        Heartbeat(
            worker="w1", at_ms=1, started_ms=1, url="http://h:1", state="running", term=0,
            jobs=job_statuses(map(job_status, rig.pumps), {}, {}),
            workloads=workload_statuses({key: runtime}, rig.pumps, rig.budget, cpu_throttled),
        )
    )  # fmt: skip
    beat = heartbeat(event)
    beats = [("w1", beat.workloads[0], beat.jobs)]
    return workload_flow(runtime.workload.to_wire(), beats, 0, len(beat.jobs), now_ms())


class Stuck:
    """A handler that answers no message for which `is_stuck` is true until `go` is set."""

    def __init__(self, is_stuck: Any = lambda _: True) -> None:
        self.go = asyncio.Event()
        self.is_stuck = is_stuck

    async def __call__(self, message: Message) -> None:
        if self.is_stuck(message):
            await self.go.wait()


def test_a_quota_of_the_broker_is_the_reason_where_messages_are_unread_and_is_shown_in_any_case() -> None:
    throttle = BrokerThrottle("east", "fetch", 2_500)
    words = (
        "the broker's quota delays fetch requests to cluster east by 2,500 ms; raise consumer_byte_rate of "
        "Switchyard's user or client id with kafka-configs.sh"
    )
    for end, bound in ((90, "throttled"), (30, "none")):
        job = JobStatus(
            job="dispatch:billing/orders:orders:0", epoch=1, state="flowing", committed=30, fetched=30,
            high_watermark=end, throttles=[throttle],
        )  # fmt: skip
        status = WorkloadStatus(key="billing/orders", breaker="closed", in_flight=0, limit=9)
        flow = workload_flow({}, [("w1", status, [job])], 0, 1, now_ms())
        assert (flow.bound, flow.workers[0].throttles) == (bound, [words])
        assert (words in flow.why) is (bound == "throttled")


async def test_a_full_receiver_is_the_reason_with_the_messages_in_flight() -> None:
    handler = Stuck()
    async with dispatch_rig(handler, flow={"max_inflight": 3}) as rig:
        rig.feed(rig.pump(), numbers(20))
        await rig.until(lambda: rig.runtime.receivers.in_flight == 3)
        flow = seen(rig)
        assert flow.bound == "limit"
        assert "3 of 3 are in flight" in flow.why
        (receiver,) = flow.receivers
        assert (receiver.in_flight, receiver.limit, receiver.ceiling) == (3, 3, None)
        assert flow.workers[0].ready == 17
        handler.go.set()
        await rig.idle()
        assert seen(rig).bound == "none"


async def test_an_unreachable_receiver_is_shown_with_the_reason_and_the_next_probe() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        await rig.receiver.stop(0)
        rig.feed(rig.pump(), numbers(20))
        await rig.until(lambda: not rig.endpoint.breaker.closed and bool(rig.queues.held))
        flow = seen(rig)
        assert flow.bound == "breaker"
        (receiver,) = flow.receivers
        assert receiver.breaker in {"open", "half-open"}
        assert receiver.why_open
        assert receiver.why_open in flow.why
        assert receiver.probe_in_s is not None
        assert receiver.probe_in_s <= 1.0
        assert receiver.failed
        assert receiver.held


async def test_a_rate_limit_is_the_reason_with_the_missing_permits() -> None:
    async with dispatch_rig(lambda _: None, flow={"messages_per_second": 0.5}) as rig:
        rig.runtime.apply_share(ALL)
        rig.feed(rig.pump(), numbers(20))
        await rig.until(lambda: len(rig.seen) == 1)
        flow = seen(rig)
        assert flow.bound == "rate"
        assert flow.workers[0].messages_per_s == 0.5
        assert flow.workers[0].messages_short


async def test_a_delay_is_the_reason_with_the_time_until_the_first_message_is_due() -> None:
    async with dispatch_rig(lambda _: None, delay="1h") as rig:
        rig.feed(rig.pump(), numbers(20))
        flow = seen(rig)
        assert flow.bound == "delay"
        assert flow.workers[0].postponed == 20
        assert 3000 < (flow.workers[0].due_in_s or 0) <= 3600


async def test_messages_with_a_not_before_time_count_as_delayed() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        later = str(now_ms() + 3_600_000).encode()
        rig.feed(rig.pump(), numbers(5), headers=[("not-before", later)])
        flow = seen(rig)
        assert (flow.bound, flow.workers[0].postponed) == ("delay", 5)


async def test_messages_that_wait_behind_their_key_are_held_by_the_order() -> None:
    async with dispatch_rig(Stuck(), ordering="key") as rig:
        rig.feed(rig.pump(), numbers(20, keys=1))
        await rig.until(lambda: rig.runtime.receivers.in_flight == 1)
        flow = seen(rig)
        assert (flow.bound, flow.workers[0].behind) == ("order", 19)


async def test_a_pause_is_the_reason_and_so_is_an_expired_lease() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        pump.pause(True)
        rig.feed(pump, numbers(5))
        assert (seen(rig).bound, seen(rig).workers[0].paused) == ("paused", 1)
        rig.lease.expires_at_s = time.monotonic() - 1
        assert (seen(rig).bound, seen(rig).workers[0].blocked) == ("lease", "lease")


async def test_a_workload_that_no_operator_paused_says_why_it_rests() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        pump.pause(True)
        assert "paused by an operator" in seen(rig).why
        pump.troubles.show(TroubleSource.PAUSE, f"{RESTS}region west has it")
        flow = seen(rig)
        assert (flow.bound, "region west has it" in flow.why, "operator resume" in flow.why) == (
            "paused", True, False,
        )  # fmt: skip
        pump.troubles.show(TroubleSource.COMMIT, "commit: east does not answer")
        assert "operator" not in seen(rig).why, "that is not known"


async def test_a_stream_shows_its_credit_and_each_receiver_has_its_own_state() -> None:
    async with dispatch_rig(Stuck(), target={"contract": "stream"}) as rig:
        rig.feed(rig.pump(), numbers(5))
        await rig.until(lambda: rig.runtime.receivers.in_flight == 5)
        (receiver,) = seen(rig).receivers
        assert receiver.contract == "stream"
        assert receiver.credit
    async with dispatch_rig(lambda _: None) as rig:
        address, _, other = await rig.another_receiver(Stuck())
        await other.stop(0)
        rig.run(
            isolation={"environment": "env", "targets": [{"environment": "test", "address": address}]},
        )
        rig.feed(rig.pump(), numbers(10), headers=[("env", b"test")])
        await rig.until(lambda: not rig.targets[address].receiver.closed)
        flow = seen(rig)
        assert [(r.address == address, r.breaker == "closed") for r in flow.receivers] == [
            (False, True),
            (True, False),
        ]
        assert address in flow.why


async def test_a_message_that_blocks_is_a_candidate_with_its_numbers_and_then_a_decision() -> None:
    handler = Stuck(lambda message: message.value == b"0")
    async with dispatch_rig(handler, headOfLine={"after": "1h", "patience": "1h"}) as rig:
        pump = rig.pump(capacity=50)  # no acknowledgement frees it, however slow the machine
        rig.feed(pump, numbers(200))
        await rig.until(lambda: pump.tracker.room == 0 and pump.tracker.unfinished == 1)
        assert pump.free_head(time.monotonic()) is None
        flow = seen(rig)
        assert flow.bound == "head-of-line"
        assert "orders-0 at offset 0" in flow.why
        (head,) = flow.head_of_line.candidates
        assert (head.topic, head.partition, head.offset) == ("orders", 0, 0)
        assert (head.tracker_used, head.unfinished_share) == (1.0, 0.02)
        assert "has been out for" in head.why_not
        assert flow.head_of_line.after_s == 3600.0
        await rig.until(lambda: pump.free_head(time.monotonic() + 3600.0) is not None)
        handler.go.set()
        await rig.idle()
        head_of_line = seen(rig).head_of_line
        assert (head_of_line.stashed, head_of_line.candidates) == (1, [])
        (decision,) = head_of_line.decisions
        assert (decision.offset, decision.rule) == (0, "age")
        assert "of the tracker in use" in decision.reason or "not finished after" in decision.reason
        assert abs(decision.at_ms - now_ms()) < 60_000


async def test_a_head_that_may_not_be_stashed_says_so() -> None:
    handler = Stuck(lambda message: message.value == b"0")
    async with dispatch_rig(handler, dlq={"enabled": False}) as rig:
        pump = rig.pump(capacity=10)
        rig.feed(pump, numbers(100))
        await rig.until(lambda: pump.tracker.room == 0)
        assert "dlq.enabled is false" in seen(rig).head_of_line.candidates[0].why_not


async def test_a_tracker_smaller_than_the_receivers_limit_is_the_reason() -> None:
    async with dispatch_rig(Stuck()) as rig:
        pump = rig.pump(capacity=10)
        rig.feed(pump, numbers(100))
        await rig.until(lambda: rig.runtime.receivers.in_flight == 10)
        assert seen(rig).bound == "tracker"


async def test_a_throttled_container_is_named_before_its_receiver() -> None:
    handler = Stuck()
    async with dispatch_rig(handler, flow={"max_inflight": 5}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(20))
        await rig.until(lambda: rig.runtime.receivers.in_flight == 5)
        assert seen(rig).bound == "limit"
        flow = seen(rig, cpu_throttled=0.49)
        assert (flow.bound, flow.worker) == ("cpu", "w1")
        assert "this container is throttled" in flow.why
        assert flow.workers[0].cpu_throttled == 0.49
        handler.go.set()
        await rig.idle()


async def test_a_heartbeat_lists_a_limited_number_of_endpoints_and_counts_the_others() -> None:
    async with dispatch_rig(lambda _: None, target={"address": "ipv4:127.0.0.1:1,127.0.0.2:1"}) as rig:
        runtimes = {f"group/topic-{number}": rig.runtime for number in range(MAX_ENDPOINTS)}
        statuses = workload_statuses(runtimes, [], rig.budget, 0.0)
        targets = [target for status in statuses for target in status.targets]
        assert sum(len(target.endpoints) for target in targets) == MAX_ENDPOINTS
        assert sum(target.more_endpoints for target in targets) == MAX_ENDPOINTS


async def test_ordinary_values_take_no_room_in_a_heartbeat() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(100))
        await rig.idle()
        statuses = workload_statuses(
            {f"group/topic-{n}": rig.runtime for n in range(300)}, [pump], rig.budget, 0.0
        )
        (event,) = heartbeat_events(
            Heartbeat(worker="w1", at_ms=1, started_ms=1, url="http://h:1", state="running", term=0,
                      workloads=statuses)
        )  # fmt: skip
        assert len(event) < MAX_EVENT_BYTES / 5
        unusual = [
            "why_open",
            "probe_in_ms",
            "allowed",
            "credit",
            "held",
            "heads",
            "decisions",
            "blocked",
            "rate_messages",
            "tokens_bytes",
            "budget_used",
            "contract",
            "base_timeout_ms",
            "failed",
        ]
        assert [name for name in unusual if f'"{name}"'.encode() in event] == []
        (status,) = job_statuses([job_status(pump)], {}, {})
        encoded = encode(status)
        unusual = ["ready", "behind", "postponed", "backoff", "due_ms", "used", "capacity", "buffered_bytes"]
        assert [name for name in unusual if f'"{name}"'.encode() in encoded] == []
