"""A definition that is changed while messages are held or on their way: the new one decides from then on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.definition import Workload
from app.kernel.limit_shares import ALL, NOTHING, WorkerShare
from switchyard.receiver import Message, Retry
from tests.dispatch.pump.rig import DispatchRig, definition, dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
STAGING = [("env", b"staging")]
FLOW = {"max_inflight": 50}


async def isolated(rig: DispatchRig, contract: str) -> tuple[Workload, list[Message]]:
    """The definition with isolation and a target for staging, and the messages at that target."""
    address, staged, _ = await rig.another_receiver(lambda _: None)
    targets = [{"environment": "staging", "address": address}]
    isolation = {"environment": "env", "targets": targets}
    spec: dict[str, Any] = {"flow": FLOW, "isolation": isolation}
    return definition(rig.main.address, target={"contract": contract}, **spec), staged


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("when", ["in flight", "held"])
async def test_messages_without_an_answer_when_isolation_starts_are_retried_on_their_own_target_only(
    contract: str, when: str
) -> None:
    is_back = False

    async def hang_at_first(_: Message) -> None:
        if not is_back:
            await asyncio.sleep(3_600)

    target = {"contract": contract, "connections": 1}  # all messages are lost at once
    async with dispatch_rig(hang_at_first, target=target, flow=FLOW) as rig:
        pump, queues = rig.pump(), rig.queues
        rig.feed(pump, numbers(1, 99))
        await rig.until(lambda: len(rig.seen) == 1)
        for at in range(0, 20, 2):  # in batches of their own: each is lost by itself
            rig.feed(pump, numbers(2, at), headers=STAGING)
            rig.feed(pump, numbers(2, 100 + at))
        await rig.until(lambda: len(rig.seen) == 41)
        changed, staged = await isolated(rig, contract)
        if when == "in flight":
            rig.runtime.change(changed, None)
        await rig.receiver.stop(0)
        await rig.until(lambda: not queues.receiver.closed and not rig.runtime.receivers.in_flight)
        if when == "held":
            await rig.until(lambda: len(queues.held) > 20 and not rig.runtime.receivers.in_flight)
            rig.runtime.change(changed, None)
        is_back, before = True, len(rig.seen)
        await rig.start_receiver()
        await rig.idle()

        assert sorted(int(message.value or b"") for message in staged) == list(range(20))
        assert sorted(int(message.value or b"") for message in rig.seen[before:]) == list(range(99, 120))
        assert not rig.copied.records


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_messages_that_wait_for_an_attempt_when_isolation_starts_are_routed_by_it(
    contract: str,
) -> None:
    async with dispatch_rig(lambda _: Retry(), target={"contract": contract}) as rig:
        pump, (changed, staged) = rig.pump(), await isolated(rig, contract)
        rig.feed(pump, numbers(1), headers=STAGING)
        await rig.until(lambda: bool(pump._queue.waiting))
        rig.runtime.change(changed, None)
        before = len(rig.seen)
        await rig.idle()

        assert len(staged) == 1
        assert len(rig.seen) == before
        assert not rig.copied.records


async def test_tokens_for_moving_heads_away_outlast_a_change_and_a_worker_has_its_share_of_them() -> None:
    async with dispatch_rig(lambda _: None, headOfLine={"perMinute": 1}) as rig:
        runtime = rig.runtime
        runtime.head_tokens.take(runtime.clock())
        for timeout in ("5s", "6s"):
            runtime.change(
                definition(rig.main.address, target={"timeout": timeout}, headOfLine={"perMinute": 2}),
                None,
            )
        assert runtime.head_tokens.wait_s(runtime.clock()) > 0
        runtime.apply_share(WorkerShare(0.25, 0.25))

        assert runtime.head_tokens.rate_per_s == pytest.approx(0.5 / 60)
        assert runtime.head_tokens.wait_s(runtime.clock()) > 0
        runtime.apply_share(NOTHING)  # no jobs for a while
        runtime.apply_share(ALL)
        assert runtime.head_tokens.rate_per_s == pytest.approx(2 / 60)
        assert runtime.head_tokens.wait_s(runtime.clock()) > 0
