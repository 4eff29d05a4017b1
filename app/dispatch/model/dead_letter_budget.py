"""Limits how many messages a workload may dead-letter: acknowledgements earn tokens, and time adds a few.

A deployment that fails every message must not flush its topic into the dead letter queue. A few messages that
fail among many that succeed, or alone in a quiet topic, must go there at once.

    tokens ▲
     burst ┼──────────────╮  acknowledgements save up to here
           │            ╭─╯
     START ┼─────╮    ╭─╯    time saves up to here, and a new worker begins here
           │     ╰────╯
         0 ┼──────────────▶  below 1: failed messages are withheld, and the attempt does not count

Rules (tests/dispatch/model/test_dead_letter_budget.py)
1. A dead letter costs one token. Without one its message is withheld: it stays unfinished and is tried again
   (`DeadLetterTrials`).
2. An acknowledged message earns `share / (1 - share)` tokens, so that dead letters are at most that share of
   finished messages. Share 1 means no limit.
3. Time adds `per_minute` tokens, so that a topic in which every message fails still advances. It adds up to
   `START_LETTERS` only, so a long pause allows no flood.
4. A worker begins with `START_LETTERS` instead of `burst`, so repeated restarts allow few dead letters.

`DeadLetterTrials` schedules withheld messages. As many as there are tokens go at once. Without tokens one
message goes at a time, at growing intervals; each round that the receiver takes doubles the next.

Time is passed in: monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

START_LETTERS = 10  # the number of failures in a row that opens the breaker: a few, but no flood
DEAD_LETTER_SHARE = 0.1
DEAD_LETTERS_PER_MINUTE = 10.0
DEAD_LETTER_BURST = 100
MOST_AT_ONCE = 256
TRIAL_MIN_S = 1.0
TRIAL_MAX_S = 10.0  # a repaired receiver gets its withheld messages within seconds
TRIAL_GROWTH = 2.0
MAX_SPELLED = 5
EPSILON = 1e-9  # of a token, for rounding


def spelled(failures: Mapping[str, int]) -> str:
    """Failures by status and count, the most frequent first, for people."""
    rows = sorted(failures.items(), key=lambda row: -row[1])
    more = f" and {len(rows) - MAX_SPELLED} more" if len(rows) > MAX_SPELLED else ""
    return ", ".join(f"{code} {count} times" for code, count in rows[:MAX_SPELLED]) + more


class DeadLetterBudget:
    """The tokens of one workload on a worker.

    Args:
        share: The share of finished messages that may be dead letters, 0 to 1.
        per_minute: Tokens by time.
        burst: The most tokens that acknowledgements save.

    Raises:
        ValueError: A figure is out of its bounds.
    """

    __slots__ = ("_at_s", "_burst", "_per_ack", "_per_s", "_start", "_tokens", "unlimited")

    def __init__(
        self,
        now_s: float,
        share: float = DEAD_LETTER_SHARE,
        per_minute: float = DEAD_LETTERS_PER_MINUTE,
        burst: int = DEAD_LETTER_BURST,
    ):
        self._at_s = now_s
        self._set(share, per_minute, burst)
        self._tokens = self._start

    def _set(self, share: float, per_minute: float, burst: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share {share} must be 0 to 1; 1 for no limit")
        if not 0 <= per_minute < float("inf"):
            raise ValueError(f"rate {per_minute} per minute must be at least 0 and finite")
        if burst < 1:
            raise ValueError(f"burst {burst} must be at least 1, so that one message can go")
        self.unlimited = share == 1
        self._per_ack = 0.0 if self.unlimited else share / (1 - share)
        self._per_s = per_minute / 60
        self._burst = float(burst)
        self._start = min(self._burst, float(START_LETTERS))

    def change(self, now_s: float, share: float, per_minute: float, burst: int) -> None:
        """Changes the figures; spent tokens stay spent."""
        tokens = self.available(now_s)
        self._set(share, per_minute, burst)
        self._tokens, self._at_s = min(tokens, self._burst), now_s

    def available(self, now_s: float) -> float:
        """Tokens at `now_s`; infinite without a limit."""
        if self.unlimited:
            return float("inf")
        if self._tokens >= self._start:
            return self._tokens
        return min(self._start, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)

    def is_spent(self, now_s: float) -> bool:
        return self.available(now_s) < 1 - EPSILON

    def earn(self, now_s: float, count: int = 1) -> None:
        if self._tokens < self._burst:
            self._tokens = min(self._burst, self._settled(now_s) + count * self._per_ack)

    def try_spend(self, now_s: float) -> bool:
        """Takes a token for a dead letter; False: there is none, and the message must be withheld."""
        if self.unlimited:
            return True
        tokens = self._settled(now_s)
        if tokens < 1 - EPSILON:
            return False
        self._tokens = max(0.0, tokens - 1)
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until time alone makes the next token; infinite if it never does."""
        missing = 1 - self.available(now_s)
        if missing <= EPSILON:
            return 0.0
        return missing / self._per_s if self._per_s else float("inf")

    def _settled(self, now_s: float) -> float:
        self._tokens = min(self.available(now_s), self._burst)
        self._at_s = max(self._at_s, now_s)
        return self._tokens


class DeadLetterTrials:
    """When withheld messages of one receiver are tried again, and how many together.

    Attributes:
        out: Unanswered messages of the present round.
        next_at_s: When the next message may go without a token.
    """

    __slots__ = ("_interval_s", "_round_limit", "_taken", "next_at_s", "out")

    def __init__(self) -> None:
        self.out = 0
        self.reset()

    def reset(self) -> None:
        """Allows a trial at once, because something has changed."""
        self.next_at_s = float("-inf")
        self._interval_s = TRIAL_MIN_S
        self._round_limit = 1
        self._taken = 0

    def withheld(self, now_s: float) -> None:
        self.reset()
        self.next_at_s = now_s + TRIAL_MIN_S

    def room(self, now_s: float, tokens: float) -> int:
        """How many may go now; 0 until the present round is answered."""
        if self.out:
            return 0
        free = int(min(tokens + EPSILON, MOST_AT_ONCE))
        return max(free, self._round_limit) if now_s >= self.next_at_s else free

    def sent(self) -> None:
        self.out += 1

    def answered(self, now_s: float, *, taken: bool) -> None:
        """A message of the round came back; `taken`: the receiver took it."""
        self.out -= 1
        self._taken += taken
        if self.out:
            return
        if self._taken:
            self._round_limit = min(MOST_AT_ONCE, 2 * self._taken)
            self._interval_s = TRIAL_MIN_S
            self.next_at_s = now_s
        else:
            self._round_limit = 1
            self.next_at_s = now_s + self._interval_s
            self._interval_s = min(TRIAL_MAX_S, self._interval_s * TRIAL_GROWTH)
        self._taken = 0
