"""The circuit breaker of one receiver: stops calls that would fail, and notices soon when they succeed again.

    CLOSED ──too many failures──▶ OPEN ──a probe is due──▶ HALF_OPEN ──it is answered──▶ CLOSED
                                   ▲                           │
                                   └───────it fails────────────┘

How gRPC statuses count (`app.dispatch.model.dead_letter_budget` says whether dead letters are allowed):

| status                                            | counts as                                          |
|---------------------------------------------------|----------------------------------------------------|
| UNAVAILABLE                                       | DOWN: no receiver answers                          |
| RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED             | OVERLOAD: the receiver cannot keep up              |
| UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED | REFUSED: apparently wrong method or credentials    |
| CANCELLED                                         | nothing: this worker may have cancelled the call   |
| any other, while dead letters are allowed         | success: a working receiver answered               |
| any other, while none is allowed                  | FAILED, if the receiver failed the message         |

`BreakerLimits` says after how many failures it opens. `eject` opens it for an outlier
(`app.dispatch.model.outlier_detection`), as by FAILED.

REFUSED counts because a receiver that refuses everything (a deployment without the handler, an expired token)
would flush the topic into the DLQ. It takes a long row, because a single message may be refused with reason
and must reach the DLQ. FAILED counts for the same reason. A breaker opened by FAILED closes only when the
receiver takes a message, even if dead letters are allowed by then.

Rules (tests/dispatch/model/test_circuit_breaker.py)
1. Time is passed in: monotonic seconds that never decrease.
2. While open, the breaker allows one probe an interval, even if the last one is unanswered: a receiver may
   recover without ever answering it. The interval doubles up to `longest_probe_s`. By default recovery is
   noticed within two seconds.
3. Any successful probe closes the breaker. A call that began before the last change of state does not count.

`closed_at_s` is the base of a slow start.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.kernel.grpc_status import code_name

DOWN_FAILURES = 3  # one refused connection may be a restart of one instance among many
STREAK_FAILURES = 10  # more than a message's attempts in memory, so one poison pill does not open it
OVERLOAD_SHARE = 0.5
OVERLOAD_CALLS = 20  # a share of fewer calls is noise
WINDOW_S = 10.0  # counted in two halves, of which the older is dropped: 5 to 10 s
FIRST_PROBE_S = 0.1
LONGEST_PROBE_S = 1.0  # recovery within two seconds, including the answer
PROBE_GROWTH = 2.0
SPENT = "no more dead letters may be written now (spec.dlq)"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class FailureKind(StrEnum):
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


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """When a breaker opens, and how often it probes.

    Attributes:
        unavailable: DOWN in a row that open it.
        failures: Failures of any kind in a row that open it.
        overload_share: The share of OVERLOAD among the calls of the window. A larger one opens it.
        overload_calls: In a window with fewer calls the share does not count.
        window_s: Counted in two halves, of which the older is dropped.
        first_probe_s: The wait for the first probe.
        longest_probe_s: The longest wait between two probes.
    """

    unavailable: int = DOWN_FAILURES
    failures: int = STREAK_FAILURES
    overload_share: float = OVERLOAD_SHARE
    overload_calls: int = OVERLOAD_CALLS
    window_s: float = WINDOW_S
    first_probe_s: float = FIRST_PROBE_S
    longest_probe_s: float = LONGEST_PROBE_S


DEFAULT_LIMITS = BreakerLimits()


class CircuitBreaker:
    """The breaker; see the module.

    Attributes:
        closed: Calls may start freely; a plain attribute, because every message reads it.
        reason: Why it opened, for people; "" before the first time.
        failed: It is not closed, and FAILED opened it.
        next_probe_at_s: While not closed, when `allow` returns True again.
        closed_at_s: When it last closed; -inf before it first opened.
        streak: The failures in a row.
    """

    __slots__ = (
        "_calls", "_down", "_failed", "_interval_s", "_last_interval_s", "_limits", "_older_calls",
        "_older_failed", "_older_overloads", "_overloads", "_probes", "_rotate_at_s", "_since_s", "closed",
        "closed_at_s", "failed", "next_probe_at_s", "reason", "streak",
    )  # fmt: skip

    def __init__(self, limits: BreakerLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self.closed = True
        self.failed = False
        self.reason = ""
        self.next_probe_at_s = self.closed_at_s = float("-inf")
        self._since_s = float("-inf")  # when it last opened or closed
        self._interval_s = self._last_interval_s = limits.first_probe_s
        self._probes = 0  # allowed and not known to have failed
        self._forget(float("-inf"))

    def change(self, limits: BreakerLimits, now_s: float) -> None:
        """Applies other limits. An open breaker waits for its next probes as they say; a shorter window
        forgets what it has counted."""
        is_shorter = limits.window_s < self._limits.window_s
        self._limits = limits
        if is_shorter and self.closed:
            self._forget(now_s)
        least_s, most_s = limits.first_probe_s, limits.longest_probe_s
        self._interval_s = min(max(self._interval_s, least_s), most_s)
        self._last_interval_s = min(max(self._last_interval_s, least_s), most_s)
        self.next_probe_at_s = min(self.next_probe_at_s, now_s + most_s)

    @property
    def state(self) -> BreakerState:
        """HALF_OPEN while a probe is unanswered."""
        if self.closed:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probes else BreakerState.OPEN

    def recent(self, now_s: float) -> tuple[int, int]:
        """The calls and failures of the window; while not closed, of the window in which it opened."""
        if self.closed and now_s >= self._rotate_at_s + self._limits.window_s / 2:
            return 0, 0
        return self._calls + self._older_calls, self._failed + self._older_failed

    def allow(self, now_s: float) -> bool:
        """Whether a call may start now. While not closed, True allows a probe: send it, or `forgo` it."""
        if self.closed:
            return True
        if now_s < self.next_probe_at_s:
            return False
        self._probes += 1
        self._last_interval_s = self._interval_s
        self.next_probe_at_s = now_s + self._interval_s
        self._interval_s = min(self._interval_s * PROBE_GROWTH, self._limits.longest_probe_s)
        return True

    def forgo(self, now_s: float) -> None:
        """Takes back the last probe: it was not sent, or its result says nothing about the receiver."""
        if not self.closed and self._probes:
            self._probes -= 1
            self._interval_s = self._last_interval_s
            self.next_probe_at_s = now_s

    def on_result(
        self, code: int, now_s: float, started_s: float, *, failed: bool = False, spent: bool = False,
        count: int = 1,
    ) -> None:  # fmt: skip
        """Takes `count` calls that began at `started_s` and ended with the gRPC status `code`.

        Args:
            failed: The receiver neither took the messages nor decided what happens to them.
            spent: No dead letter is allowed now.
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
        """Takes a call that began at `started_s`, and that a working receiver answered."""
        if self.closed:
            if started_s >= self._since_s:
                self._down = self.streak = 0
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
        """Takes `count` calls that began at `started_s` and failed because of the receiver."""
        if not self.closed:
            if started_s > self._since_s and self._probes:
                self._probes -= 1
            if failure is FailureKind.FAILED and not self.failed:
                self.failed = True
                self.reason = f"the receiver answers, but fails messages with {why}; {SPENT}"
            return
        if started_s < self._since_s:
            return
        if now_s >= self._rotate_at_s:
            self._rotate(now_s)
        self._calls += count
        self._failed += count
        self.streak += count
        self._down = self._down + 1 if failure is FailureKind.DOWN else 0
        self._overloads += failure is FailureKind.OVERLOAD
        limits = self._limits
        if self._down >= limits.unavailable:
            self.open(now_s, f"{self._down} calls in a row found no receiver")
        elif self.streak >= limits.failures and failure is FailureKind.FAILED:
            self.failed = True
            self.open(now_s, f"{self.streak} calls in a row failed, the last with {why}; {SPENT}")
        elif self.streak >= limits.failures:
            self.open(now_s, f"{self.streak} calls in a row failed, the last as {failure.value}")
        else:
            calls = self._calls + self._older_calls
            overloads = self._overloads + self._older_overloads
            if calls >= limits.overload_calls and overloads > calls * limits.overload_share:
                self.open(now_s, f"{overloads} of the last {calls} calls failed by overload")

    def eject(self, now_s: float, reason: str) -> None:
        """Opens it: others take what this receiver fails."""
        self.failed = True
        self.open(now_s, reason)

    def open(self, now_s: float, reason: str) -> None:
        self.closed = False
        self.reason = reason
        self._since_s = now_s
        self._probes = 0
        self._interval_s = self._last_interval_s = self._limits.first_probe_s
        self.next_probe_at_s = now_s + self._interval_s

    def _forget(self, now_s: float) -> None:
        self._down = self.streak = 0
        self._calls = self._overloads = self._older_calls = self._older_overloads = 0
        self._failed = self._older_failed = 0
        self._rotate_at_s = now_s + self._limits.window_s / 2

    def _rotate(self, now_s: float) -> None:
        """Begins a new half of the window. After a pause of more than a half, both are dropped."""
        fresh = now_s < self._rotate_at_s + self._limits.window_s / 2
        self._older_calls = self._calls if fresh else 0
        self._older_overloads = self._overloads if fresh else 0
        self._older_failed = self._failed if fresh else 0
        self._calls = self._overloads = self._failed = 0
        self._rotate_at_s = now_s + self._limits.window_s / 2
