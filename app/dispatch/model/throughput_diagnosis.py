"""Why a workload does not go faster on a worker: one reason, and a sentence with its numbers.

The reasons stand in `ThroughputBound` from the gravest to none; the first that is true is told. Those that
stop everything, or a partition, come before those that slow it down, and these are asked in the order in
which a message passes them on its way (`app.dispatch.scheduler.workload`): its rate, the receiver's slow
start, limit and credit. They hold only while something is ready to be sent: a limit that nobody waits for
holds nothing back.

What is told is a moment's truth, read from a heartbeat. Pure: the reader of heartbeats asks, so that no
sentence has to travel in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

# before the trouble of a job that is paused, and by no operator (`app.dispatch.jobs.pause_controller`)
RESTS = "rests: "
# before the trouble of a job whose copies no retry topic or DLQ takes (`app.dispatch.pump.retry_publisher`)
NO_COPY = "no copy"
NEARLY = 0.9  # of a limit: at it, but for the calls that were answered this moment
SHOWN = 3  # partitions, or troubles, in a sentence
MEMORY_FULL = 0.95  # of the budget: a partition is refused before the last byte is taken


class ThroughputBound(StrEnum):
    """What holds a workload back; see the module."""

    WORKER = "worker"
    LEASE = "lease"
    HEALTH = "health"
    BREAKER = "breaker"
    PAUSED = "paused"
    DEAD_LETTERS = "dead-letters"
    COPYING = "copying"
    HEAD = "head-of-line"
    RATE = "rate"
    SLOW_START = "slow-start"
    LIMIT = "limit"
    CREDIT = "credit"
    CAPACITY = "tracker"
    ORDER = "order"
    MEMORY = "memory"
    CATCH_UP = "catch-up"
    FETCH = "fetch"
    DELAY = "delay"
    BACKOFF = "backoff"
    HIBERNATED = "hibernated"
    PASSIVE = "passive"
    NONE = "none"


_GRAVITY = {bound: index for index, bound in enumerate(ThroughputBound)}


class TargetStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One receiver of a workload as one worker sees it.

    Attributes:
        contract: the one in use.
        breaker, why_open, probe_in_ms: its state, and while it is not closed the reason and when it may
            probe (-1: it is closed).
        limit, allowed: messages in flight at most, and what slow start leaves of it now (-1: all).
        ceiling, phase: of the adaptive limit; 0 and "" when the limit is a fixed one.
        credit: messages that the stream takes now; -1 for unary.
        held: messages that wait for this receiver.
        timeout_ms, base_timeout_ms: a call's timeout in force, and the definition's where that is another.
        health: as last heard, "" while nothing was.
        calls, failed: answers of the last seconds, and those that tell of trouble with the receiver.
        latency_ms: mean time to an answer over the last minute that had any; -1: there was none yet.
    """

    address: str
    contract: str = "unary"
    breaker: str = "closed"
    why_open: str = ""
    probe_in_ms: int = -1
    limit: int = 0
    allowed: int = -1
    ceiling: int = 0
    phase: str = ""
    in_flight: int = 0
    credit: int = -1
    held: int = 0
    timeout_ms: int = 0
    base_timeout_ms: int = 0
    health: str = ""
    calls: int = 0
    failed: int = 0
    latency_ms: float = -1


@dataclass(frozen=True, slots=True)
class RateShare:
    """This worker's share of a rate: so many of `unit` a second; `tokens` there are (below 0: a debt)."""

    unit: str
    per_s: float
    tokens: float

    @property
    def short(self) -> float:
        """Tokens that are missing for the next message; 0 when it may go."""
        return max(0.0, 1 - self.tokens)


@dataclass(frozen=True, slots=True)
class FlowReport:
    """What a worker says of one workload.

    Attributes:
        blocked: why the worker may send nothing at all: "lease", "snapshots", or "".
        jobs, paused: its jobs here, and those of them that are paused.
        resting: why some of those are that no operator has paused.
        obscured: whether one of them tells of another trouble, so that it is not known who has paused it.
        stuck, cramped: partitions whose tracker is full behind few unfinished messages, or of many.
        ready, behind, postponed, backoff: messages that may go now, that wait for their turn, for their
            time, for their next attempt.
        outgoing: messages on their way to a retry topic or the DLQ; `not_taken`: why none goes there now.
        due_in_s: until the first of `postponed` is due.
        unread: messages in the log that could be read and were not yet; None while unknown.
        catching_up: jobs that work off a backlog beside the latest.
        budget_used: share of the worker's memory for fetched messages.
        withheld: messages that failed, and may not be dead-lettered yet; `failures`: how, for people.
    """

    blocked: str = ""
    jobs: int = 0
    paused: int = 0
    resting: Sequence[str] = ()
    obscured: bool = False
    stuck: Sequence[str] = ()
    cramped: Sequence[str] = ()
    ready: int = 0
    behind: int = 0
    postponed: int = 0
    due_in_s: float | None = None
    backoff: int = 0
    outgoing: int = 0
    not_taken: Sequence[str] = ()
    unread: int | None = 0
    catching_up: int = 0
    budget_used: float = 0.0
    rates: Sequence[RateShare] = ()
    withheld: int = 0
    failures: str = ""


