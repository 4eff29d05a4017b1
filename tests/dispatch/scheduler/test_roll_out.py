"""A roll-out during which an ingress knows no such method: the stream is tried again afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from tests.dispatch.pump.rig import dispatch_rig, numbers
from tests.dispatch.push.grpc_servers import ReceiverAddress, start_server

RETRY_S = 0.05  # instead of seconds


class Ingress:
    """Answers unary calls, and knows no stream."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self._place = ReceiverAddress(start_server)

    async def begin(self) -> int:
        """Its port."""
        await self._place.begin(self._handle)
        return self._place.port

    async def end(self) -> None:
        await self._place.end()

    async def _handle(self, value: bytes, _: Any) -> bytes:
        self.seen[value] += 1
        return b""


async def test_with_contract_stream_messages_wait_for_the_stream_and_none_goes_by_a_unary_call() -> None:
    ingress = Ingress()
    async with dispatch_rig(lambda _: None) as rig:
        await rig.receiver.stop(0)
        rig.port = await ingress.begin()
        rig.run(target={"contract": "stream"})
        pump, receiver = rig.pump(), rig.main
        rig.feed(pump, numbers(500))
        await rig.until(lambda: not receiver.closed)  # it was refused many times
        assert receiver.status(time.monotonic(), 0).contract == "stream"
        await ingress.end()
        await rig.start_receiver()
        await rig.idle()

        assert not ingress.seen
        assert not rig.copied.records
        assert rig.values() == Counter(str(number).encode() for number in range(500))
        assert {message.attempt for message in rig.seen} == {1}


@pytest.mark.parametrize("refusals", [1, 4])
async def test_with_contract_auto_unary_calls_continue_until_the_stream_is_available(
    refusals: int,
) -> None:
    ingress = Ingress()
    async with dispatch_rig(lambda _: None) as rig:
        await rig.receiver.stop(0)
        rig.port = await ingress.begin()
        rig.run(target={"contract": "auto"})
        pump, receiver = rig.pump(), rig.main
        endpoint, stream = rig.endpoint, rig.endpoint.stream
        assert stream is not None
        stream.retry_s = RETRY_S
        rig.feed(pump, numbers(200))
        await rig.idle()
        await rig.until(lambda: stream.retry_s >= RETRY_S * 2**refusals)  # it was refused again and again
        rig.feed(pump, numbers(200, 200))
        await rig.idle()
        assert (endpoint.stream, receiver.closed, endpoint.breaker.recent(time.monotonic())[1]) == (
            None,
            True,
            0,
        )
        assert ingress.seen == Counter(str(number).encode() for number in range(400))
        await ingress.end()
        await rig.start_receiver()
        await rig.until(lambda: endpoint.stream is stream)
        rig.feed(pump, numbers(200, 400))
        await rig.idle()

        assert rig.values() == Counter(str(number).encode() for number in range(400, 600))
        assert receiver.status(time.monotonic(), 0).contract == "stream"
        assert not rig.copied.records
        await asyncio.sleep(4 * RETRY_S)
        assert receiver.closed
