"""Receivers of the SDK, and clients of both contracts to them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from switchyard.receiver import Receiver
from tests.dispatch.push.grpc_servers import METHOD, TRANSPORTS, CountingCaller, chosen, unary_target
from tests.dispatch.push.stream_servers import RecordingSender

Serve = Callable[..., Awaitable[RecordingSender]]
CallTo = Callable[..., Awaitable[CountingCaller]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of calls and streams run by each transport."""
    is_of_both = metafunc.definition.get_closest_marker("each_transport") is not None
    if is_of_both and inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """The transport of calls and streams."""
    name = getattr(request, "param", "http2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chosen, "transport", name)
        yield name


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

    async def start(receiver: Receiver, method: str = METHOD) -> CountingCaller:
        port = receiver.port or await receiver.start()
        caller = CountingCaller(unary_target(f"127.0.0.1:{port}", method))
        started.append((receiver, caller))
        return caller

    yield start
    for receiver, caller in started:
        await caller.target.close()
        await receiver.stop(0)
