"""A call is answered exactly once, with the receiver's answer, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from app.dispatch.push.call_result import MAX_DETAIL_CHARS
from tests.dispatch.push.grpc_servers import ENOUGH_S, accept, serving

pytestmark = pytest.mark.each_transport

FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: str(status.name))
async def test_every_status_arrives_as_the_receiver_gave_it(status: grpc.StatusCode) -> None:
    async def refuse(_: bytes, context: Any) -> bytes:
        await context.abort(status, "näh: 100 %")
        return b""

    async with serving(refuse) as call:
        result = await call()

    assert (result.code, result.details) == (status.value[0], "näh: 100 %")
    assert (result.action, result.too_large, result.local_error) == (None, False, None)


async def test_the_body_arrives_byte_by_byte_and_no_value_as_an_empty_one() -> None:
    bodies: list[bytes] = []

    async def note(value: bytes, _: Any) -> bytes:
        bodies.append(value)
        return b""

    async with serving(note) as call:
        results = [await call(value) for value in (bytes(range(256)), b"", None)]

    assert bodies == [bytes(range(256)), b"", b""]
    assert [result.code for result in results] == [0, 0, 0]


@pytest.mark.parametrize("action", ["Retry", "Stash", "Skip", "Nonsense"])
@pytest.mark.parametrize("status", [None, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_the_action_trailer_is_read_with_any_status(
    action: str, status: grpc.StatusCode | None
) -> None:
    async def answer(_: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("other", "x"), ("kafka-action", action), ("last-bin", b"\xff")))
        if status is not None:
            await context.abort(status, "")
        return b""

    async with serving(answer) as call:
        result = await call()

    assert result.action == action
    assert result.code == (0 if status is None else status.value[0])


async def test_a_receivers_core_dump_is_cut() -> None:
    async def dump(_: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNKNOWN, "x" * 3 * MAX_DETAIL_CHARS)
        return b""

    async with serving(dump) as call:
        assert (await call()).details == "x" * MAX_DETAIL_CHARS


async def test_every_byte_is_safe_in_binary_metadata_and_repeated_names_keep_their_order() -> None:
    seen: list[tuple[str, Any]] = []

    async def note(_: bytes, context: Any) -> bytes:
        seen.extend((name, value) for name, value in context.invocation_metadata() if name.startswith("k"))
        return b""

    sent: list[tuple[str, str | bytes]] = [("k-bin", bytes([byte])) for byte in range(256)]
    sent += [("k-all-bin", bytes(range(256)) * 4), ("k-empty-bin", b""), ("k-text", "1"), ("k-bin", b"last")]
    async with serving(note) as call:
        assert (await call(b"", sent)).code == 0

    assert sorted(seen, key=lambda pair: pair[0]) == sorted(sent, key=lambda pair: pair[0])


async def test_a_receiver_that_takes_too_long_ends_at_the_deadline() -> None:
    started = asyncio.Event()

    async def sleep(_: bytes, __: Any) -> bytes:
        started.set()
        await asyncio.sleep(ENOUGH_S)
        return b""

    async with serving(sleep) as call:
        began_s = time.monotonic()
        result = await call(timeout_s=2.0)

    assert result.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert started.is_set()
    assert time.monotonic() - began_s >= 1.6


async def test_a_canceled_call_is_answered_once_as_canceled_and_the_receiver_notices() -> None:
    started, noticed = asyncio.Event(), asyncio.Event()

    async def sleep(_: bytes, __: Any) -> bytes:
        started.set()
        try:
            await asyncio.sleep(ENOUGH_S)
        except asyncio.CancelledError:
            noticed.set()
            raise
        return b""

    async with serving(sleep) as call, asyncio.timeout(ENOUGH_S):
        handle, result = call.begin()
        await started.wait()
        handle.cancel()
        handle.cancel()
        assert (await result).code == grpc.StatusCode.CANCELLED.value[0]
        await noticed.wait()
        handle.cancel()
        assert call.answers == 1


async def test_a_call_canceled_before_it_began_is_answered_once_too() -> None:
    async with serving(accept) as call, asyncio.timeout(ENOUGH_S):
        handle, result = call.begin()
        handle.cancel()
        assert (await result).code == grpc.StatusCode.CANCELLED.value[0]
        assert (await call()).code == 0


async def test_canceling_an_ended_call_changes_nothing() -> None:
    async with serving(accept) as call, asyncio.timeout(ENOUGH_S):
        handle, result = call.begin()
        assert (await result).code == 0
        handle.cancel()
        assert (await call()).code == 0
        assert call.answers == 2


async def test_every_one_of_two_thousand_calls_in_flight_is_answered_exactly_once() -> None:
    waiting, go = 0, asyncio.Event()

    async def wait(value: bytes, context: Any) -> bytes:
        nonlocal waiting
        waiting += 1
        if waiting == 2000:
            go.set()
        await go.wait()
        if int(value) % 3 == 0:
            await context.abort(grpc.StatusCode.UNAVAILABLE, value.decode())
        return b""

    async with serving(wait) as call, asyncio.timeout(60):
        results = [call.begin(str(number).encode(), timeout_s=60)[1] for number in range(2000)]
        answers = await asyncio.gather(*results)

    assert [answer.code for answer in answers] == [14 if n % 3 == 0 else 0 for n in range(2000)]
    assert [answer.details for answer in answers[::3]] == [str(n) for n in range(0, 2000, 3)]
    assert call.answers == 2000
