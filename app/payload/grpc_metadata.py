"""gRPC metadata that interceptors add: what is refused before gRPC refuses the whole call.

Source: gRPC over HTTP/2, "Requests": names of lower-case letters, digits, '_', '-' and '.', text of
printable ASCII, bytes under names that end in `-bin`.
"""

from __future__ import annotations

import re

Metadata = tuple[tuple[str, str | bytes], ...]

MAX_METADATA_BYTES = 4096  # gRPC takes 8 KiB of a whole call before it begins to refuse
PAIR_BYTES = 32  # what HTTP/2 counts for each pair beside its text
RESERVED = ("kafka-", "grpc-")
RESERVED_NAMES = {"traceparent", "content-type", "te", "user-agent"}
_NAME = re.compile(r"[0-9a-z_.-]{1,256}")
_TEXT = re.compile(r"[\x20-\x7e]*")


def check_metadata(added: object, before: Metadata = ()) -> str | None:
    """Why gRPC, or a receiver's trust in `kafka-…`, forbids to add these to the ones before; None when
    nothing does."""
    if not isinstance(added, tuple):
        return f"added metadata as a {type(added).__name__}, not a tuple of pairs"
    size = sum(len(name) + len(value) + PAIR_BYTES for name, value in before)
    for pair in added:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return "added metadata that is not a tuple of pairs"
        name, value = pair
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return (
                "added a metadata name that gRPC does not take: lower-case letters, digits, '.', '_' and '-'"
            )
        if name.startswith(RESERVED) or name in RESERVED_NAMES:
            return f"added metadata {name!r}, which is not its to set"
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
