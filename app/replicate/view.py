"""The fields of a route's partitions, and their sums, that the console adds to those of any job. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.controllog.codec import CopyingStatus, JobStatus
from app.kernel.json_types import JsonObject

NOTHING = CopyingStatus()  # for a partition that no heartbeat mentions
COUNTS = ("encoded", "left_out", "lost", "compared", "differing", "uncompared", "begun_anew",
          "destination_losses")  # fmt: skip


def copying_fields(status: JobStatus) -> JsonObject:
    copying, barrier = status.copying or NOTHING, None
    if copying.barrier is not None:
        barrier = dict(zip(("source_end", "target_end", "at_ms"), copying.barrier, strict=True))
    return {
        "halted": copying.halted,
        "stuck": copying.stuck,
        "rate": _rate(status),
        "verbatim": _verbatim(status),
        **{name: getattr(copying, name) for name in COUNTS},
        "lost_ms": copying.lost_ms or None,
        "limited": copying.limited,
        "barrier": barrier,
        "throttled": [*map(str, status.throttles)],
    }


def copying_sums(jobs: Sequence[JobStatus]) -> JsonObject:
    """Sums over partitions; `halted`, `stuck`, `limited` count these. An unknown rate makes the sum None.
    `throttled` has each delay once."""
    copying = [job.copying or NOTHING for job in jobs]
    rates = [_rate(job) for job in jobs if job.copying is not None]
    known = [rate for rate in rates if rate is not None]
    return {
        "halted": sum(bool(part.halted) for part in copying),
        "stuck": sum(part.stuck is not None for part in copying),
        "limited": sum(part.limited for part in copying),
        "rate": sum(known) if known and len(known) == len(rates) else None,
        "verbatim": sum(map(_verbatim, jobs)),
        **{name: sum(getattr(part, name) for part in copying) for name in COUNTS},
        "throttled": sorted({str(one) for job in jobs for one in job.throttles}),
        "lost_ms": max((part.lost_ms for part in copying), default=0) or None,
    }


def _rate(status: JobStatus) -> float | None:
    rate = -1.0 if status.copying is None else status.copying.rate
    return None if rate < 0 else rate


def _verbatim(status: JobStatus) -> int:
    return max(0, status.delivered - (status.copying or NOTHING).encoded)
