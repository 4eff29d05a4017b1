"""The circuit breaker of one receiver: stops calls that would fail, and notices quickly when to go on.

    CLOSED ──too many failures──▶ OPEN ──a probe is due──▶ HALF_OPEN ──it is answered──▶ CLOSED
                                   ▲                           │
                                   └───────it fails────────────┘

What counts as what (gRPC status):

| status                                             | counts as                                         |
|----------------------------------------------------|---------------------------------------------------|
| UNAVAILABLE                                        | DOWN: nobody is there                             |
| RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED              | OVERLOAD: somebody is, but cannot keep up         |
| UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED  | REFUSED: wrong method or credentials, or so it is |
| CANCELLED                                          | nothing: it may have been us                      |
| every other, while dead letters may be written     | success: a working receiver said it               |
| every other, while none may (`app.dispatch.model.dead_letter_budget`) | FAILED: it fails what it is given
          |

Opens on `DOWN_FAILURES` DOWN in a row, on `STREAK_FAILURES` of any kind in a row, or when more than
`OVERLOAD_SHARE` of at least `OVERLOAD_MIN_CALLS` calls of the last `WINDOW_S` or so failed by OVERLOAD.
REFUSED counts because a receiver that refuses everything (a deployment without the handler, an expired
token) would otherwise flush a whole topic into the DLQ; it needs a long row, because one message alone
may be refused for good reason, and must reach the DLQ. FAILED counts for the same reason, message by message.
One that opened by FAILED closes only when a message is taken, whatever dead letters may be written meanwhile.

Rules
1. Time is passed in: monotonic seconds that never go back.
2. While open, one probe an interval is allowed, whether or not the one before was answered: a receiver
   that swallows calls does not hold up its own recovery. The interval grows to `PROBE_MAX_S` at most, so
   that recovery is noticed within two seconds.
3. Any probe's success closes. A result of a call that was started before the last change of state is
   about a time that is over, and is not counted.

The seam for a slow start: `closed_at_s` tells since when it has been closed.
"""

from __future__ import annotations

from enum import StrEnum

from app.kernel.grpc_status import code_name

DOWN_FAILURES = 3  # one refused connection may be a restart of one instance among many
STREAK_FAILURES = 10  # more than the attempts a message gets in memory: one poison pill opens nothing
OVERLOAD_SHARE = 0.5
OVERLOAD_MIN_CALLS = 20  # below that a share says little
WINDOW_S = 10.0  # counted in two halves, the older of which is dropped: 5 to 10 s
PROBE_MIN_S = 0.1
PROBE_MAX_S = 1.0  # recovery within two seconds, an answer's time included
PROBE_GROWTH = 2.0
SPENT = "no more dead letters may be written now (spec.dlq)"


