"""The `traceparent` of a message: the record's own, or one that is the same for all attempts.

A record without this header gets a hash of where and when it was first produced. Retry topics and later
owners of its partition know this too, so all attempts have the same trace. The flags are 00: no sampling
decision was made.

    SHA-256 of "topic/partition/offset/timestamp": 16 bytes of trace id, then 8 bytes of parent id

Source: W3C Trace Context, 3.2: version, trace id, parent id, flags; an id of zeros only is invalid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

TRACEPARENT = "traceparent"
TRACE_ID_HEX, IDS_HEX = 32, 48  # digits of the trace id; of both ids
_VALID = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def own_traceparent(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """The last valid traceparent in the record's headers; "": there is none."""
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
    """The traceparent of a record without one. `timestamp_ms` distinguishes topics of one name."""
    ids = sha256(f"{topic}/{partition}/{offset}/{timestamp_ms}".encode(errors="surrogatepass")).hexdigest()
    return f"00-{ids[:TRACE_ID_HEX]}-{ids[TRACE_ID_HEX:IDS_HEX]}-00"