@dataclass(frozen=True, slots=True)
class ThroughputDiagnosis:
    """What holds a workload back, in a word and in a sentence."""

    bound: ThroughputBound
    why: str


def pace(flow: FlowReport, targets: Sequence[TargetStatus]) -> ThroughputDiagnosis:
    """Why it does not go faster; `targets` are its receivers, the main one first."""
    stopped = _stopped(flow, targets)
    if stopped is not None:
        return stopped
    if flow.ready or any(target.held for target in targets):
        slowed = _slowed(flow, targets)
        if slowed is not None:
            return slowed
    return _starved(flow, sum(target.in_flight for target in targets))


def gravest(paces: Iterable[ThroughputDiagnosis]) -> ThroughputDiagnosis | None:
    """The one that somebody has to look at first; None of none."""
    return min(paces, key=lambda pace: _GRAVITY[pace.bound], default=None)


def without_worker(waiting: int, jobs: int) -> ThroughputDiagnosis:
    """`waiting` of a workload's `jobs` have no worker that is heard."""
    if not jobs:
        return ThroughputDiagnosis(ThroughputBound.WORKER, "no partition of it is assigned yet")
    return ThroughputDiagnosis(ThroughputBound.WORKER, f"{waiting} of {jobs} partitions wait for a worker")


def hibernated(why: str) -> ThroughputDiagnosis:
    """It sleeps, so that nothing is held back."""
    return ThroughputDiagnosis(ThroughputBound.HIBERNATED, why)


def passive(why: str) -> ThroughputDiagnosis:
    """Another region runs it."""
    return ThroughputDiagnosis(ThroughputBound.PASSIVE, why)


def _stopped(flow: FlowReport, targets: Sequence[TargetStatus]) -> ThroughputDiagnosis | None:
    """What stops all of it, a receiver, or a partition."""
    if flow.blocked == "snapshots":
        why = "nothing is sent until what was acknowledged is saved: the control cluster is slow to take it"
        return ThroughputDiagnosis(ThroughputBound.LEASE, why)
    if flow.blocked:
        why = "nothing is sent: this worker's lease is over, its heartbeats were not acknowledged in time"
        return ThroughputDiagnosis(ThroughputBound.LEASE, why)
    for target in targets:
        waits = f"; {target.held} messages wait for it" if target.held else ""
        if target.health == "not-serving":
            return ThroughputDiagnosis(
                ThroughputBound.HEALTH, f"{target.address} says that it is not serving{waits}"
            )
    for target in targets:
        if target.breaker != "closed":
            waits = f"; {target.held} messages wait for it" if target.held else ""
            probe = "a probe is out" if target.breaker == "half-open" else _next_probe(target.probe_in_ms)
            why = f"the breaker of {target.address} is {target.breaker}: {target.why_open}; {probe}{waits}"
            return ThroughputDiagnosis(ThroughputBound.BREAKER, why)
    if flow.jobs and flow.paused == flow.jobs:
        return ThroughputDiagnosis(ThroughputBound.PAUSED, _paused(flow))
    if flow.withheld:
        why = (
            f"{flow.withheld} messages failed and wait, as spec.dlq allows no more dead letters now"
            f" ({flow.failures}): they are tried again, few at a time"
        )
        return ThroughputDiagnosis(ThroughputBound.DEAD_LETTERS, why)
    if flow.not_taken:
        why = f"{flow.outgoing} messages wait to be copied: {'; '.join(flow.not_taken[:SHOWN])}"
        return ThroughputDiagnosis(ThroughputBound.COPYING, why)
    if flow.stuck:
        why = f"{_few(flow.stuck)}: nothing more is read until its first unfinished message is done or moved"
        return ThroughputDiagnosis(ThroughputBound.HEAD, why)
    return None


