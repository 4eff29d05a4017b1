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


def withholding(stand: DispatchRig) -> WithheldDeadLetters:
    return stand.runtime.withholding


async def settled(stand: DispatchRig, letters: int) -> None:
    """Waits for this many dead letters and an open breaker, which lets only probes out."""
    await stand.until(lambda: stand.runtime.link.breaker.failed and len(stand.copied.records) == letters)


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
    async with dispatch_rig(lambda _: None) as stand:
        stand.port = port
        stand.run(dlq=SLOW)
        pumps = [stand.pump(partition) for partition in range(2)]
        for partition, pump in enumerate(pumps):
            stand.feed(pump, numbers(MANY // 2, MANY // 2 * partition))
        await settled(stand, START_LETTERS)
        assert code in stand.runtime.link.breaker.reason
        assert code in withholding(stand).incident_message(0.0)
        assert not withholding(stand).incident_message(1.0), "once is enough for now"
        await asyncio.sleep(0.5)
        assert len(stand.copied.records) == START_LETTERS
        fails[0] = False
        await stand.idle()

        dead = stand.copied.values("dlq")
        assert len(dead) == START_LETTERS
        wanted = Counter(str(number).encode() for number in range(MANY))
        assert taken + Counter(dead) == wanted
        assert withholding(stand).count == stand.budget.held_bytes == 0
        assert not withholding(stand).incident_message(2.0)
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

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(MANY))
        await settled(stand, START_LETTERS)
        fails[0] = False
        await stand.idle()

        assert pump.delivered == MANY - START_LETTERS
        assert len(stand.copied.values("dlq")) == START_LETTERS
        assert max(attempts) <= stand.runtime.policy.in_memory_attempts


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_bad_messages_among_good_ones_go_to_the_dead_letter_queue_without_holding_anything_up(
    contract: str,
) -> None:
    def handle(message: Message) -> None:
        if int(message.value or b"0") % 20 == 0:
            raise ValueError("a poison pill")

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(MANY))
        await stand.idle()
        assert len(stand.copied.values("dlq")) == MANY // 20
        assert stand.runtime.link.breaker.closed


async def test_what_was_withheld_beside_a_flow_goes_once_the_flow_has_earned_it() -> None:
    def handle(message: Message) -> None:
        if int(message.value or b"0") < 50:
            raise ValueError("a poison pill")

    async with dispatch_rig(handle, dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(50))
        await settled(stand, START_LETTERS)
        stand.feed(pump, numbers(1_000, 50))
        await stand.idle()
        assert Counter(stand.copied.values("dlq")) == Counter(str(number).encode() for number in range(50))


async def test_the_last_attempt_of_a_retry_topic_needs_the_same_right() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    tiers = [{"delay": "0s", "attempts": 1}]
    async with dispatch_rig(handle, retry=tiers, dlq=SLOW) as stand:
        pump = stand.pump(tier=0)
        stand.feed(pump, numbers(200))
        await settled(stand, START_LETTERS)
        assert pump.tracker.unfinished == 200 - START_LETTERS


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_what_the_receiver_or_an_operator_stashes_is_free(contract: str) -> None:
    stash = [True]

    def handle(_: Message) -> Any:
        if stash[0]:
            return Stash("never")
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, target={"contract": contract}, dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(100))
        await stand.idle()
        assert len(stand.copied.values("dlq")) == 100

        stash[0] = False
        stand.feed(pump, numbers(100, 100))
        await settled(stand, 100 + START_LETTERS)
        decision = stand.runtime.head_decision(None)
        assert decision is not None
        await stand.until(
            lambda: (
                sum(pump.finish_by_operator(offset, decision) for offset in range(100, 200)) == 0
                and stand.runtime.in_flight == 0
            )
        )
        await stand.idle()
        assert len(stand.copied.values("dlq")) == 200


async def test_an_interceptor_that_rejects_everything_flushes_nothing_until_its_definition_is_mended() -> (
    None
):
    class Wrong:
        def before(self, message: Outbound) -> Any:
            return Reject("no such field")

    class Right:
        def before(self, message: Outbound) -> Any:
            return Send(message.value)

    async with dispatch_rig(lambda _: None, InterceptorChain([("wrong", Wrong())]), dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(MANY))
        await stand.until(
            lambda: len(stand.copied.records) == START_LETTERS and withholding(stand).count > 100
        )
        assert "no such field" in withholding(stand).last
        assert stand.runtime.link.breaker.closed, "the receiver is not to blame"
        stand.runtime.change(
            definition(stand.runtime.link.address, dlq=SLOW), InterceptorChain([("right", Right())])
        )
        await stand.idle()
        assert len(stand.seen) == MANY - START_LETTERS


async def test_without_a_limit_everything_is_dead_lettered_at_once() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, dlq={"share": 1}) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(200))
        await stand.idle()
        assert len(stand.copied.values("dlq")) == 200
        assert stand.runtime.link.breaker.closed


async def test_a_definition_that_lifts_the_limit_frees_what_is_withheld() -> None:
    def handle(_: Message) -> None:
        raise ValueError("a bad deployment")

    async with dispatch_rig(handle, dlq=SLOW) as stand:
        pump = stand.pump()
        stand.feed(pump, numbers(START_LETTERS + STREAK_FAILURES // 2))
        await stand.until(lambda: len(stand.copied.records) == START_LETTERS and withholding(stand).count > 0)
        stand.runtime.change(definition(stand.runtime.link.address, dlq={"share": 1}), None)
        await stand.idle()
        assert len(stand.copied.values("dlq")) == START_LETTERS + STREAK_FAILURES // 2
