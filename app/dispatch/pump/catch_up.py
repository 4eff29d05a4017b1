"""Catching up beside the latest: new messages flow at once, the backlog beside them, at its own rate.

              base        end                       newest
      ─────────┼──●○●○●────┼─────────────────────────┼──▶ the log
     before    [         one pump, hours behind            ▶
     after     [ backlog   ][ main pump, at the latest      ▶

When the lag passes `catchUp.lag`, the pump is split where the log ends now: it keeps what lies below, and a
new pump takes what comes. Both are one job, under one epoch, with one snapshot.

Rules
1. The group's committed offset stays truthful: it is the backlog's until that is done. What the main pump
   finishes stands in the snapshot, above a hole, as any other message finished out of order.
2. A new owner reads on from the backlog's base, passes over what is finished, and splits again if it must:
   nothing is lost or delivered twice by the split or by its end.
3. The backlog gets no more than `catchUp.rate` messages a second, of all its jobs here together.

Source: the future work of "Introducing uForwarder" (Uber): on a large lag jump to the latest, and let a side
consumer work off the backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from app.kernel.ranges import Snapshot
from app.kernel.token_bucket import TokenBucket

if TYPE_CHECKING:
    from app.controllog.codec import JobStatus
    from app.dispatch.pump.partition import DispatchPump


class CatchUpBacklog:
    """What lies below `end`, and the pump that works on it."""

    __slots__ = ("end", "pump")

    def __init__(self, pump: DispatchPump, end: int) -> None:
        self.pump = pump
        self.end = end

    @property
    def is_done(self) -> bool:
        """Everything in it is finished."""
        return self.pump.tracker.base >= self.end

    def joined(self, main: Snapshot) -> Snapshot:
        """What either pump has finished, as one snapshot (rule 1)."""
        own = self.pump.tracker.snapshot()
        between = ((self.end, main.base),) if main.base > self.end else ()
        return Snapshot(own.base, (*own.finished, *between, *main.finished))

    def added_to(self, main: JobStatus) -> JobStatus:
        """What the heartbeat says of both."""
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
        )


class CatchUpAllowance:
    """Messages that a backlog may send; tells `on_sendable` when there are more."""

    __slots__ = ("_bucket", "_clock", "_on_sendable", "_timer")

    def __init__(
        self, bucket: TokenBucket, clock: Callable[[], float], on_sendable: Callable[[], None]
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._on_sendable = on_sendable
        self._timer: asyncio.TimerHandle | None = None

    def most(self, wanted: int) -> int:
        """How many may go now, at most `wanted`."""
        now_s = self._clock()
        granted = min(wanted, int(self._bucket.available(now_s)))
        if granted <= 0 and self._timer is None:
            wait_s = max(0.001, self._bucket.wait_s(now_s))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._more)
        return max(0, granted)

    def spend(self, count: int) -> None:
        """So many go."""
        if count:
            self._bucket.take(self._clock(), count)

    def _more(self) -> None:
        self._timer = None
        self._on_sendable()
