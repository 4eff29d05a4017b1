"""Head-of-line blocking: decides whether one message holds up a partition while the ones behind it finish.

           head (unfinished, sent long ago)
    ────────┼●●●●●○●●●●●●●●●●●●●●●●●●●●●●○●●●●┼ full: nothing more is fetched

Two rules say that a head blocks; both need evidence that it is the head's fault:

| rule  | says                                                                                         |
|-------|----------------------------------------------------------------------------------------------|
| FULL  | more than `full_share` of the tracker is in use, less than `unfinished_share` of that is     |
|       | unfinished, and the head has been out for `patience_s`. The default shares are those of      |
|       | "Introducing uForwarder" (Uber) and its HeadBlockingDetector (`critical` 0.9,                |
|       | `minAckPercent` 0.98). That one has no patience: at full speed a window passes in 100 ms,    |
|       | and it would stash every message that is just slow                                           |
| AGE   | the head has been out longer than `after_s`: for a quiet topic, whose tracker never fills    |

These cases are *not* head-of-line blocking, and change nothing (`why_not` names the case with its numbers):

- The receiver is away (the breaker is open). The time of an outage does not count as the head's age.
- Nothing newer finishes: the receiver fails as a whole, and would flush the topic into the DLQ. While the
  tracker has room, something newer must have been acknowledged within the last half of `after_s`. A full
  tracker allows no new message, so earned credit suffices there.
- The head has not been sent, or its copy is being written. A head that waits as a suspect is not with the
  receiver either (`app.dispatch.model.crash_suspicion`).
- The receiver has asked for more time for the head: then only AGE counts.
- A token is missing. A verdict spends one of each kind:
  1. Credit: an acknowledgement earns one, up to `CREDIT_MAX`. So no more is stashed than gets through, and a
     receiver that dies costs at most that many messages. One suffices: each stuck message that leaves a full
     tracker makes room for one that can earn the next. In uForwarder a move into the resilience queue costs 2
     ("to tolerate 50 % message failure"), and one into the retry queue 50. Only the credits of the last five
     minutes count there (BlockingQueueStubManager).
  2. One of `per_minute`, from a bucket that a workload's jobs on a worker share. A worker's part of the rate
     is its part of the jobs.

Rules (tests/dispatch/model/test_head_of_line.py)
1. Ages count from when the head was first sent to its present receiver, not from when it was appended: in a
   backlog every message is old.
2. A verdict is for the head only. The next head gets its own look, with its own age. So several stuck
   messages leave one by one, as fast as tokens allow.
3. `evaluate` is called by a timer, unless nothing has happened since the job became idle. It is also called
   after acknowledgements that leave the tracker full; it has no queue.

With `ordering: partition` nothing newer is sent before the head is finished, so no head ever blocks by these
rules. The caller carries a verdict out: mark CANCELED, cancel the call and its retries, stash, mark finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.kernel.token_bucket import TokenBucket

FULL_SHARE = 0.90  # uForwarder's UTILIZATION_THRESHOLD
UNFINISHED_SHARE = 0.02  # uForwarder's UNCOMMITTED_PERCENTAGE_THRESHOLD
CREDIT_MAX = 10
BLOCKED_AFTER_S = 1.0
STASHES_PER_MINUTE = 60.0
STASH_BURST_MINUTES = 1 / 6  # ten seconds' tokens may be spent at once


class BlockingRule(StrEnum):
    FULL = "full"
    AGE = "age"


class WhyNot(StrEnum):
    """Why the last look gave no verdict; "" after a verdict."""

    VERDICT = ""
    IDLE = "nothing is unfinished"
    UNSENT = "the head at {head} is not with the receiver"
    AWAY = "the receiver is away, and its outage does not count against the head at {head}"
    YOUNG = "the head at {head} has been out for {age_s:.1f} s; {use:.0%} in use, {open:.1%} of it unfinished"
    BROKEN = (
        "the head at {head} has been out for {age_s:.1f} s, but nothing newer finishes"
        " ({newer} finished behind it, none acknowledged for {since_s:.1f} s): the receiver itself is failing"
    )
    TOKENS = (
        "the head at {head} blocks, but this worker's {per_minute:g} verdicts a minute are spent;"
        " the next is allowed in {wait_s:.1f} s"
    )


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """From when on a head blocks.

    Attributes:
        after_s: The age of the AGE rule.
        patience_s: The age of the FULL rule; choose a small multiple of the receiver's usual latency.
        full_share: The tracker is full when a larger share of it is in use.
        unfinished_share: The FULL rule needs a smaller share of that to be unfinished, or one message.
    """

    after_s: float
    patience_s: float = BLOCKED_AFTER_S
    full_share: float = FULL_SHARE
    unfinished_share: float = UNFINISHED_SHARE


@dataclass(frozen=True, slots=True)
class StashVerdict:
    """The message at `offset` blocks its partition.

    Attributes:
        reason: The rule and its numbers, for people and for the copy's headers.
        age_s: How long it has been with the receiver.
    """

    offset: int
    rule: BlockingRule
    reason: str
    age_s: float


def shared_tokens(per_minute: float = STASHES_PER_MINUTE) -> TokenBucket:
    """A full bucket for a workload's jobs on one worker."""
    return TokenBucket(per_minute / 60, max(1.0, per_minute * STASH_BURST_MINUTES))


