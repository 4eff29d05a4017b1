"""Checks gRPC metadata that interceptors add, because gRPC would refuse the whole call for one bad pair.

Source: gRPC over HTTP/2, "Requests": names of lower-case letters, digits, '_', '-' and '.', text of
printable ASCII, bytes under names that end in `-bin`.
"""

from __future__ import annotations

import re

Metadata = tuple[tuple[str, str | bytes], ...]

MAX_METADATA_BYTES = 4096  # half of the 8 KiB from which gRPC may refuse a call
PAIR_BYTES = 32  # HTTP/2 counts these for each pair, besides its text
RESERVED = ("kafka-", "grpc-")
RESERVED_NAMES = {
    "traceparent", "content-type", "te", "user-agent", "host", "connection", "content-length",
}  # fmt: skip
_NAME = re.compile(r"[0-9a-z_.-]{1,256}")
_TEXT = re.compile(r"[\x20-\x7e]*")


def check_metadata(added: object, before: Metadata = ()) -> str | None:
    """Why gRPC, or a receiver's trust in reserved names, forbids to add these pairs; None: it may be done."""
    if not isinstance(added, tuple):
        return f"added metadata as a {type(added).__name__}, not a tuple of pairs"
    size = sum(len(name) + len(value) + PAIR_BYTES for name, value in before)
    for pair in added:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return "added metadata that is not a tuple of pairs"
        name, value = pair
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return "added a metadata name that gRPC refuses: use lower-case letters, digits, '.', '_' and '-'"
        if name.startswith(RESERVED) or name in RESERVED_NAMES:
            return f"added metadata {name!r}, which is a reserved name"
        if name.endswith("-bin"):
            if not isinstance(value, bytes):
                return f"added metadata {name!r} that is not bytes"
        elif not isinstance(value, str) or not _TEXT.fullmatch(value):
            return f"added metadata {name!r} that is not printable ASCII; name it {name}-bin for bytes"
        size += len(name) + len(value) + PAIR_BYTES
    return (
        f"added metadata up to {size} bytes, more than {MAX_METADATA_BYTES}"
        if size > MAX_METADATA_BYTES
        else None
    )
