"""Receivers of the SDK's, started, and both contracts' clients to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.dispatch.push.unary import UnaryTarget
from app.sdk.receiver import Receiver
from tests.dispatch.push.grpc_servers import METHOD, Caller
from tests.dispatch.push.stream_servers import Sender

Serve = Callable[..., Awaitable[Sender]]
CallTo = Callable[..., Awaitable[Caller]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a receiver, unless it is; returns a stream's sender to it."""
    started: list[tuple[Receiver, Sender]] = []

    async def start(receiver: Receiver, **options: Any) -> Sender:
        sender = Sender(receiver.port or await receiver.start(), **options)
        started.append((receiver, sender))
        return sender

    yield start
    for receiver, sender in started:
        await sender.target.close()
        await receiver.stop(0)


@pytest.fixture
async def call_to() -> AsyncIterator[CallTo]:
    """Starts a receiver, unless it is; returns a caller of its unary method."""
    started: list[tuple[Receiver, Caller]] = []

    async def start(receiver: Receiver, method: str = METHOD, **options: Any) -> Caller:
        port = receiver.port or await receiver.start()
        caller = Caller(UnaryTarget(f"127.0.0.1:{port}", method, **options))
        started.append((receiver, caller))
        return caller

    yield start
    for receiver, caller in started:
        await caller.target.close()
        await receiver.stop(0)
