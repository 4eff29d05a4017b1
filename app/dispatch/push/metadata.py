"""A delivery's gRPC metadata: the names that uForwarder's consumers read, and every record header.

`kafka-topic`, `-partition` and `-offset` name the place where the message was first produced (uForwarder's
logical metadata), so a receiver's idempotency key survives retries. Binary values have names that end in
`-bin`, which gRPC encodes. `kafka-value-null` distinguishes a tombstone from an empty value, because both
have an empty body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from switchyard.receiver.trace_context import derived_traceparent, own_traceparent

Metadata = tuple[tuple[str, str | bytes], ...]

HEADER_PREFIX = "kafka-header-"  # before the name of a record header, and `-bin` behind it
VALUE_NULL = ("kafka-value-null", "true")  # of a tombstone, whose body is empty too
REGION = "switchyard-region"  # the region that sends, when the workload runs in several
PRIMARY = "switchyard-primary"  # `true` when that region is the primary (active) one, else `false`
PRIMARY_EPOCH = "switchyard-primary-epoch"  # the epoch of that role
MAX_HEADER_NAME_CHARS = 256
_LEGAL = re.compile(r"[0-9a-z_.-]{1,256}")
_names: dict[str, str] = {}
_MAX_CACHED_NAMES = 10_000


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


class MetadataTemplate:
    """The metadata of one partition's deliveries; builds the constant part once."""

    __slots__ = ("_fixed", "_partition", "_topic")

    def __init__(self, topic: str, group: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._fixed: Metadata = (
            ("kafka-topic", topic),  # where the message first stood
            ("kafka-consumergroup", group),  # the workload's group
            ("kafka-partition", str(partition)),  # where the message first stood
        )

    def build(
        self,
        offset: int,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        retry_count: int,
        attempt: int,
    ) -> Metadata:
        """One delivery's metadata.

        Raises:
            InvalidHeaderName: A header's name is empty, too long, or has characters that gRPC does not take.
        """
        extra: list[tuple[str, str | bytes]] = [
            (_names.get(name) or _metadata_name(name), value or b"") for name, value in headers
        ]
        traceparent = own_traceparent(headers) or derived_traceparent(
            self._topic, self._partition, offset, timestamp_ms
        )
        if key is not None:
            extra.append(("kafka-key-bin", key))  # the record's key; absent when it has none
        return (
            *self._fixed,
            ("kafka-offset", str(offset)),  # where the message first stood
            ("kafka-retrycount", str(retry_count)),  # times it went through a retry topic
            ("kafka-attemptcount", str(attempt)),  # deliveries so far, this one included
            ("kafka-timestamp", str(timestamp_ms)),  # of the record, ms since 1970
            ("traceparent", traceparent),
            *extra,
        )


def _metadata_name(name: str) -> str:
    lower = name.lower()
    if not _LEGAL.fullmatch(lower):
        raise InvalidHeaderName(
            f"header {name[:MAX_HEADER_NAME_CHARS]!r} cannot be gRPC metadata; "
            "name headers with letters, digits, '.', '_' and '-', at most 256, or keep this one from the "
            "receiver with spec.headers.deny"
        )
    found = f"{HEADER_PREFIX}{lower}-bin"
    if len(_names) < _MAX_CACHED_NAMES:
        _names[name] = found
    return found
