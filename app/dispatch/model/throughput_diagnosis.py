"""Finds why a workload is not faster on a worker: one reason, with a sentence that has its numbers. Pure.

`ThroughputBound` lists the reasons by severity, and the first true one counts. First come those that stop
everything or a partition. The next ones slow sending down: the workload's rate, the worker's CPU, then the
receiver's slow start, limit and credit, in the order in which a message meets them
(`app.dispatch.scheduler.workload`). These hold only while a message waits, because an unused limit holds
nothing back. A worker that is throttled gets answers late, so its receivers seem slow; it comes before them.

The figures are of one moment, from a heartbeat. The reader of heartbeats makes the sentence, so that
heartbeats do not carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from app.kernel.load import THROTTLED

# prefix of the trouble of a job that pauses, but not for an operator (`app.dispatch.jobs.pause_controller`)
RESTS = "rests: "
NEARLY = 0.9  # of a limit: it counts as reached, because some calls were just answered
SHOWN = 3  # partitions, or troubles, in a sentence
MEMORY_FULL = 0.95  # of the budget, because a partition has to wait before the last byte is taken


# Results of a health check (`app.dispatch.push.health`) that hold messages back, in words.
_SET_SERVING = "to the gRPC health check, so it gets no messages until its server sets service '' to SERVING"
HOLDING = {
    "not-serving": "reports that it is not serving",
    "unknown": f"answers UNKNOWN {_SET_SERVING}",
    "service-unknown": f"answers SERVICE_UNKNOWN {_SET_SERVING}",
}


class ThroughputBound(StrEnum):
    """The reasons that hold a workload back, by severity."""

    WORKER = "worker"
    LEASE = "lease"
    HEALTH = "health"
    BREAKER = "breaker"
    PAUSED = "paused"
    DEAD_LETTERS = "dead-letters"
    COPYING = "copying"
    HEAD = "head-of-line"
    RATE = "rate"
    CPU = "cpu"
    SLOW_START = "slow-start"
    LIMIT = "limit"
    CREDIT = "credit"
    CAPACITY = "tracker"
    ORDER = "order"
    MEMORY = "memory"
    CATCH_UP = "catch-up"
    THROTTLED = "throttled"
    FETCH = "fetch"
    DELAY = "delay"
    BACKOFF = "backoff"
    HIBERNATED = "hibernated"
    PASSIVE = "passive"
    NONE = "none"


_GRAVITY = {bound: index for index, bound in enumerate(ThroughputBound)}


ENDPOINT_STATES = ("ready", "slow", "silent", "probing", "ejected", "not-serving", "leaving")


class SendingStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How messages go to a receiver or to one of its endpoints, as one worker sees it.

    Attributes:
        contract: The one in use.
        limit, allowed: The most messages in flight, and what slow start allows of it now (-1: all).
        ceiling, phase: The adaptive limit's; 0 and "" with a fixed limit.
        credit: The messages that the stream takes now; -1 for unary.
        timeout_ms, base_timeout_ms: The present timeout of a call, and the definition's if it differs.
        health: The last health check's result; "": there was none.
        calls, failed: Answers of the last seconds, and those that count against the receiver; of an endpoint
            all messages that it did not take.
        latency_ms: The mean time to an answer in the last minute that had any; -1: there was none yet.
    """

    contract: str = "unary"
    limit: int = 0
    allowed: int = -1
    ceiling: int = 0
    phase: str = ""
    in_flight: int = 0
    credit: int = -1
    timeout_ms: int = 0
    base_timeout_ms: int = 0
    health: str = ""
    calls: int = 0
    failed: int = 0
    latency_ms: float = -1


class EndpointStatus(SendingStatus, frozen=True, kw_only=True, omit_defaults=True):
    """One endpoint of a receiver.

    Attributes:
        name: Its address.
        local: It is in the worker's zone.
        state: "ready", "slow" (beside the others), "silent" (it answers health checks no longer), "probing"
            (its breaker is not closed), "ejected" (it fails what the others take), "not-serving" (by its
            health check), or "leaving" (its name has it no longer).
        for_s: For how long it has been in this state.
        why: Why it is slow, probing or ejected.
    """

    name: str
    local: bool = False
    state: str = "ready"
    for_s: float = 0
    why: str = ""


