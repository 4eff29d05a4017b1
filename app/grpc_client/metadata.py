"""Metadata of calls as people write it, and as fields on the wire.

Source: gRPC's "PROTOCOL-HTTP2": Custom-Metadata. A name that ends in "-bin" has bytes for a value.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable

from app.grpc_client.header_encoder import Field

BINARY = "-bin"
_NAME = re.compile(r"[0-9a-z_.-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")
_RESERVED = frozenset(
    {
        "host", "te", "content-type", "content-length", "user-agent", "connection", "keep-alive",
        "proxy-connection", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_RESERVED_PREFIX = "grpc-"


def wire_field(name: str, value: str | bytes) -> Field:
    """The field of one metadata entry. Raises ValueError for what gRPC cannot send."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"metadata {name!r}: a name has lower-case letters, digits and - _ . only; write it so"
        )
    if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
        raise ValueError(f"metadata {name!r}: HTTP/2 or gRPC has a use of its own for it; take another name")
    if name.endswith(BINARY):
        return name.encode(), binary_value(value.encode() if isinstance(value, str) else value)
    if isinstance(value, bytes):
        raise ValueError(f"metadata {name!r} has bytes for a value: its name must end in {BINARY}")
    if not _TEXT.fullmatch(value):
        raise ValueError(
            f"metadata {name!r}: a value has printable ASCII letters only; "
            f"name it {name}{BINARY} to send any bytes"
        )
    return name.encode(), value.strip(" ").encode()  # HTTP/2 forbids blanks at the ends (RFC 9113, 8.2.1)


def binary_value(raw: bytes) -> bytes:
    """The value of a field whose name ends in "-bin", as on the wire."""
    return binascii.b2a_base64(raw, newline=False).rstrip(b"=")


def read_metadata(fields: Iterable[Field]) -> list[tuple[str, str | bytes]]:
    """The entries of a received header block, without HTTP/2's own. Broken base64 is left out."""
    found: list[tuple[str, str | bytes]] = []
    for raw_name, value in fields:
        name = raw_name.decode("ascii", "replace")
        if name.startswith(":"):
            continue
        if not name.endswith(BINARY):
            found.append((name, value.decode("ascii", "replace")))
            continue
        for part in value.split(b","):
            try:
                found.append((name, binascii.a2b_base64(part + b"=" * (-len(part) % 4))))
            except binascii.Error:
                continue
    return found