class BreakerState(StrEnum):
    """See the module's picture."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class FailureKind(StrEnum):
    """Why a call counts against the receiver."""

    DOWN = "down"
    OVERLOAD = "overload"
    REFUSED = "refused"
    FAILED = "failed"


FAILURES = {
    14: FailureKind.DOWN,  # UNAVAILABLE
    4: FailureKind.OVERLOAD,  # DEADLINE_EXCEEDED
    8: FailureKind.OVERLOAD,  # RESOURCE_EXHAUSTED
    7: FailureKind.REFUSED,  # PERMISSION_DENIED
    12: FailureKind.REFUSED,  # UNIMPLEMENTED
    16: FailureKind.REFUSED,  # UNAUTHENTICATED
}
NEUTRAL = 1  # CANCELLED


class CircuitBreaker:
    """See the module.

    Attributes:
        closed: calls may be started freely (a plain attribute: it is asked for every message).
        reason: why it opened, for people; "" before the first time.
        failed: it is not closed, and FAILED opened it.
        next_probe_at_s: while not closed, when `allow` says yes again.
        closed_at_s: when it last closed; -inf before it ever opened.
    """

    __slots__ = (
        "_calls", "_down", "_failed", "_interval_s", "_last_interval_s", "_older_calls", "_older_failed",
        "_older_overloads", "_overloads", "_probes", "_rotate_at_s", "_since_s", "_streak", "closed",
        "closed_at_s", "failed", "next_probe_at_s", "reason",
    )  # fmt: skip

    def __init__(self) -> None:
        self.closed = True
        self.failed = False
        self.reason = ""
        self.next_probe_at_s = self.closed_at_s = float("-inf")
        self._since_s = float("-inf")  # the last change between closed and not
        self._interval_s = self._last_interval_s = PROBE_MIN_S
        self._probes = 0  # allowed and not known to have failed
        self._forget(float("-inf"))

    @property
    def state(self) -> BreakerState:
        """HALF_OPEN while a probe is out."""
        if self.closed:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probes else BreakerState.OPEN

    def recent(self, now_s: float) -> tuple[int, int]:
        """Calls of the window, and how many of them count against the receiver; while not closed, of the
        window in which it opened."""
        if self.closed and now_s >= self._rotate_at_s + WINDOW_S / 2:
            return 0, 0
        return self._calls + self._older_calls, self._failed + self._older_failed

    def allow(self, now_s: float) -> bool:
        """Whether a call may be started now. While not closed, a yes is a probe: make it, or `forgo` it."""
        if self.closed:
            return True
        if now_s < self.next_probe_at_s:
            return False
        self._probes += 1
        self._last_interval_s = self._interval_s
        self.next_probe_at_s = now_s + self._interval_s
        self._interval_s = min(self._interval_s * PROBE_GROWTH, PROBE_MAX_S)
        return True

    def forgo(self, now_s: float) -> None:
        """The call that was just allowed is not made (there was nothing to send), or says nothing."""
        if not self.closed and self._probes:
            self._probes -= 1
            self._interval_s = self._last_interval_s
            self.next_probe_at_s = now_s

    def on_result(
        self, code: int, now_s: float, started_s: float, *, failed: bool = False, spent: bool = False,
        count: int = 1,
    ) -> None:  # fmt: skip
        """`count` calls started at `started_s` ended with the gRPC status number `code`.

        Args:
            failed: the receiver failed the messages: it neither took them nor said what to do with them.
            spent: no dead letter may be written now.
        """
        failure = FAILURES.get(code)
        if failure is not None:
            self.on_failure(failure, now_s, started_s)
        elif failed and (spent or self.failed) and code != NEUTRAL:
            why = code_name(code) if code else "the receiver's Retry"
            self.on_failure(FailureKind.FAILED, now_s, started_s, why, count)
        elif code != NEUTRAL:
            self.on_success(now_s, started_s)
        elif started_s > self._since_s:
            self.forgo(now_s)

    def on_success(self, now_s: float, started_s: float) -> None:
        """A call started at `started_s` was answered by a receiver that works."""
        if self.closed:
            if started_s >= self._since_s:
                self._down = self._streak = 0
                if now_s >= self._rotate_at_s:
                    self._rotate(now_s)
                self._calls += 1
        elif started_s > self._since_s:
            self.closed = True
            self.failed = False
            self.closed_at_s = self._since_s = now_s
            self._forget(now_s)

    def on_failure(
        self, failure: FailureKind, now_s: float, started_s: float, why: str = "", count: int = 1
    ) -> None:
        """Calls started at `started_s` failed in a way that tells of the receiver, not of the message."""
        if not self.closed:
            if started_s > self._since_s and self._probes:
                self._probes -= 1
            if failure is FailureKind.FAILED and not self.failed:
                self.failed = True
                self.reason = f"it is there, and fails messages by {why}; {SPENT}"
            return
        if started_s < self._since_s:
            return
        if now_s >= self._rotate_at_s:
            self._rotate(now_s)
        self._calls += count
        self._failed += count
        self._streak += count
        self._down += failure is FailureKind.DOWN
        self._overloads += failure is FailureKind.OVERLOAD
        if self._down >= DOWN_FAILURES:
            self._open(now_s, f"{self._down} calls in a row found nobody")
        elif self._streak >= STREAK_FAILURES and failure is FailureKind.FAILED:
            self.failed = True
            self._open(now_s, f"{self._streak} calls in a row failed, the last by {why}; {SPENT}")
        elif self._streak >= STREAK_FAILURES:
            self._open(now_s, f"{self._streak} calls in a row failed, the last by {failure.value}")
        else:
            calls = self._calls + self._older_calls
            overloads = self._overloads + self._older_overloads
            if calls >= OVERLOAD_MIN_CALLS and overloads > calls * OVERLOAD_SHARE:
                self._open(now_s, f"{overloads} of the last {calls} calls failed by overload")

    def _open(self, now_s: float, reason: str) -> None:
        self.closed = False
        self.reason = reason
        self._since_s = now_s
        self._probes = 0
        self._last_interval_s = PROBE_MIN_S
        self._interval_s = PROBE_MIN_S
        self.next_probe_at_s = now_s + PROBE_MIN_S

    def _forget(self, now_s: float) -> None:
        """Counts from nothing again."""
        self._down = self._streak = 0
        self._calls = self._overloads = self._older_calls = self._older_overloads = 0
        self._failed = self._older_failed = 0
        self._rotate_at_s = now_s + WINDOW_S / 2

    def _rotate(self, now_s: float) -> None:
        """Begins a new half of the window; after a pause longer than a half, both are over."""
        fresh = now_s < self._rotate_at_s + WINDOW_S / 2
        self._older_calls = self._calls if fresh else 0
        self._older_overloads = self._overloads if fresh else 0
        self._older_failed = self._failed if fresh else 0
        self._calls = self._overloads = self._failed = 0
        self._rotate_at_s = now_s + WINDOW_S / 2
