"""One bad message, receiver or definition stops no other: no partition blocks, and no retries storm."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor
from app.dispatch.model.retry_headers import (
    ATTEMPT,
    CODE,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    RAW_BATCH,
    REASON,
    TIER,
    TIER_ATTEMPT,
)
from app.dispatch.push.answer_limits import MAX_UNARY_BYTES
from app.kernel.limit_shares import ALL
from app.payload.interceptors import InterceptorChain, Reject, Send, Skip
from app.payload.interceptors import Message as Outbound
from switchyard.receiver import Message
from switchyard.receiver.server import MAX_MESSAGE_BYTES
from tests.dispatch.pump.rig import TOPIC, definition, dispatch_rig, numbers
from tests.dispatch.push.grpc_servers import start_server
from tests.kafka.records.batches import (
    ATTRIBUTES_AT,
    CODECS,
    batch_of_packed,
    make_batch,
    packed_record,
    patched,
)

CONTRACTS = ["unary", "stream"]
MIB = 1024 * 1024


async def test_a_message_that_is_never_acknowledged_delays_no_other() -> None:
    async def handle(value: bytes, context: Any) -> bytes:
        if value == b"0":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "never")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run()
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.until(lambda: not rig.endpoint.breaker.closed)
        rig.feed(pump, numbers(500, 1))
        await rig.until(lambda: pump.delivered == 500)
        assert pump.tracker.base == 0
    await server.stop(None)


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_that_blocks_its_partition_goes_to_the_dlq_with_the_numbers_and_others_flow(
    contract: str,
) -> None:
    async def handle(message: Message) -> None:
        if message.value == b"3":
            await asyncio.sleep(3_600)

    spec: dict[str, Any] = {"headOfLine": {"after": "1s"}, "flow": {"max_inflight": 10}}
    async with dispatch_rig(handle, target={"contract": contract, "timeout": "1h"}, **spec) as rig:
        pump, other = rig.pump(0, capacity=100), rig.pump(1)
        rig.feed(pump, numbers(1_000))
        rig.feed(other, numbers(1_000, 1_000))
        await rig.until(lambda: other.tracker.base == 1_000)
        while pump.tracker.base < 1_000:
            pump.free_head(time.monotonic())
            await asyncio.sleep(0.02)

        ((topic, _, value, headers),) = rig.copied.records
        assert (topic, value) == ("orders__billing__dlq", b"3")
        assert b"head of line" in (headers["switchyard-reason"] or b"")
        await rig.until(lambda: rig.runtime.receivers.in_flight == 0)  # its call ends a moment later


@pytest.mark.parametrize(("timeout", "after_s"), [("10m", 1_200), ("10s", 300)])
async def test_by_default_a_handler_that_is_within_its_timeout_does_not_block_its_partition(
    timeout: str, after_s: float
) -> None:
    async def handle(message: Message) -> None:
        if message.value == b"3":
            await asyncio.sleep(3_600)

    async with dispatch_rig(handle, target={"timeout": timeout}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(100))
        await rig.until(lambda: pump.tracker.unfinished == 1)
        sent_s = pump.open[3].first_sent_s
        assert pump.free_head(sent_s + after_s - 1) is None
        verdict = pump.free_head(sent_s + after_s + 1)
        assert verdict is not None
        assert verdict.offset == 3
        await rig.until(lambda: rig.runtime.receivers.in_flight == 0)


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_an_acknowledgement_that_leaves_the_tracker_full_checks_the_head_without_a_timer(
    contract: str,
) -> None:
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.value == b"0":
            await asyncio.sleep(3_600)
        if message.value == b"9":
            await release.wait()

    target = {"contract": contract, "timeout": "1h"}
    async with dispatch_rig(handle, target=target, flow={"max_inflight": 20}) as rig:
        pump = rig.pump(capacity=10)
        rig.feed(pump, numbers(30))
        await rig.until(lambda: len(rig.seen) == 10 and pump.tracker.unfinished == 2)
        await rig.until(lambda: not pump.head.is_check_due)  # the last acknowledgement's check is over
        address, head = rig.main.address, {"after": "1ms"}
        rig.runtime.change(
            definition(address, target=target, flow={"max_inflight": 20}, headOfLine=head), None
        )
        await asyncio.sleep(0.1)
        assert not rig.copied.records  # no check has run
        release.set()
        await rig.idle()

        assert rig.copied.values("dlq") == [b"0"]
        verdict = pump.free_head(time.monotonic())  # the timer reports it
        assert verdict is not None
        assert verdict.offset == 0
        assert pump.free_head(time.monotonic()) is None
        assert rig.runtime.decisions.count == 1


async def test_an_answer_that_is_too_large_fails_only_its_message_and_is_reported_with_its_receiver() -> None:
    async def handle(value: bytes, _: Any) -> bytes:
        return bytes(MAX_UNARY_BYTES + 1) if value == b"3" else b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"})
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        await rig.until(lambda: pump.delivered == 9)
        await rig.until(lambda: rig.main.unread.count)

        assert rig.endpoint.breaker.closed
        incidents = list[str]()
        HeadOfLineMonitor(
            {}, {"w": rig.runtime}, lambda kind, _, message, *__: incidents.append(f"{kind}: {message}")
        ).look(time.monotonic())
        (message,) = incidents
        assert message.startswith(f"answer-too-large: 1 answers of {rig.main.address} were too large")
    await server.stop(None)


async def test_a_message_of_millions_of_headers_goes_to_the_dlq_undecoded_and_no_other_does() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rows = [packed_record(0, b"0"), packed_record(1, headers=4_000_000), packed_record(2, b"2")]
        poison = batch_of_packed(0, rows, CODECS["zstd"])
        rig.feed_bytes(pump, poison, 3)
        rig.feed(pump, numbers(2, 3))
        await rig.idle()

        ((topic, key, value, headers),) = rig.copied.records
        assert (topic, key, value) == ("orders__billing__dlq", None, poison)
        assert (headers[CODE], headers[RAW_BATCH]) == (b"UNDECODABLE", b"1-2")
        assert (pump.delivered, pump.dead_lettered, pump.tracker.base) == (4, 1, 5)
        assert (rig.budget.used_bytes, rig.budget.held_bytes) == (0, 0)


async def test_a_batch_that_cannot_be_decoded_goes_to_the_dlq_as_raw_bytes_with_the_reason() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        broken = patched(make_batch(10, numbers(5)), ATTRIBUTES_AT, ">h", CODECS["zstd"])
        rig.feed_bytes(pump, broken, 5)
        rig.feed(pump, numbers(10, 15))
        await rig.idle()

        ((topic, key, value, headers),) = rig.copied.records
        assert (topic, key, value) == ("orders__billing__dlq", None, broken)
        assert (headers[CODE], headers[RAW_BATCH]) == (b"UNDECODABLE", b"10-15")
        assert (headers[REASON] or b"").startswith(b"offsets [10, 15): ")
        assert (pump.delivered, pump.dead_lettered, rig.budget.used_bytes) == (20, 1, 0)


async def test_a_header_name_that_grpc_cannot_carry_takes_its_message_to_the_dlq_with_the_reason() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        rig.feed(pump, numbers(1, 10), headers=[("na\u00efve name", b"x")])
        rig.feed(pump, numbers(10, 11))
        await rig.idle()

        ((topic, _, value, headers),) = rig.copied.records
        assert (topic, value, headers[CODE]) == ("orders__billing__dlq", b"10", b"REJECTED")
        assert "'na\u00efve name' cannot be gRPC metadata; name headers with".encode() in (
            headers[REASON] or b""
        )
        assert (headers[REASON] or b"").endswith(b"spec.headers.deny")
        assert headers["na\u00efve name"] == b"x"
        assert (pump.delivered, rig.endpoint.breaker.closed) == (20, True)


async def test_a_receiver_that_hangs_completely_flushes_no_message_into_the_dlq() -> None:
    async def hang(_: Message) -> None:
        await asyncio.sleep(3_600)

    spec: dict[str, Any] = {"headOfLine": {"after": "100ms"}, "flow": {"max_inflight": 10}}
    async with dispatch_rig(hang, target={"timeout": "1h"}, **spec) as rig:
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(1_000))
        for _ in range(30):
            assert pump.free_head(time.monotonic()) is None
            await asyncio.sleep(0.02)
        assert "nothing newer finishes" in pump.head.detector.why_not


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_messages_too_large_for_the_receiver_go_to_the_dlq_and_slow_down_no_other(
    contract: str,
) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}) as rig:
        pump = rig.pump()
        large = [(None, bytes(MAX_MESSAGE_BYTES + MIB))]
        for number in range(4):
            rig.feed(pump, large, codec=4)
            rig.feed(pump, numbers(10, 10 * number))
        await rig.idle()

        assert len(rig.copied.values("dlq")) == 4
        for *_, headers in rig.copied.records:
            assert b"too large" in (headers["switchyard-reason"] or b"")
        assert len(rig.seen) == 40
        assert rig.endpoint.breaker.closed


async def test_messages_that_a_java_receiver_finds_too_large_open_no_breaker() -> None:
    async def java(value: bytes, context: Any) -> bytes:
        if len(value) > 1_000:
            words = f"gRPC message exceeds maximum size 1000: {len(value)}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        return b""

    server, port = await start_server(java)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"}, dlq={"share": 1})
        pump = rig.pump()
        rig.feed(pump, [(None, bytes(2_000))] * 40, codec=4)
        rig.feed(pump, numbers(10))
        await rig.until(lambda: pump.tracker.base == 50)

        assert len(rig.copied.values("dlq")) == 40
        for *_, headers in rig.copied.records:
            assert b"too large for the receiver: gRPC message exceeds" in (
                headers["switchyard-reason"] or b""
            )
        assert rig.endpoint.breaker.closed
        assert rig.endpoint.breaker.recent(time.monotonic())[1] == 0
    await server.stop(None)


async def test_large_records_are_decoded_a_few_at_a_time() -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    async with dispatch_rig(wait, flow={"max_inflight": 1}) as rig:
        pump = rig.pump()
        for _ in range(40):
            rig.feed(pump, [(None, bytes(MIB))], codec=4)
        await rig.until(lambda: pump.in_flight == 1)
        assert len(pump._intake.ready) <= 8
        gate.set()
        await rig.idle()


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_rates_hold_even_if_the_receiver_could_take_more(contract: str) -> None:
    async with dispatch_rig(
        lambda _: None, target={"contract": contract}, flow={"messages_per_second": 200}
    ) as rig:
        rig.runtime.apply_share(ALL)
        pump = rig.pump()
        began_s = time.monotonic()
        rig.feed(pump, numbers(150))
        await rig.idle()

        passed_s = time.monotonic() - began_s
        assert len(rig.seen) <= 200 * passed_s + 20 + 1  # the burst is a tenth of a second's worth
        assert passed_s > (150 - 21) / 200


async def test_changed_definitions_leave_no_connection_behind() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        workload = rig.runtime.workload
        for number in range(1, 30):
            other = {"address": f"localhost:{rig.port}"} if number % 2 else {"timeout": float(number)}
            target = workload.spec.target.model_copy(update=other)
            spec = workload.spec.model_copy(update={"target": target})
            rig.runtime.change(workload.model_copy(update={"spec": spec}), None)
            rig.feed(pump, numbers(10, 10 * number))
        await rig.idle()
        await rig.until(lambda: not rig.runtime.receivers.old)

        assert len(rig.seen) == 290


ISOLATION = {"zone": "zone", "environment": "env"}


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_test_message_never_reaches_production_and_an_absent_test_receiver_never_stops_it(
    contract: str,
) -> None:
    async with dispatch_rig(lambda _: None) as rig:
        address, staged, staging = await rig.another_receiver(lambda _: None)
        isolation = {**ISOLATION, "targets": [{"environment": "staging", "address": address}]}
        await rig.runtime.close()
        rig.run(target={"contract": contract}, isolation=isolation)
        pump = rig.pump(capacity=500)
        rig.feed(pump, numbers(100), headers=[("env", b"staging")])
        rig.feed(pump, numbers(100, 100), headers=[("env", b"production")])
        rig.feed(pump, numbers(10, 200), headers=[("env", b"qa")])
        rig.feed(pump, numbers(100, 210))
        await rig.idle()
        assert sorted(int(message.value) for message in staged) == list(range(100))
        assert sorted(int(message.value) for message in rig.seen) == [*range(100, 200), *range(210, 310)]
        assert len(rig.copied.values("dlq")) == 10

        await staging.stop(0)
        rig.feed(pump, numbers(2_000, 1_000), headers=[("env", b"staging")])
        rig.feed(pump, numbers(2_000, 5_000))
        await rig.until(lambda: len(rig.seen) == 2_200)
        assert all(not 1_000 <= int(message.value) < 3_000 for message in rig.seen)


@pytest.mark.parametrize("tiers", [[], [{"delay": "1h", "attempts": 1}]])
async def test_one_message_for_an_absent_test_receiver_does_not_stop_production_behind_it(tiers: Any) -> None:
    async with dispatch_rig(lambda _: None) as rig:
        address, staged, staging = await rig.another_receiver(lambda _: None)
        isolation = {**ISOLATION, "targets": [{"environment": "staging", "address": address}]}
        await rig.runtime.close()
        rig.run(isolation=isolation, retry=tiers)
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(50), headers=[("env", b"staging")])
        await rig.idle()
        assert len(staged) == 50
        await staging.stop(0)
        rig.feed(pump, numbers(1, 777), headers=[("env", b"staging")])
        rig.feed(pump, numbers(40, 1_000))
        await rig.until(lambda: len(rig.seen) == 40)
        assert not rig.copied.records  # it waits while it blocks no other
        rig.feed(pump, numbers(1_000, 2_000))
        await rig.idle()

        assert len(rig.seen) == 1_040
        assert rig.copied.values("retry_1" if tiers else "dlq") == [b"777"]
        assert b"half a tracker" in (rig.copied.records[0][3]["switchyard-reason"] or b"")


async def test_a_message_circles_in_its_tier_while_its_receiver_is_away_and_loses_no_attempt() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        address, _, staging = await rig.another_receiver(lambda _: None)
        await staging.stop(0)
        isolation = {**ISOLATION, "targets": [{"environment": "staging", "address": address}]}
        await rig.runtime.close()
        tiers = [{"delay": "1s", "attempts": 2}, {"delay": "2s", "attempts": 3}]
        rig.run(isolation=isolation, retry=tiers)
        pump = rig.pump(tier=1, capacity=50)
        origin_headers = {
            ORIGIN_TOPIC: TOPIC, ORIGIN_PARTITION: 0, ORIGIN_OFFSET: 5, ATTEMPT: 4, TIER: 1, TIER_ATTEMPT: 1,
        }  # fmt: skip
        headers = [(name, str(value).encode()) for name, value in origin_headers.items()]
        rig.feed(pump, numbers(1), headers=[("env", b"staging"), *headers], timestamp_ms=1_000)
        rig.feed(pump, numbers(100, 1), timestamp_ms=1_000)
        await rig.until(lambda: bool(rig.copied.records))

        topic, _, value, kept = rig.copied.records[0]
        assert (topic.endswith("retry_2"), value) == (True, b"0")
        assert (kept[TIER], kept[TIER_ATTEMPT], kept[ATTEMPT]) == (b"1", b"1", b"4")


async def test_a_burst_for_a_slow_test_receiver_is_delivered_to_it() -> None:
    async def slowly(_: Message) -> None:
        await asyncio.sleep(0.005)

    async with dispatch_rig(lambda _: None) as rig:
        address, staged, _ = await rig.another_receiver(slowly)
        isolation = {**ISOLATION, "targets": [{"environment": "staging", "address": address}]}
        await rig.runtime.close()
        rig.run(isolation=isolation, flow={"max_inflight": 20})
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(400), headers=[("env", b"staging")])
        await rig.idle()
        assert (len(staged), rig.copied.records) == (400, [])


class Odd:
    """Turns 1 into ten, rejects 2, skips 3, fails on 4."""

    def before(self, message: Outbound) -> Any:
        if message.value == b"4":
            raise RuntimeError("secret")
        verdicts = {
            b"1": Send(b"ten", (("x-seen", "yes"),)),
            b"2": Reject("two is not allowed"),
            b"3": Skip("three is nobody's"),
        }
        return verdicts.get(message.value or b"", Send())


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_interceptors_change_reject_and_skip_and_one_that_fails_harms_its_message_only(
    contract: str,
) -> None:
    async with dispatch_rig(
        lambda _: None, InterceptorChain([("odd", Odd())]), target={"contract": contract}
    ) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        await rig.idle()

        assert set(rig.values()) == {b"0", b"ten", *(str(number).encode() for number in range(5, 10))}
        assert sorted(rig.copied.values("dlq")) == [b"2", b"4"]  # as it was read
        reasons = [headers["switchyard-reason"] or b"" for *_, headers in rig.copied.records]
        assert not any(b"secret" in reason for reason in reasons)
        assert b"interceptor odd: two is not allowed" in reasons  # reported once
        assert pump.delivered == 7  # what is skipped is not
        assert rig.endpoint.breaker.closed


async def test_a_receiver_that_is_not_serving_gets_no_messages_until_it_is() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        servicer = rig.receiver._health
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await rig.until(lambda: not rig.endpoint.health.serving)
        pump = rig.pump()
        rig.feed(pump, numbers(100))
        await asyncio.sleep(0.3)
        assert (rig.seen, rig.endpoint.breaker.closed) == ([], True)
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        await rig.idle()

        assert len(rig.seen) == 100
