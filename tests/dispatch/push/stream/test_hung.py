"""A receiver that takes no bytes of a stream, while its system and its gRPC library are well."""

from __future__ import annotations

import pytest

from app.kernel.grpc_status import OK
from tests.dispatch.push.stream_servers import (
    ReceiverStream,
    hold,
    rows,
    streaming,
    take_everything,
)


async def test_a_receiver_that_takes_nothing_and_answers_pings_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process whose application hangs: gRPC's threads go on, and the windows of HTTP/2 stay closed."""
    monkeypatch.setattr("app.dispatch.push.http2_transport.HUNG_S", 2.0)
    streams = 0

    async def hang_once(stream: ReceiverStream) -> None:
        nonlocal streams
        streams += 1
        if streams > 1:
            await take_everything(stream)
        await stream.accept(1_000)
        await hold(stream)

    async with streaming(hang_once, timeout_s=1.0) as sender:
        await sender.connected()
        for _ in range(30):
            sender.send(rows(10, b"v" * 100_000))
        await sender.until(lambda: sender.lost)
        assert "took nothing of a request" in sender.lost[0].details
        assert sender.away == 1
        await sender.all_reported()
        await sender.connected()
        sender.send(rows(10))
        await sender.all_reported()
        assert sender.codes(30) == [OK] * 10
        assert streams == 2