class TargetStatus(SendingStatus, frozen=True, kw_only=True, omit_defaults=True):
    """One receiver of a workload. With several endpoints, it is as good as the best of them, and numbers are
    sums.

    Attributes:
        breaker, why_open, probe_in_ms: The breaker's state; while it is not closed, the reason and the time
            to the next probe (-1: it is closed).
        held: Messages that wait for this receiver.
        endpoints: Some of them, first those that are not ready; `more_endpoints`: how many others there are.
        answered: The sum of all endpoints' `calls`.
        unresolved: Why the address has no endpoint; "": it has.
    """

    address: str
    breaker: str = "closed"
    why_open: str = ""
    probe_in_ms: int = -1
    held: int = 0
    endpoints: list[EndpointStatus] = []
    answered: int = 0
    more_endpoints: int = 0
    unresolved: str = ""


@dataclass(frozen=True, slots=True)
class RateShare:
    """This worker's share of a rate: `per_s` of `unit`, and the present `tokens` (below 0: a debt)."""

    unit: str
    per_s: float
    tokens: float

    @property
    def short(self) -> float:
        """Tokens that the next message lacks; 0: it may go."""
        return max(0.0, 1 - self.tokens)


@dataclass(frozen=True, slots=True)
class FlowReport:
    """A worker's figures of one workload.

    Attributes:
        blocked: Why the worker may send nothing at all: "lease", "snapshots", or "".
        jobs, paused: Its jobs here, and how many of them are paused.
        resting: Why jobs pause that no operator has paused.
        obscured: A job has another trouble, so it is not known who paused it.
        stuck, cramped: Partitions whose tracker is full behind few unfinished messages, or full of many.
        ready, behind, postponed, backoff: Messages that may go now, that wait for an earlier one, for their
            time, and for their next attempt.
        outgoing: Messages on their way to a retry topic or the DLQ; `not_taken`: why none is accepted.
        due_in_s: Seconds until the first of `postponed` is due.
        unread: Messages in the log that were not read yet; None: unknown.
        not_fetched: Why partitions cannot be read, such as an open transaction.
        catching_up: Jobs that work off a backlog beside new messages.
        budget_used: The used share of the worker's memory for fetched messages.
        cpu_throttled: The share of time whose periods used up a CPU quota of the worker's container.
        throttles: The delays by the broker's quota, for people.
        withheld: Failed messages that may not be dead-lettered yet; `failures`: how they fail, for people.
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
    not_fetched: Sequence[str] = ()
    catching_up: int = 0
    budget_used: float = 0.0
    cpu_throttled: float = 0.0
    rates: Sequence[RateShare] = ()
    throttles: Sequence[str] = ()
    withheld: int = 0
    failures: str = ""


@dataclass(frozen=True, slots=True)
class ThroughputDiagnosis:
    """The reason that holds a workload back, as a word and as a sentence."""

    bound: ThroughputBound
    why: str


def pace(flow: FlowReport, targets: Sequence[TargetStatus]) -> ThroughputDiagnosis:
    """Why the workload is not faster; `targets` are its receivers, the main one first."""
    stopped = _stopped(flow, targets)
    if stopped is not None:
        return stopped
    is_ready = flow.ready > 0 or any(target.held for target in targets)
    slowed = _rated(flow) if is_ready else None
    throttled = _throttled(flow)
    if slowed is None and throttled and (is_ready or flow.behind or flow.unread):
        slowed = ThroughputDiagnosis(ThroughputBound.CPU, throttled)
    if slowed is None and is_ready:
        slowed = _received(targets)
    if slowed is not None:
        return slowed
    return _starved(flow, sum(target.in_flight for target in targets))


def gravest(paces: Iterable[ThroughputDiagnosis]) -> ThroughputDiagnosis | None:
    """The most severe of `paces`, which needs attention first; None: there are none."""
    return min(paces, key=lambda pace: _GRAVITY[pace.bound], default=None)


def used_up(cpu_throttled: float) -> str:
    """How much of the time a container is throttled, 0 to 1, and the remedy."""
    periods = f"its CPU quota was used up in {cpu_throttled:.0%} of the last minute's periods"
    return f"{periods}; raise the quota, or add workers"


def without_worker(waiting: int, jobs: int) -> ThroughputDiagnosis:
    """`waiting` of a workload's `jobs` have no live worker."""
    if not jobs:
        return ThroughputDiagnosis(ThroughputBound.WORKER, "no partition of it is assigned yet")
    return ThroughputDiagnosis(ThroughputBound.WORKER, f"{waiting} of {jobs} partitions wait for a worker")


