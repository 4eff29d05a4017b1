"""Bare calls by grpc.aio, without Kafka: the limit of gRPC in Python. This process makes them, by uvloop."""

from __future__ import annotations

import asyncio
import itertools
import time

import grpc
import uvloop

from app.dispatch.push.metadata import MetadataTemplate
from app.grpc_client.metadata import read_metadata
from tests.bench.unary.cases import MEASURED_S, METHOD, Case, Measured
from tests.bench.unary.topic import HEADERS, KEYS, value_of


def measure(case: Case, address: str, authority: bytes | None = None) -> Measured:
    """One run. `authority`: in PEM, for TLS. Raises grpc.aio.AioRpcError: a call failed."""
    return uvloop.run(_measure(case, address, authority))


def _channel(address: str, authority: bytes | None) -> grpc.aio.Channel:
    if authority is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority))


async def _measure(case: Case, address: str, authority: bytes | None) -> Measured:
    template, value = MetadataTemplate("peer", "bench", 0), value_of(case.value_bytes)
    shared = read_metadata(template.shared(()).fields)
    answered = 0
    async with _channel(address, authority) as channel:
        call = channel.unary_unary(METHOD, None, None)

        async def caller(first: int) -> None:
            nonlocal answered
            for offset in itertools.count(first, case.in_flight):
                own = template.build(offset, b"%05d" % (offset % KEYS), HEADERS, 0, 0, 1)
                await call(value, metadata=(*shared, *read_metadata(own)))
                answered += 1

        callers = [asyncio.create_task(caller(first)) for first in range(case.in_flight)]
        try:
            await _unless_ended(callers, case.warm_up_s)
            messages, started_s, cpu_s = answered, time.monotonic(), time.process_time()
            await _unless_ended(callers, MEASURED_S)
            messages, seconds = answered - messages, time.monotonic() - started_s
            cpu_us = (time.process_time() - cpu_s) * 1e6 / messages
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    return Measured(messages / seconds, cpu_us, seconds)


async def _unless_ended(callers: list[asyncio.Task[None]], for_s: float) -> None:
    """Waits so long. Raises a caller's error at once."""
    done, _ = await asyncio.wait(callers, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
