"""gRPC's status codes, and those that HTTP/2 implies where a server sends none.

Sources: gRPC's documents "PROTOCOL-HTTP2", "statuscodes" and "http-grpc-status-mapping".
"""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import unquote_to_bytes

from app.grpc_client.frames import ErrorCode


class StatusCode(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_OF_HTTP = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}
_OF_RESET = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}
_STATUSES = {str(int(code)).encode(): code for code in StatusCode}


def code_of(grpc_status: bytes) -> StatusCode:
    """The trailer `grpc-status`. UNKNOWN for all that is none of gRPC's numbers."""
    return _STATUSES.get(grpc_status, StatusCode.UNKNOWN)


def code_of_http(status: int) -> StatusCode:
    """For an answer without `grpc-status`, which a proxy makes."""
    return _OF_HTTP.get(status, StatusCode.UNKNOWN)


def code_of_reset(code: int) -> StatusCode:
    """For a stream that the server reset with an HTTP/2 error code."""
    try:
        return _OF_RESET.get(ErrorCode(code), StatusCode.INTERNAL)
    except ValueError:
        return StatusCode.UNKNOWN


def decode_message(grpc_message: bytes) -> str:
    """The trailer `grpc-message`: percent-coded UTF-8. What is not stays as it came, bad bytes as U+FFFD."""
    if b"%" in grpc_message:
        grpc_message = unquote_to_bytes(grpc_message)
    return grpc_message.decode(errors="replace")