def _paused(flow: FlowReport) -> str:
    whole = f"all {flow.jobs} of its partitions here"
    if flow.resting:
        return f"{whole} rest, whatever operators resume: {'; '.join(flow.resting)}"
    return f"{whole} are paused" if flow.obscured else f"{whole} were paused by an operator"


def _next_probe(in_ms: int) -> str:
    return f"the next probe in {in_ms / 1000:.1f} s" if in_ms > 0 else "the next message is a probe"


def _slowed(flow: FlowReport, targets: Sequence[TargetStatus]) -> ThroughputDiagnosis | None:
    """What something waits for that is ready to be sent."""
    for rate in flow.rates:
        if rate.short > 0:
            why = (
                f"the definition's rate is used up: {rate.per_s:g} {rate.unit}/s is this worker's share,"
                f" {rate.short:,.0f} are short, there in {rate.short / rate.per_s:.2f} s"
            )
            return ThroughputDiagnosis(ThroughputBound.RATE, why)
    # Of several receivers those that something waits for; what is ready goes to the only one there is.
    wanted = [target for target in targets if target.held] or targets[:1]
    for target in wanted:
        out, address = target.in_flight, target.address
        if 0 <= target.allowed < target.limit and out >= NEARLY * target.allowed:
            share = f"{target.allowed} of {target.limit}"
            why = f"{address} has just come back: {share} may be in flight, all within a second"
            return ThroughputDiagnosis(ThroughputBound.SLOW_START, why)
        if out >= NEARLY * target.limit:
            return ThroughputDiagnosis(
                ThroughputBound.LIMIT, f"{out} of {target.limit} are in flight at {address}: {_limit(target)}"
            )
        if target.credit == 0:
            what = f"has given no credit beyond the {out} in flight" if out else "has no stream up yet"
            return ThroughputDiagnosis(ThroughputBound.CREDIT, f"{address} {what}")
    return None


def _limit(target: TargetStatus) -> str:
    if not target.ceiling:
        return "this worker's share of flow.max_inflight"
    if target.limit >= target.ceiling:
        return f"{target.ceiling} is the most that a worker gives one receiver"
    if target.phase == "hold":
        return "with more at once it only got slower"
    return "how many it can take is being found out"


def _starved(flow: FlowReport, in_flight: int) -> ThroughputDiagnosis:
    """Nothing is ready: what it waits for."""
    if flow.cramped:
        why = f"{_few(flow.cramped)}: more unfinished messages than tracker.capacity are not read"
        return ThroughputDiagnosis(ThroughputBound.CAPACITY, why)
    if flow.behind:
        return ThroughputDiagnosis(
            ThroughputBound.ORDER, f"{flow.behind} messages wait for an earlier one of their key or partition"
        )
    if flow.unread and flow.budget_used >= MEMORY_FULL:
        used = f"{flow.budget_used:.0%} of this worker's memory for fetched messages is in use"
        return ThroughputDiagnosis(ThroughputBound.MEMORY, f"{used}; more is read when some is done")
    if flow.catching_up:
        why = f"{flow.catching_up} partitions work off a backlog at catchUp.rate, beside what is new"
        return ThroughputDiagnosis(ThroughputBound.CATCH_UP, why)
    if flow.unread:
        return ThroughputDiagnosis(
            ThroughputBound.FETCH, f"all that was read is sent; {flow.unread} messages are still to be read"
        )
    if flow.postponed:
        due = "" if flow.due_in_s is None else f", the first for {_span(max(0.0, flow.due_in_s))}"
        return ThroughputDiagnosis(
            ThroughputBound.DELAY, f"{flow.postponed} messages wait for their time{due}"
        )
    if flow.backoff:
        return ThroughputDiagnosis(
            ThroughputBound.BACKOFF, f"{flow.backoff} messages failed and wait for their next attempt"
        )
    if flow.outgoing:
        why = f"{flow.outgoing} messages are on their way to a retry topic or the dead letter queue"
        return ThroughputDiagnosis(ThroughputBound.COPYING, why)
    if in_flight:
        return ThroughputDiagnosis(
            ThroughputBound.NONE, f"all there is is with the receiver: {in_flight} in flight"
        )
    if flow.unread is None:
        return ThroughputDiagnosis(ThroughputBound.NONE, "nothing has been heard of its topic yet")
    return ThroughputDiagnosis(ThroughputBound.NONE, "everything that came is delivered")


def _few(partitions: Sequence[str]) -> str:
    more = f" and {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    return f"the tracker of {', '.join(partitions[:SHOWN])}{more} is full"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