def hibernated(why: str) -> ThroughputDiagnosis:
    return ThroughputDiagnosis(ThroughputBound.HIBERNATED, why)


def passive(why: str) -> ThroughputDiagnosis:
    return ThroughputDiagnosis(ThroughputBound.PASSIVE, why)


def _stopped(flow: FlowReport, targets: Sequence[TargetStatus]) -> ThroughputDiagnosis | None:
    throttled = _throttled(flow)
    if flow.blocked:
        why = "nothing is sent: this worker's lease is over, as its heartbeats were not acknowledged in time"
        if flow.blocked == "snapshots":
            why = "nothing is sent until acknowledged messages are saved"
            why += "" if throttled else ": the control cluster is slow to store them"
        return ThroughputDiagnosis(ThroughputBound.LEASE, f"{why}; {throttled}" if throttled else why)
    for target in targets:
        waits = f"; {target.held} messages wait for it" if target.held else ""
        if target.unresolved:
            words = f"{target.address} has no endpoint: {target.unresolved}{waits}"
            return ThroughputDiagnosis(ThroughputBound.HEALTH, words)
        if target.health in HOLDING:
            words = f"{target.address} {HOLDING[target.health]}{waits}"
            return ThroughputDiagnosis(ThroughputBound.HEALTH, words)
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
            f"{flow.withheld} messages failed and wait, because spec.dlq allows no more dead letters now"
            f" ({flow.failures}); the worker retries a few at a time"
        )
        return ThroughputDiagnosis(ThroughputBound.DEAD_LETTERS, why)
    if flow.not_taken:
        why = f"{flow.outgoing} messages wait to be copied: {'; '.join(flow.not_taken[:SHOWN])}"
        return ThroughputDiagnosis(ThroughputBound.COPYING, why)
    if flow.stuck:
        why = f"{_few(flow.stuck)}: no more is read until its first unfinished message is finished or moved"
        return ThroughputDiagnosis(ThroughputBound.HEAD, why)
    return None


def _throttled(flow: FlowReport) -> str:
    return (
        f"this container is throttled: {used_up(flow.cpu_throttled)}"
        if flow.cpu_throttled >= THROTTLED
        else ""
    )


def _paused(flow: FlowReport) -> str:
    jobs = f"all {flow.jobs} of its partitions here"
    if flow.resting:
        return f"{jobs} pause, and workload resume does not end that: {'; '.join(flow.resting)}"
    return f"{jobs} are paused" if flow.obscured else f"{jobs} were paused by an operator"


def _next_probe(in_ms: int) -> str:
    return f"the next probe in {in_ms / 1000:.1f} s" if in_ms > 0 else "the next message is a probe"


def _rated(flow: FlowReport) -> ThroughputDiagnosis | None:
    for rate in flow.rates:
        if rate.short > 0:
            why = (
                f"the definition's rate is used up: {rate.per_s:g} {rate.unit}/s is this worker's share,"
                f" {rate.short:,.0f} are short, available in {rate.short / rate.per_s:.2f} s"
            )
            return ThroughputDiagnosis(ThroughputBound.RATE, why)
    return None


