"""Catch-up: a partition's backlog is delivered at a limited rate, beside new messages.

              base        end                       newest
      ─────────┼──●○●○●────┼─────────────────────────┼──▶ the log
     before    [         one pump, hours behind            ▶
     after     [ backlog   ][ main pump, at the latest      ▶

When the lag exceeds `catchUp.lag`, the pump is split at the end of the log. The old pump becomes the backlog,
and a new main pump takes what is appended from then on. Both are one job, with one epoch and one snapshot.

Rules (tests/dispatch/pump/test_catch_up.py)
1. The group's committed offset stays the backlog's base until the backlog is done. The snapshot lists what
   the main pump finished above that, as it lists any message that was finished out of order.
2. A new owner continues at the backlog's base, passes over what the snapshot lists, and splits again if the
   lag still asks for it. So neither the split nor its end loses or repeats a message.
3. All backlogs of a workload on this worker share `catchUp.rate` messages a second.

Source: the future work of "Introducing uForwarder" (Uber), where a side consumer works off the backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from app.kernel.ranges import Snapshot
from app.kernel.token_bucket import TokenBucket

if TYPE_CHECKING:
    from app.controllog.codec import JobStatus
    from app.kernel.tracker import Tracker


class BacklogPump(Protocol):
    tracker: Tracker

    def status(self) -> JobStatus: ...


P = TypeVar("P", bound=BacklogPump)


class CatchUpBacklog(Generic[P]):
    """The offsets below `end`, and the pump that delivers them."""

    __slots__ = ("end", "pump")

    def __init__(self, pump: P, end: int) -> None:
        self.pump = pump
        self.end = end

    @property
    def is_done(self) -> bool:
        return self.pump.tracker.base >= self.end

    def combined_snapshot(self, main: Snapshot) -> Snapshot:
        """One snapshot of everything that both pumps have finished (rule 1)."""
        own = self.pump.tracker.snapshot()
        between = ((self.end, main.base),) if main.base > self.end else ()
        return Snapshot(own.base, (*own.finished, *between, *main.finished))

    def combined_status(self, main: JobStatus) -> JobStatus:
        own = self.pump.status()
        return msgspec.structs.replace(
            main,
            state="catching-up" if main.state == "flowing" else main.state,
            committed=own.committed if not self.is_done else main.committed,
            in_flight=main.in_flight + own.in_flight,
            unfinished=main.unfinished + own.unfinished,
            ready=main.ready + own.ready,
            postponed=main.postponed + own.postponed,
            backoff=main.backoff + own.backoff,
            outgoing=main.outgoing + own.outgoing,
            buffered_bytes=main.buffered_bytes + own.buffered_bytes,
            oldest_ms=own.oldest_ms if own.oldest_ms >= 0 else main.oldest_ms,
            delivered=main.delivered + own.delivered,
            retried=main.retried + own.retried,
            dead_lettered=main.dead_lettered + own.dead_lettered,
            passed_over=main.passed_over + own.passed_over,
            trouble=main.trouble or own.trouble,
            trouble_from=main.trouble_from if main.trouble else own.trouble_from,
        )


class CatchUpAllowance:
    """The messages that a backlog may send now; calls `on_sendable` when it may send more."""

    __slots__ = ("_bucket", "_clock", "_on_sendable", "_timer")

    def __init__(
        self, bucket: TokenBucket, clock: Callable[[], float], on_sendable: Callable[[], None]
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._on_sendable = on_sendable
        self._timer: asyncio.TimerHandle | None = None

    def available(self, wanted: int) -> int:
        """How many messages may go now, at most `wanted`."""
        now_s = self._clock()
        granted = min(wanted, int(self._bucket.available(now_s)))
        if granted <= 0 and self._timer is None:
            wait_s = max(0.001, self._bucket.wait_s(now_s))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_refill)
        return max(0, granted)

    def spend(self, count: int) -> None:
        if count:
            self._bucket.take(self._clock(), count)

    def _on_refill(self) -> None:
        self._timer = None
        self._on_sendable()
