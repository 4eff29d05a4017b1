"""How many messages a workload may dead-letter: successes buy the right, time gives a little of it.

A deployment that fails every message must not flush its topic into the dead letter queue. A few messages that
fail among many that succeed, or alone in a quiet topic, must go there at once.

    tokens ▲
     burst ┼──────────────╮  acknowledgements save up to here
           │            ╭─╯
     START ┼─────╮    ╭─╯    time saves up to here, and a new worker begins here
           │     ╰────╯
         0 ┼──────────────▶  below 1: failed messages are withheld, with their attempts unburnt

Rules
1. A dead letter takes one token. Where there is none, its message is withheld: it stays unfinished, and is
   tried again (`DeadLetterTrials`).
2. An acknowledged message earns `share / (1 - share)` tokens, so that dead letters are at most that share of
   finished messages. Share 1: no limit.
3. `per_minute` tokens come by time, so that a topic of failing messages only moves on. They fill up to
   `START_LETTERS` and no further: a long rest buys no flood.
4. A worker begins with `START_LETTERS`, not with `burst`: restarts in a loop buy little.

`DeadLetterTrials` says when withheld messages are tried again. Those that may be dead-lettered go at once.
Without tokens one goes at a time, less and less often; each round that the receiver takes doubles the next.

Time is passed in: monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

START_LETTERS = 10  # as many as calls in a row open the breaker: a few at once, no flood
DEAD_LETTER_SHARE = 0.1
DEAD_LETTERS_PER_MINUTE = 10.0
DEAD_LETTER_BURST = 100
MOST_AT_ONCE = 256
TRIAL_MIN_S = 1.0
TRIAL_MAX_S = 10.0  # a receiver that works again has what was withheld within seconds
TRIAL_GROWTH = 2.0
MAX_SPELLED = 5
EPSILON = 1e-9  # of a token: sums of shares round


def spelled(failures: Mapping[str, int]) -> str:
    """Failures by status and how often, the most frequent first, for people."""
    rows = sorted(failures.items(), key=lambda row: -row[1])
    more = f" and {len(rows) - MAX_SPELLED} more" if len(rows) > MAX_SPELLED else ""
    return ", ".join(f"{code} {count} times" for code, count in rows[:MAX_SPELLED]) + more


class DeadLetterBudget:
    """See the module. One for a workload on a worker.

    Args:
        share: of finished messages that may be dead letters, 0 to 1.
        per_minute: tokens by time.
        burst: tokens that acknowledgements save up to.

    Raises:
        ValueError: a figure is out of its bounds.
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
        """Takes other figures into force: what was spent stays spent."""
        tokens = self.available(now_s)
        self._set(share, per_minute, burst)
        self._tokens, self._at_s = min(tokens, self._burst), now_s

    def available(self, now_s: float) -> float:
        """Tokens there are; infinite without a limit."""
        if self.unlimited:
            return float("inf")
        if self._tokens >= self._start:
            return self._tokens
        return min(self._start, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)

    def is_spent(self, now_s: float) -> bool:
        """No message may be dead-lettered now."""
        return self.available(now_s) < 1 - EPSILON

    def earn(self, now_s: float, count: int = 1) -> None:
        """So many messages were acknowledged."""
        if self._tokens < self._burst:
            self._tokens = min(self._burst, self._settled(now_s) + count * self._per_ack)

    def try_spend(self, now_s: float) -> bool:
        """Takes a token for a dead letter; False: there is none, and the message is withheld."""
        if self.unlimited:
            return True
        tokens = self._settled(now_s)
        if tokens < 1 - EPSILON:
            return False
        self._tokens = max(0.0, tokens - 1)
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until time alone gives the next token; infinite when it never does."""
        missing = 1 - self.available(now_s)
        if missing <= EPSILON:
            return 0.0
        return missing / self._per_s if self._per_s else float("inf")

    def _settled(self, now_s: float) -> float:
        self._tokens = min(self.available(now_s), self._burst)
        self._at_s = max(self._at_s, now_s)
        return self._tokens


class DeadLetterTrials:
    """When the messages of one receiver that are withheld are tried again, and how many together.

    Attributes:
        out: of the round that is on its way.
        next_at_s: when the next may go without a token.
    """

    __slots__ = ("_interval_s", "_most", "_taken", "next_at_s", "out")

    def __init__(self) -> None:
        self.out = 0
        self.reset()

    def reset(self) -> None:
        """Something changed: one is tried at once."""
        self.next_at_s = float("-inf")
        self._interval_s = TRIAL_MIN_S
        self._most = 1
        self._taken = 0

    def withheld(self, now_s: float) -> None:
        """The first message is withheld while none was."""
        self.reset()
        self.next_at_s = now_s + TRIAL_MIN_S

    def room(self, now_s: float, tokens: float) -> int:
        """How many may go now; 0 while a round is out."""
        if self.out:
            return 0
        free = int(min(tokens + EPSILON, MOST_AT_ONCE))
        return max(free, self._most) if now_s >= self.next_at_s else free

    def sent(self) -> None:
        """One more of the round goes."""
        self.out += 1

    def answered(self, now_s: float, *, taken: bool) -> None:
        """One of the round came back; `taken`: the receiver took it."""
        self.out -= 1
        self._taken += taken
        if self.out:
            return
        if self._taken:
            self._most = min(MOST_AT_ONCE, 2 * self._taken)
            self._interval_s = TRIAL_MIN_S
            self.next_at_s = now_s
        else:
            self._most = 1
            self.next_at_s = now_s + self._interval_s
            self._interval_s = min(TRIAL_MAX_S, self._interval_s * TRIAL_GROWTH)
        self._taken = 0