def _received(targets: Sequence[TargetStatus]) -> ThroughputDiagnosis | None:
    # With several receivers, messages wait at theirs; with one, they wait in the partitions.
    wanted = [target for target in targets if target.held] or targets[:1]
    for target in wanted:
        out, address = target.in_flight, target.address
        if 0 <= target.allowed < target.limit and out >= NEARLY * target.allowed:
            share = f"{target.allowed} of {target.limit}"
            why = f"{address} has just come back: {share} may be in flight now, all of them within a second"
            return ThroughputDiagnosis(ThroughputBound.SLOW_START, why)
        if out >= NEARLY * target.limit:
            return ThroughputDiagnosis(
                ThroughputBound.LIMIT, f"{out} of {target.limit} are in flight at {address}: {_limit(target)}"
            )
        if target.credit == 0:
            cause = f"has given no credit beyond the {out} in flight" if out else "has no stream up yet"
            return ThroughputDiagnosis(ThroughputBound.CREDIT, f"{address} {cause}")
    return None


def _limit(target: TargetStatus) -> str:
    if not target.ceiling:
        return "this worker's share of flow.max_inflight"
    if target.limit >= target.ceiling:
        return f"{target.ceiling} is the most that a worker sends one receiver"
    if target.phase == "hold":
        return "more at once only made it slower"
    return "the worker is still measuring how many it can take"


def _starved(flow: FlowReport, in_flight: int) -> ThroughputDiagnosis:
    """No message is ready: what the workload waits for."""
    if flow.cramped:
        why = f"{_few(flow.cramped)}: a worker reads no more unfinished messages than tracker.capacity"
        return ThroughputDiagnosis(ThroughputBound.CAPACITY, why)
    if flow.behind:
        return ThroughputDiagnosis(
            ThroughputBound.ORDER, f"{flow.behind} messages wait for an earlier one of their key or partition"
        )
    if flow.unread and flow.budget_used >= MEMORY_FULL:
        used = f"{flow.budget_used:.0%} of this worker's memory for fetched messages is in use"
        return ThroughputDiagnosis(
            ThroughputBound.MEMORY, f"{used}; the worker reads on when messages finish"
        )
    if flow.catching_up:
        why = f"{flow.catching_up} partitions work off a backlog at catchUp.rate, beside new messages"
        return ThroughputDiagnosis(ThroughputBound.CATCH_UP, why)
    if flow.not_fetched:
        why = f"not all messages can be read: {'; '.join(flow.not_fetched[:SHOWN])}"
        return ThroughputDiagnosis(ThroughputBound.FETCH, why)
    if flow.unread and flow.throttles:
        return ThroughputDiagnosis(ThroughputBound.THROTTLED, "; ".join(flow.throttles))
    if flow.unread:
        return ThroughputDiagnosis(
            ThroughputBound.FETCH, f"every message that was read is sent; {flow.unread} are not read yet"
        )
    if flow.postponed:
        due = "" if flow.due_in_s is None else f", the first for {_span(max(0.0, flow.due_in_s))}"
        return ThroughputDiagnosis(
            ThroughputBound.DELAY, f"{flow.postponed} messages wait for their time{due}"
        )
    if flow.backoff:
        why = f"{flow.backoff} messages wait: they failed, or the receiver asked for more time"
        return ThroughputDiagnosis(ThroughputBound.BACKOFF, why)
    if flow.outgoing:
        why = f"{flow.outgoing} messages are on their way to a retry topic or the dead letter queue"
        return ThroughputDiagnosis(ThroughputBound.COPYING, why)
    if in_flight:
        return ThroughputDiagnosis(
            ThroughputBound.NONE, f"every message is with the receiver: {in_flight} in flight"
        )
    if flow.unread is None:
        return ThroughputDiagnosis(ThroughputBound.NONE, "the end of its topic is not known yet")
    return ThroughputDiagnosis(ThroughputBound.NONE, "every message is delivered")


def _few(partitions: Sequence[str]) -> str:
    more = f" and {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    return f"the tracker of {', '.join(partitions[:SHOWN])}{more} is full"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
