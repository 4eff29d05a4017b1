"""A receiver that fails every message flushes nothing into the DLQ, and a few bad messages go there."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest

from app.dispatch.model.circuit_breaker import STREAK_FAILURES
from app.dispatch.model.dead_letter_budget import START_LETTERS
from app.dispatch.scheduler.dead_letter_trials import WithheldDeadLetters
from app.payload.interceptors import InterceptorChain, Reject, Send
from app.payload.interceptors import Message as Outbound
from switchyard.receiver import Message, Stash
from tests.dispatch.pump.rig import DispatchRig, definition, dispatch_rig, numbers
from tests.dispatch.push.grpc_servers import start_server

CONTRACTS = ["unary", "stream"]
CODES = [
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "ABORTED",
    "INTERNAL",
    "DATA_LOSS",
]
MANY = 2_000
SLOW: dict[str, Any] = {"perMinute": 0.001}  # time alone gives nothing while a test runs


def withholding(rig: DispatchRig) -> WithheldDeadLetters:
    return rig.runtime.withheld


async def settled(rig: DispatchRig, letters: int) -> None:
    """Waits for this many dead letters and an open breaker, which lets only probes out."""
    await rig.until(lambda: rig.endpoint.breaker.failed and len(rig.copied.records) == letters)


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize("code", CODES)
async def test_a_receiver_that_answers_one_code_to_everything_costs_few_dead_letters_and_loses_nothing(
    code: str,
) -> None:
    fails, taken, attempts = [True], Counter[bytes](), set[str]()

    async def handle(value: bytes, context: Any) -> bytes:
        if fails[0]:
            await context.abort(grpc.StatusCode[code], "a bad deployment")
        taken[value] += 1
        attempts.update(value for name, value in context.invocation_metadata() if name == "kafka-attempt")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(dlq=SLOW)
        pumps = [rig.pump(partition) for partition in range(2)]
        for partition, pump in enumerate(pumps):
            rig.feed(pump, numbers(MANY // 2, MANY // 2 * partition))
        await settled(rig, START_LETTERS)
        assert code in rig.endpoint.breaker.reason
        assert code in withholding(rig).incident_message(0.0)
        assert not withholding(rig).incident_message(1.0), "once is enough for now"
        await asyncio.sleep(0.5)
        assert len(rig.copied.records) == START_LETTERS
        fails[0] = False
        await rig.idle()

        dead = rig.copied.values("dlq")
        assert len(dead) == START_LETTERS
        wanted = Counter(str(number).encode() for number in range(MANY))
        assert taken + Counter(dead) == wanted
        assert withholding(rig).count == rig.budget.held_bytes == 0
        assert not withholding(rig).incident_message(2.0)
    await server.stop(None)


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_handler_that_raises_on_everything_costs_few_dead_letters_and_burns_no_attempts(
    contract: str,
) -> None:
    fails, attempts = [True], Counter[int]()

    def handle(message: Message) -> None:
        attempts[message.attempt] += 1
        if fails[0]:
            raise ValueError("a bad deployment")

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(MANY))
        await settled(rig, START_LETTERS)
        fails[0] = False
        await rig.idle()

        assert pump.delivered == MANY - START_LETTERS
        assert len(rig.copied.values("dlq")) == START_LETTERS
        assert max(attempts) <= rig.runtime.settings.policy.in_memory_attempts


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_bad_messages_among_good_ones_go_to_the_dead_letter_queue_without_holding_anything_up(
    contract: str,
) -> None:
    def handle(message: Message) -> None:
        if int(message.value or b"0") % 20 == 0:
            raise ValueError("a poison pill")

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(MANY))
        await rig.idle()
        assert len(rig.copied.values("dlq")) == MANY // 20
        assert rig.endpoint.breaker.closed


async def test_letters_withheld_beside_a_flow_are_written_once_its_successes_allow_them() -> None:
    def handle(message: Message) -> None:
        if int(message.value or b"0") < 50:
            raise ValueError("a poison pill")

    async with dispatch_rig(handle, dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(50))
        await settled(rig, START_LETTERS)
        rig.feed(pump, numbers(1_000, 50))
        await rig.idle()
        assert Counter(rig.copied.values("dlq")) == Counter(str(number).encode() for number in range(50))


async def test_the_last_attempt_of_a_retry_topic_needs_the_same_right() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    tiers = [{"delay": "0s", "attempts": 1}]
    async with dispatch_rig(handle, retry=tiers, dlq=SLOW) as rig:
        pump = rig.pump(tier=0)
        rig.feed(pump, numbers(200))
        await settled(rig, START_LETTERS)
        assert pump.tracker.unfinished == 200 - START_LETTERS


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_letters_that_the_receiver_or_an_operator_stashes_are_free(contract: str) -> None:
    stash = [True]

    def handle(_: Message) -> Any:
        if stash[0]:
            return Stash("never")
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(100))
        await rig.idle()
        assert len(rig.copied.values("dlq")) == 100

        stash[0] = False
        rig.feed(pump, numbers(100, 100))
        await settled(rig, 100 + START_LETTERS)
        decision = rig.runtime.settings.head_decision(None)
        assert decision is not None
        await rig.until(
            lambda: (
                sum(pump.finish_by_operator(offset, decision) for offset in range(100, 200)) == 0
                and rig.runtime.receivers.in_flight == 0
            )
        )
        await rig.idle()
        assert len(rig.copied.values("dlq")) == 200


async def test_an_interceptor_that_rejects_everything_flushes_nothing_until_its_definition_is_mended() -> (
    None
):
    class Wrong:
        def before(self, message: Outbound) -> Any:
            return Reject("no such field")

    class Right:
        def before(self, message: Outbound) -> Any:
            return Send(message.value)

    async with dispatch_rig(lambda _: None, InterceptorChain([("wrong", Wrong())]), dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(MANY))
        await rig.until(lambda: len(rig.copied.records) == START_LETTERS and withholding(rig).count > 100)
        assert "no such field" in withholding(rig).last
        assert rig.endpoint.breaker.closed, "the receiver is not to blame"
        rig.runtime.change(definition(rig.main.address, dlq=SLOW), InterceptorChain([("right", Right())]))
        await rig.idle()
        assert len(rig.seen) == MANY - START_LETTERS


async def test_without_a_limit_everything_is_dead_lettered_at_once() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, dlq={"share": 1}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(200))
        await rig.idle()
        assert len(rig.copied.values("dlq")) == 200
        assert rig.endpoint.breaker.closed


async def test_a_definition_that_lifts_the_limit_frees_what_is_withheld() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, dlq=SLOW) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(START_LETTERS + STREAK_FAILURES // 2))
        await rig.until(lambda: len(rig.copied.records) == START_LETTERS and withholding(rig).count > 0)
        rig.runtime.change(definition(rig.main.address, dlq={"share": 1}), None)
        await rig.idle()
        assert len(rig.copied.values("dlq")) == START_LETTERS + STREAK_FAILURES // 2
