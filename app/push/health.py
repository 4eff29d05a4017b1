"""Asks a receiver for its health, by gRPC's standard protocol (grpc.health.v1)."""

from __future__ import annotations

from enum import StrEnum

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

METHOD = "/grpc.health.v1.Health/Check"
TIMEOUT_S = 2.0  # a receiver that cannot say this soon that it is well, is not


class Health(StrEnum):
    """What a receiver says of itself, or what can be said of it."""

    SERVING = "serving"
    NOT_SERVING = "not-serving"
    UNIMPLEMENTED = "unimplemented"  # it is there, and says nothing about its health or the service's
    UNREACHABLE = "unreachable"  # nobody there, or no answer in time


async def check(
    address: str,
    service: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
    credentials: grpc.ChannelCredentials | None = None,
) -> Health:
    """The health of `service` (empty: of the whole server) at `address`; ends within `timeout_s`."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    channel = (
        aio.insecure_channel(address, options=options)
        if credentials is None
        else aio.secure_channel(address, credentials, options=options)
    )
    async with channel:
        call = channel.unary_unary(
            METHOD,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await call(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except aio.AioRpcError as error:
            silent = {
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.NOT_FOUND,
            }  # NOT_FOUND: not this service's
            return Health.UNIMPLEMENTED if error.code() in silent else Health.UNREACHABLE
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return Health.SERVING if serving else Health.NOT_SERVING
