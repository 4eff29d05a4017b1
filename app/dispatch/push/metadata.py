"""A delivery's gRPC metadata: the names that uForwarder's consumers read, and every record header.

`kafka-topic`, `-partition` and `-offset` name the place where the message was first produced (uForwarder's
logical metadata), so a receiver's idempotency key survives retries. Binary values have names that end in
`-bin`, which gRPC encodes. `kafka-value-null` distinguishes a tombstone from an empty value, because both
have an empty body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.grpc_client.header_encoder import Field
from app.grpc_client.metadata import binary_value, wire_field
from switchyard.receiver.trace_context import derived_traceparent, own_traceparent

Metadata = tuple[tuple[str, str | bytes], ...]

HEADER_PREFIX = "kafka-header-"  # before the name of a record header, and `-bin` behind it
VALUE_NULL = (b"kafka-value-null", b"true")  # of a tombstone, whose body is empty too
REGION = "switchyard-region"  # the region that sends, when the workload runs in several
PRIMARY = "switchyard-primary"  # `true` when that region is the primary (active) one, else `false`
PRIMARY_EPOCH = "switchyard-primary-epoch"  # the epoch of that role
KEY = b"kafka-key-bin"  # the record's key; without one absent, or empty with `compat: uforwarder`
TRACING_INFO = b"kafka-tracing-info"  # from where a retried message comes, with `compat: uforwarder`
RECORD_TS = b"kafka-record-ts"  # the same as `kafka-timestamp`, with `compat: uforwarder`
MAX_HEADER_NAME_CHARS = 256
_LEGAL = re.compile(r"[0-9a-z_.-]{1,256}")
_names: dict[str, bytes] = {}
_MAX_CACHED_NAMES = 10_000


def tracing_info(topic: str, partition: int, offset: int) -> Field:
    """uForwarder's metadata of a retried message: the place from which it is delivered now.

    Source: `GrpcRequest` of uForwarder.
    """
    place = f"physical-topic={topic},physical-partition={partition},physical-offset={offset}"
    return TRACING_INFO, place.encode()


class SenderRole(NamedTuple):
    """The sending region's role in a workload of several regions: whether it is the primary (active) one.

    `epoch` belongs to the workload's role, whichever region has it.
    """

    region: str
    primary: bool
    epoch: int

    def metadata(self) -> Metadata:
        """The role as a unary call's metadata."""
        primary = "true" if self.primary else "false"
        return (REGION, self.region), (PRIMARY, primary), (PRIMARY_EPOCH, str(self.epoch))


class InvalidHeaderName(ValueError):
    """The name of a record header cannot be a name of gRPC metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedMetadata:
    """The metadata that many calls have in common, as on the wire. Transports remember it by its identity."""

    fields: tuple[Field, ...]


class CallMetadata(NamedTuple):
    """One call's metadata, as on the wire: what it shares with others, and its own."""

    shared: SharedMetadata
    own: list[Field]


class MetadataTemplate:
    """The metadata of one partition's deliveries; builds the constant part once."""

    __slots__ = ("_fixed", "_partition", "_role", "_shared", "_topic")

    def __init__(self, topic: str, group: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._fixed: Metadata = (
            ("kafka-topic", topic),  # where the message first stood
            ("kafka-consumergroup", group),  # the workload's group
            ("kafka-partition", str(partition)),  # where the message first stood
        )
        self._role: Metadata = ()
        self._shared = SharedMetadata(wire_fields(self._fixed))

    def shared(self, role: Metadata) -> SharedMetadata:
        """The constant part, with the sending region's role: the same object until the role changes."""
        if role is not self._role:
            self._role = role
            self._shared = SharedMetadata(wire_fields((*self._fixed, *role)))
        return self._shared

    def build(
        self,
        offset: int,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        retry_count: int,
        attempt: int,
    ) -> list[Field]:
        """One delivery's own metadata.

        Raises:
            InvalidHeaderName: A header's name is empty, too long, or has characters that gRPC does not take.
        """
        traceparent = own_traceparent(headers) or derived_traceparent(
            self._topic, self._partition, offset, timestamp_ms
        )
        own: list[Field] = [
            (b"kafka-offset", b"%d" % offset),  # where the message first stood
            (b"kafka-retrycount", b"%d" % retry_count),  # times it went through a retry topic
            (b"kafka-attemptcount", b"%d" % attempt),  # deliveries so far, this one included
            (b"kafka-timestamp", b"%d" % timestamp_ms),  # of the record, ms since 1970
            (b"traceparent", traceparent.encode()),
        ]
        for name, value in headers:
            own.append((_names.get(name) or _metadata_name(name), _binary(value)))
        if key is not None:
            own.append((KEY, _binary(key)))
        return own


def wire_fields(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[Field, ...]:
    """Metadata as it is on the wire. Raises ValueError for what gRPC cannot send."""
    return tuple([wire_field(name, value) for name, value in metadata])


def _binary(value: bytes | None) -> bytes:
    return binary_value(value) if value else b""


def _metadata_name(name: str) -> bytes:
    lower = name.lower()
    if not _LEGAL.fullmatch(lower):
        raise InvalidHeaderName(
            f"header {name[:MAX_HEADER_NAME_CHARS]!r} cannot be gRPC metadata; "
            "name headers with letters, digits, '.', '_' and '-', at most 256, or keep this one from the "
            "receiver with spec.headers.deny"
        )
    found = f"{HEADER_PREFIX}{lower}-bin".encode()
    if len(_names) < _MAX_CACHED_NAMES:
        _names[name] = found
    return found
