"""A check of a receiver's health by gRPC's standard protocol (grpc.health.v1). `health_watch` repeats it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

METHOD = "/grpc.health.v1.Health/Check"
# NOT_FOUND: the receiver does not know the service.
NO_HEALTH = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND}
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
HEALTH_CHECK_TIMEOUT_S = 2.0  # a receiver that does not answer within this is unreachable


class ReceiverHealth(StrEnum):
    """The receiver's answer to a health check, or why there is none."""

    SERVING = "serving"
    NOT_SERVING = "not-serving"
    UNKNOWN = "unknown"  # it answers UNKNOWN: nobody has set the status
    SERVICE_UNKNOWN = "service-unknown"  # it answers SERVICE_UNKNOWN, instead of the error NOT_FOUND
    UNIMPLEMENTED = "unimplemented"  # it answers, but does not report its or the service's health
    UNREACHABLE = "unreachable"  # no connection, or no answer in time

    @property
    def holds(self) -> bool:
        """Whether the receiver gets no messages."""
        return self in _HOLDING


_HOLDING = {ReceiverHealth.NOT_SERVING, ReceiverHealth.UNKNOWN, ReceiverHealth.SERVICE_UNKNOWN}
_ANSWERS = {
    health_pb2.HealthCheckResponse.SERVING: ReceiverHealth.SERVING,
    health_pb2.HealthCheckResponse.UNKNOWN: ReceiverHealth.UNKNOWN,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN: ReceiverHealth.SERVICE_UNKNOWN,
}


class HealthClient:
    """Checks the server at `address`, over a channel of its own."""

    def __init__(self, address: str) -> None:
        self._channel = aio.insecure_channel(address, options=OPTIONS)
        self._call: Any = self._channel.unary_unary(
            METHOD,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    async def check(self, service: str = "", timeout_s: float = HEALTH_CHECK_TIMEOUT_S) -> ReceiverHealth:
        """The health of `service` (empty: of the whole server), within `timeout_s`."""
        try:
            answer = await self._call(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except aio.AioRpcError as error:
            return ReceiverHealth.UNIMPLEMENTED if error.code() in NO_HEALTH else ReceiverHealth.UNREACHABLE
        return _ANSWERS.get(answer.status, ReceiverHealth.NOT_SERVING)

    async def close(self) -> None:
        await self._channel.close(None)


async def check(
    address: str, service: str = "", *, timeout_s: float = HEALTH_CHECK_TIMEOUT_S
) -> ReceiverHealth:
    """Checks the health of `service` at `address` once."""
    client = HealthClient(address)
    try:
        return await client.check(service, timeout_s)
    finally:
        await client.close()
