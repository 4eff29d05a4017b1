"""A receiver that ends its connections by their age costs no message an attempt, and is not dead."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.model.crash_suspicion import Loss
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import Endpoint
from app.dispatch.push.receiver import Receiver
from app.kernel.grpc_status import UNAVAILABLE
from switchyard.receiver import Message
from tests.dispatch.pump.rig import dispatch_rig, numbers
from tests.sdk.receiver.go_example import Example
from tests.sdk.receiver.test_go_example import body, example  # noqa: F401 - a fixture

CONTRACTS, TRANSPORTS = ["unary", "stream"], ["http2", "grpc"]
AGE_MS, GRACE_MS = 200, 20
COUNT = 400


def _count_losses(monkeypatch: pytest.MonkeyPatch) -> Counter[Loss | None]:
    """Calls that were lost, by how."""
    lost: Counter[Loss | None] = Counter()
    at_first = Receiver.answered

    def answered(
        receiver: Receiver,
        endpoint: Endpoint,
        pump: object,
        result: CallResult,
        count: int,
        *times: Any,
        **more: Any,
    ) -> None:
        if result.code == UNAVAILABLE and result.local_error is None:
            lost[result.loss] += count
            assert result.is_planned_end == (result.loss is Loss.PLANNED)
        at_first(receiver, endpoint, pump, result, count, *times, **more)

    monkeypatch.setattr(Receiver, "answered", answered)
    return lost


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_connection_that_ends_by_its_age_costs_no_attempt_and_opens_no_breaker(
    contract: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = _count_losses(monkeypatch)
    age = (("grpc.max_connection_age_ms", AGE_MS), ("grpc.max_connection_age_grace_ms", GRACE_MS))

    async def handle(_: Message) -> None:
        await asyncio.sleep(0.1)

    opened: list[str] = []
    target = {"contract": contract, "transport": transport}
    async with dispatch_rig(handle, limits={"options": age}, target=target, flow={"max_inflight": 20}) as rig:
        breaker = rig.endpoint.breaker
        monkeypatch.setattr(type(breaker), "open", lambda _, __, reason: opened.append(reason))
        pump = rig.pump()
        rig.feed(pump, numbers(COUNT))
        await rig.idle()

        planned = lost[Loss.PLANNED]
        assert planned > lost.total() / 2, f"connections did not end under way, or otherwise: {lost}"
        if planned == lost.total():
            assert opened == []
            assert rig.queues.suspects_sent == 0
        else:  # on a machine that stalls, the reset of a connection overtakes its GOAWAY: it cannot be known
            assert set(lost) == {Loss.PLANNED, Loss.DIED}, lost
        assert pump.delivered == COUNT
        assert rig.copied.records == []
        assert set(rig.values()) == {value for _, value in numbers(COUNT)}
        assert {message.attempt for message in rig.seen} == {1}
        assert rig.values().total() <= COUNT + lost.total()


@pytest.mark.deep(minutes=1.1)
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_go_receiver_with_a_maximum_connection_age_loses_no_message_and_no_attempt(
    contract: str,
    example: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = _count_losses(monkeypatch)
    made = Example(example / "bin" / "receiver", tmp_path / "journal.jsonl")
    await made.start("-max-connection-age", f"{AGE_MS}ms", "-max-connection-age-grace", f"{GRACE_MS}ms")
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = made.port
        rig.run(target={"contract": contract}, flow={"max_inflight": 20})
        pump = rig.pump()
        rig.feed(pump, [(None, body(number, "slow", 100)) for number in range(COUNT)])
        await rig.until(lambda: pump.tracker.base == COUNT)

        assert lost, "no connection ended under way"
        assert rig.queues.suspects_sent == 0
        assert rig.copied.records == []
        assert rig.endpoint.breaker.closed
    await made.stop()
    lines = made.lines()
    assert {line["id"] for line in lines if line["outcome"] == "ok"} == {str(n) for n in range(COUNT)}
    assert {line["attempt"] for line in lines} == {1}
