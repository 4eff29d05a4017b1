"""The metadata that a definition adds to calls (`target.metadata`), and what record headers give to it.

| value                   | what is sent                                                              |
|-------------------------|---------------------------------------------------------------------------|
| `header:x-zone`         | the value of the record header `x-zone`, by unary calls                   |
| `secret:billing`        | the token of this name (`receivers.tokens`)                               |
| `Bearer secret:billing` | the same behind a text                                                    |
| any other               | itself                                                                    |

Headers are untrusted: producers write them. A value that gRPC cannot send as text is left out, unless the
name ends in `-bin`, which takes any bytes. By default, receivers take 8 KB of metadata in all, and messages
with more become dead letters. So both kinds of metadata have limits of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from app.dispatch.model.retry_headers import Header
from app.grpc_client.header_encoder import Field, header_list_size
from app.grpc_client.metadata import BINARY, binary_value, wire_field
from app.grpc_client.tokens import MAX_TOKEN_BYTES

MAX_NAME_CHARS = 100
MAX_TEXT_CHARS = 1_000
MAX_FIXED_BYTES = MAX_TOKEN_BYTES + 1_024  # of texts and tokens, as HTTP/2 counts them
MAX_MAPPED_BYTES = 1_024  # of a record's headers, as HTTP/2 counts them
SECRET_NAMES = frozenset({"authorization", "cookie", "proxy-authorization"})  # their values are, mostly
OWN = ("kafka-", "switchyard-")  # prefixes of what Switchyard sends
TRACE = "traceparent"
_HEADER, _SECRET = "header:", "secret:"
_SECRET_AT_END = re.compile(r"(.* )?secret:(\S+)")
_TEXT = re.compile(rb"[\x20-\x7e]*")


class Source(NamedTuple):
    """Where a value comes from: a record header, or a text with a token behind it."""

    header: str = ""
    text: str = ""
    secret: str = ""


def read_source(value: str) -> Source:
    """What a definition's value means. Raises ValueError: it has no form of the table; with the remedy."""
    lower = value.lower()
    if lower.startswith(_HEADER):
        name = value[len(_HEADER) :]
        if not value.startswith(_HEADER) or not name or name != name.strip():
            raise ValueError("names no header; write header:x-zone")
        return Source(header=name)
    if _SECRET not in lower:
        return Source(text=value)
    found = _SECRET_AT_END.fullmatch(value)
    if found is None or lower.count(_SECRET) > 1:
        raise ValueError("a secret is the last word; write such as Bearer secret:billing")
    return Source(text=found[1] or "", secret=found[2])


def check_name(name: str) -> None:
    """Raises ValueError: calls cannot have metadata of this name; with the remedy."""
    wire_field(name, "")
    if name.startswith(OWN) or name == TRACE:
        raise ValueError(f"metadata {name!r}: Switchyard sends it itself; take another name")


def check_size(values: Mapping[str, str]) -> Mapping[str, str]:
    """Raises ValueError: texts and tokens are too large together; with the remedy."""
    size = 0
    for name, value in values.items():
        source = read_source(value)
        if not source.header:
            size += header_list_size([wire_field(name, source.text)]) + bool(source.secret) * MAX_TOKEN_BYTES
    if size > MAX_FIXED_BYTES:
        raise ValueError(
            f"{size:,} bytes with 32 for each and {MAX_TOKEN_BYTES:,} for each token, where calls take "
            f"{MAX_FIXED_BYTES:,}; write less"
        )
    return values


def _name(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(
            f"not a name of metadata; write text of 1 to {MAX_NAME_CHARS} letters, such as x-zone"
        )
    check_name(value)
    return value


def _value(value: object) -> object:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"not the value of metadata; write text of 1 to {MAX_TEXT_CHARS:,} characters")
    source = read_source(value)
    if not (source.text.isascii() and source.text.isprintable()):
        raise ValueError("not printable ASCII; write such text, or take it from a record header")
    return value


MetadataName = Annotated[str, BeforeValidator(_name)]
MetadataValue = Annotated[str, BeforeValidator(_value)]


class HeaderMap:
    """Record headers as metadata: `names` has the header of each name. Case of headers does not count."""

    __slots__ = ("_headers", "_names")

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = [(name.encode(), header.lower()) for name, header in names.items()]
        self._headers = frozenset(header for _, header in self._names)

    def fields(self, headers: Sequence[Header]) -> list[Field]:
        """The metadata of one record. Of headers with one name the last counts, as in Kafka's clients. What
        is too large is left out, in the order of the names."""
        last = {lower: value for header, value in headers if (lower := header.lower()) in self._headers}
        if not last:
            return []
        fields: list[Field] = []
        left = MAX_MAPPED_BYTES
        for name, header in self._names:
            value = last.get(header)
            sent = None if value is None or len(value) > left else _sent(name, value)
            if sent is not None and (size := header_list_size([(name, sent)])) <= left:
                fields.append((name, sent))
                left -= size
        return fields


def _sent(name: bytes, value: bytes) -> bytes | None:
    """The value on the wire; None: it cannot be sent."""
    if name.endswith(BINARY.encode()):
        return binary_value(value)
    return value.strip(b" ") if _TEXT.fullmatch(value) else None
