"""A receiver's health by gRPC's standard protocol (grpc.health.v1). `health_watch` asks for it repeatedly."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from app.kernel.grpc_status import NOT_FOUND, OK, UNIMPLEMENTED

METHOD = "/grpc.health.v1.Health/Check"
HEALTH_CHECK_TIMEOUT_S = 2.0  # a receiver that does not answer within this is unreachable
MAX_HEALTH_BYTES = 64 * 1024
NO_HEALTH = {UNIMPLEMENTED, NOT_FOUND}  # NOT_FOUND: the receiver does not know the service


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
    HealthCheckResponse.SERVING: ReceiverHealth.SERVING,
    HealthCheckResponse.UNKNOWN: ReceiverHealth.UNKNOWN,
    HealthCheckResponse.SERVICE_UNKNOWN: ReceiverHealth.SERVICE_UNKNOWN,
}


class HealthClient(Protocol):
    """Checks one server's health."""

    async def check(self, service: str = "", timeout_s: float = HEALTH_CHECK_TIMEOUT_S) -> ReceiverHealth:
        """The health of `service` (empty: of the whole server), within `timeout_s`."""

    async def close(self) -> None: ...


def health_request(service: str) -> bytes:
    return HealthCheckRequest(service=service).SerializeToString()


def read_health(code: int, answer: bytes) -> ReceiverHealth:
    """What a check's status and answer say."""
    if code != OK:
        return ReceiverHealth.UNIMPLEMENTED if code in NO_HEALTH else ReceiverHealth.UNREACHABLE
    try:
        status = HealthCheckResponse.FromString(answer).status
    except DecodeError:
        return ReceiverHealth.UNREACHABLE
    return _ANSWERS.get(status, ReceiverHealth.NOT_SERVING)
