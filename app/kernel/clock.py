"""The wall clock, as Kafka's timestamps and people have it. Leases and deadlines go by `time.monotonic`."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def iso(at_ms: int) -> str:
    """A time for people and for `fromisoformat`: UTC, to the millisecond; beyond all clocks, the number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
