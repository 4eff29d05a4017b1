"""The `traceparent` of a message: its own, or one that stays the same over all attempts.

Without a header of the record's own it is a hash of where and when the message was first produced, which
retry topics and later owners of its partition know as well. So all attempts are of one trace, whoever makes
them. Flags are 00: nobody has decided to sample it.

    SHA-256 of "topic/partition/offset/timestamp": 16 bytes of trace id, then 8 bytes of parent id

Source: W3C Trace Context, 3.2: version, trace id, parent id, flags; ids of zeros alone are invalid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

TRACEPARENT = "traceparent"
TRACE_ID_HEX, IDS_HEX = 32, 48  # digits of the trace id; of it and the parent id
_VALID = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def own_traceparent(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """What the record's headers tell, the last valid one; "" when none is."""
    found = b""
    for name, value in headers:
        if (
            len(name) == len(TRACEPARENT)
            and name.lower() == TRACEPARENT
            and value
            and _VALID.fullmatch(value)
        ):
            found = value
    return found.decode()


def derived_traceparent(topic: str, partition: int, offset: int, timestamp_ms: int) -> str:
    """That of a message whose record has none; `timestamp_ms` tells a topic from an older one of its name."""
    ids = sha256(f"{topic}/{partition}/{offset}/{timestamp_ms}".encode(errors="surrogatepass")).hexdigest()
    return f"00-{ids[:TRACE_ID_HEX]}-{ids[TRACE_ID_HEX:IDS_HEX]}-00"