def changed_tokens(former: TokenBucket, per_minute: float, now_s: float) -> TokenBucket:
    """`former` for another rate: spent tokens stay spent, and tokens above the new burst are lost."""
    tokens = shared_tokens(per_minute)
    if (tokens.rate_per_s, tokens.burst) == (former.rate_per_s, former.burst):
        return former
    tokens.take(now_s, tokens.burst - min(former.available(now_s), tokens.burst))
    return tokens


class HeadOfLineDetector:
    """One for each job.

    Attributes:
        limits: The definition's.
        tokens: From `shared_tokens`, one bucket for each workload.
        delivered: The job's acknowledged messages at the last look.
    """

    __slots__ = ("_back_s", "_credit", "_numbers", "_progress_s", "_why", "delivered", "limits", "tokens")

    def __init__(self, limits: HeadLimits, tokens: TokenBucket | None = None) -> None:
        self.limits = limits
        self.tokens = shared_tokens() if tokens is None else tokens
        self._back_s = float("-inf")  # when the receiver was last away
        self._progress_s = float("-inf")  # when `delivered` last grew
        self.delivered = 0
        self._credit = 0
        self._why = WhyNot.IDLE
        self._numbers: dict[str, float] = {}

    @property
    def why_not(self) -> str:
        """Why the last look gave no verdict, with its numbers, for people."""
        return self._why.format(**self._numbers)

    @property
    def why_not_code(self) -> WhyNot:
        return self._why

    def age_s(self, now_s: float, head_sent_s: float) -> float:
        """How long a head that was first sent at `head_sent_s` has been with a receiver that was there."""
        return now_s - max(head_sent_s, self._back_s)

    def evaluate(
        self,
        now_s: float,
        *,
        base: int,
        capacity: int,
        unfinished: int,
        finished_above: int,
        head_sent_s: float | None,
        delivered: int,
        serving: bool = True,
        renewed: bool = False,
    ) -> StashVerdict | None:
        """Whether to stash the head now. A verdict spends tokens, so the caller must carry it out.

        Args:
            base, capacity, unfinished: The tracker's; `unfinished` 0 means idle.
            finished_above: Finished slots of the tracker's window (in use, less `unfinished`).
            head_sent_s: When the message at `base` was first sent; None: it is not with the receiver (not
                sent yet, delayed, or its copy is being written).
            delivered: The job's messages that the receiver has acknowledged; never decreases.
            serving: The receiver is there (breaker closed), and calls are allowed.
            renewed: The receiver has asked for more time for the head.
        """
        if delivered > self.delivered:
            self._credit = min(CREDIT_MAX, self._credit + delivered - self.delivered)
            self.delivered = delivered
            self._progress_s = now_s
        if not serving:
            self._back_s = now_s
        if not unfinished:
            return self._no(WhyNot.IDLE)
        if not serving:
            return self._no(WhyNot.AWAY, head=base)
        if head_sent_s is None:
            return self._no(WhyNot.UNSENT, head=base)
        age_s = self.age_s(now_s, head_sent_s)
        in_use = unfinished + finished_above
        use, share = min(1.0, in_use / capacity), unfinished / in_use  # the capacity may have become smaller
        limits, has_room = self.limits, use <= FULL_SHARE
        # A single unfinished message counts as few in a small tracker too.
        few = share < limits.unfinished_share or (unfinished == 1 and finished_above > 0)
        if age_s > limits.after_s:
            rule = BlockingRule.AGE
        elif use > limits.full_share and few and not renewed and age_s >= limits.patience_s:
            rule = BlockingRule.FULL
        else:
            return self._no(WhyNot.YOUNG, head=base, age_s=age_s, use=use, open=share)
        since_s = now_s - self._progress_s
        if finished_above <= 0 or not self._credit or (has_room and since_s > limits.after_s / 2):
            return self._no(
                WhyNot.BROKEN, head=base, age_s=age_s, newer=finished_above, since_s=min(since_s, age_s)
            )
        if wait_s := self.tokens.wait_s(now_s):
            rate = self.tokens.rate_per_s * 60
            return self._no(WhyNot.TOKENS, head=base, per_minute=rate, wait_s=wait_s)
        self.tokens.take(now_s)
        self._credit -= 1
        self._why = WhyNot.VERDICT
        return StashVerdict(
            base, rule, self._reason(rule, age_s, use, share, finished_above, unfinished), age_s
        )

    def _reason(
        self, rule: BlockingRule, age_s: float, use: float, share: float, finished_above: int, unfinished: int
    ) -> str:
        limits = self.limits
        newer = f"{finished_above} newer finished, {unfinished - 1} did not"
        if rule is BlockingRule.AGE:
            return f"head of line: not finished after {age_s:.1f} s (limit {limits.after_s:g} s); {newer}"
        return (
            f"head of line: {use:.1%} of the tracker in use (limit {limits.full_share * 100:g}%),"
            f" {share:.2%} of it unfinished (limit {limits.unfinished_share * 100:g}%),"
            f" the head for {age_s:.1f} s; {newer}"
        )

    def _no(self, why: WhyNot, **numbers: float) -> StashVerdict | None:
        self._why = why
        self._numbers = numbers
        return None
