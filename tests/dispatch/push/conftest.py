"""Receivers of the SDK, and clients of both contracts to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.dispatch.push.unary import UnaryTarget
from switchyard.receiver import Receiver
from tests.dispatch.push.grpc_servers import METHOD, CountingCaller
from tests.dispatch.push.stream_servers import RecordingSender

Serve = Callable[..., Awaitable[RecordingSender]]
CallTo = Callable[..., Awaitable[CountingCaller]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a receiver if it is not running; returns a stream sender to it."""
    started: list[tuple[Receiver, RecordingSender]] = []

    async def start(receiver: Receiver, **options: Any) -> RecordingSender:
        sender = RecordingSender(receiver.port or await receiver.start(), **options)
        started.append((receiver, sender))
        return sender

    yield start
    for receiver, sender in started:
        await sender.target.close()
        await receiver.stop(0)


@pytest.fixture
async def call_to() -> AsyncIterator[CallTo]:
    """Starts a receiver if it is not running; returns a caller of its unary method."""
    started: list[tuple[Receiver, CountingCaller]] = []

    async def start(receiver: Receiver, method: str = METHOD, **options: Any) -> CountingCaller:
        port = receiver.port or await receiver.start()
        caller = CountingCaller(UnaryTarget(f"127.0.0.1:{port}", method, **options))
        started.append((receiver, caller))
        return caller

    yield start
    for receiver, caller in started:
        await caller.target.close()
        await receiver.stop(0)
