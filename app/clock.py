"""The wall clock, as Kafka's timestamps and people have it. Leases and deadlines go by `time.monotonic`."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
