"""What an answer's header blocks say: its head, and its end.

Source: gRPC's "PROTOCOL-HTTP2": Response-Headers, Trailers and Trailers-Only.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.grpc_client.header_decoder import FieldList
from app.grpc_client.status import StatusCode, code_of, code_of_http, decode_message

CONTENT_TYPE = b"application/grpc"
MAX_QUOTED = 100
HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class Head:
    """The first header block. `refusal`: why this is no answer of gRPC's; then `code` is what it implies.

    `http_status` is 0 where there is none.
    """

    fields: FieldList
    http_status: int = 0
    encoding: bytes = b"identity"
    code: StatusCode = StatusCode.OK
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The last header block."""

    fields: FieldList
    code: StatusCode
    message: str


def is_interim(fields: FieldList) -> bool:
    """An informational answer (1xx), which another head follows."""
    return any(name == b":status" and len(value) == 3 and value[:1] == b"1" for name, value in fields)


def read_head(fields: FieldList) -> Head:
    """Whether a gRPC server answers, or something in front of it."""
    found = dict(fields)
    status = found.get(b":status", b"")
    content_type = found.get(b"content-type", b"")
    if status == b"200" and content_type.lower().startswith(CONTENT_TYPE):
        return Head(fields, HTTP_OK, found.get(b"grpc-encoding", b"identity"))
    number = int(status) if len(status) == 3 and status.isdigit() else 0
    if b"grpc-status" in found:  # a proxy that speaks gRPC answers 4xx or 5xx with a status of gRPC's
        return Head(fields, number)
    if not number:
        return Head(fields, code=StatusCode.INTERNAL, refusal="the answer has no HTTP status")
    if number != HTTP_OK:
        refusal = f"HTTP status {number} without a gRPC status"
        return Head(fields, number, code=code_of_http(number), refusal=refusal)
    quoted = content_type[:MAX_QUOTED].decode(errors="replace")
    return Head(fields, number, code=StatusCode.UNKNOWN, refusal=f"the answer's content-type is {quoted!r}")


def read_end(fields: FieldList) -> End:
    found = dict(fields)
    status = found.get(b"grpc-status")
    if status is None:
        return End(fields, StatusCode.UNKNOWN, "the answer ended without a gRPC status")
    return End(fields, code_of(status), decode_message(found.get(b"grpc-message", b"")))
