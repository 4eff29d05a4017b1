"""Why a workload is no faster, by worker and by receiver, from the workers' heartbeats. Pure.

These types are the API's: OpenAPI describes them from here. Null: unknown, or it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pydantic import ValidationError

from app.controllog.codec import HeadDecision, HeadStatus, JobStatus, WorkloadStatus
from app.dispatch.definition import HEAD_OF_LINE_S, Workload
from app.dispatch.model.dead_letter_budget import spelled
from app.dispatch.model.head_of_line import HeadLimits
from app.dispatch.model.throughput_diagnosis import (
    RESTS,
    EndpointStatus,
    FlowReport,
    RateShare,
    TargetStatus,
    ThroughputDiagnosis,
    gravest,
    pace,
    without_worker,
)
from app.kernel.json_types import JsonObject
from app.kernel.troubles import FETCH_TROUBLE, TroubleSource

STUCK_SHARE = 0.5  # unfinished part of a full tracker; below it, few messages hold up many
MAX_DECISIONS = 20  # of all workers together

# a worker, and its status of the workload and of each job
WorkerStatus = tuple[str, WorkloadStatus, Sequence[JobStatus]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of a receiver as one worker sees it; `local`: in the worker's zone. `state` has been for
    `for_s`: ready, slow (beside the others), silent (it answers health checks no longer), probing (its
    breaker is not closed), ejected (it fails what the others take), not-serving (by its health check), or
    leaving (its name has it no longer). `latency_ms` is the mean of the last minute. It had `share` (0 to 1)
    of the answers of the last seconds, and did not take `failed_share` of its messages.
    """

    name: str
    local: bool
    state: str
    for_s: float
    why: str | None
    contract: str
    in_flight: int
    limit: int
    credit: int | None
    health: str | None
    calls: int
    failed_share: float | None
    latency_ms: float | None
    share: float | None


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of the workload as one worker sees it. `limit` is the limit of messages in flight, `allowed`
    the part of it that slow start allows; `ceiling` and `phase` belong to the adaptive limit. `credit` is
    what a stream takes now. `failed` of the last `calls` answers show trouble with the receiver.
    `unresolved` is why its address has no endpoints.
    """

    worker: str
    address: str
    contract: str
    breaker: str
    why_open: str | None
    probe_in_s: float | None
    limit: int
    allowed: int
    ceiling: int | None
    phase: str | None
    in_flight: int
    credit: int | None
    held: int
    timeout_s: float
    base_timeout_s: float
    health: str | None
    calls: int
    failed: int
    failed_share: float | None
    endpoints: list[Endpoint]
    more_endpoints: int
    unresolved: str | None


class WorkerFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The workload on one worker. `bound` (a word) and `why` (a sentence) say what limits it there. Its
    messages are counted by what they wait for. Rates are the worker's share; `messages_short` and
    `bytes_short` are missing for the next message. `budget_used` is the used part (0 to 1) of the worker's
    memory for fetched messages. `cpu_throttled` is the share of the last minute (0 to 1) whose periods used
    up a CPU quota of its container. `throttles` are sentences about delays by the broker's quota. `withheld`
    messages failed and may not be dead-lettered yet; `withheld_by` counts such failures by status since the
    worker began. `letters` may be written now (null: no limit).
    """

    worker: str
    bound: str
    why: str
    blocked: str | None
    jobs: int
    paused: int
    catching_up: int
    emptying: int
    in_flight: int
    held: int
    ready: int
    behind: int
    postponed: int
    due_in_s: float | None
    backoff: int
    outgoing: int
    unread: int | None
    messages_per_s: float | None
    messages_short: float | None
    bytes_per_s: float | None
    bytes_short: float | None
    buffered_bytes: int
    budget_used: float
    cpu_throttled: float
    stashed: int
    withheld: int
    withheld_by: dict[str, int]
    withheld_last: str | None
    letters: float | None
    throttles: list[str]


class Candidate(HeadStatus, frozen=True, kw_only=True, omit_defaults=False):
    """The message that blocks a partition's offset, and why it was not moved away yet. `age_s` null: the
    receiver does not have it. The thresholds apply to `tracker_used` and `unfinished_share`.
    """

    worker: str


class Decision(HeadDecision, frozen=True, kw_only=True, omit_defaults=False):
    """A message that blocked its partition and was moved away."""

    worker: str


class HeadOfLine(msgspec.Struct, frozen=True, kw_only=True):
    """Head-of-line blocking. Candidates are sorted by age, the oldest first, and decisions by time, the
    newest first. `stashed` messages were moved away since these workers took the workload.
    """

    after_s: float
    patience_s: float
    use_threshold: float
    unfinished_threshold: float
    stashed: int
    candidates: list[Candidate]
    more_candidates: int
    decisions: list[Decision]


class WorkloadFlow(msgspec.Struct, frozen=True, kw_only=True):
    """Why a workload is no faster: the gravest reason, its worker (null: it has none), and the numbers."""

    bound: str
    why: str
    worker: str | None
    workers: list[WorkerFlow]
    receivers: list[Receiver]
    head_of_line: HeadOfLine


def slowest(
    worker_statuses: Iterable[WorkerStatus], waiting: int, jobs: int, now_ms: int
) -> tuple[ThroughputDiagnosis, str | None]:  # fmt: skip
    """The gravest reason why a workload is no faster, and its worker. `waiting` of its `jobs` have none."""
    if waiting or not jobs:
        return without_worker(waiting, jobs), None
    paces = {
        worker: pace(_facts(status, job_statuses, now_ms), status.targets)
        for worker, status, job_statuses in worker_statuses
    }
    worst = gravest(paces.values())
    if worst is None:
        return without_worker(jobs, jobs), None
    return worst, next(worker for worker, diagnosis in paces.items() if diagnosis is worst)


def workload_flow(
    definition: JsonObject, worker_statuses: Sequence[WorkerStatus], waiting: int, jobs: int, now_ms: int
) -> WorkloadFlow:
    worst, worker = slowest(worker_statuses, waiting, jobs, now_ms)
    return WorkloadFlow(
        bound=str(worst.bound),
        why=worst.why,
        worker=worker,
        workers=[
            _worker(name, status, job_statuses, now_ms) for name, status, job_statuses in worker_statuses
        ],
        receivers=[
            _receiver(name, target) for name, status, _ in worker_statuses for target in status.targets
        ],
        head_of_line=_head_of_line(definition, worker_statuses),
    )


def _facts(status: WorkloadStatus, jobs: Sequence[JobStatus], now_ms: int) -> FlowReport:
    running = [job for job in jobs if job.state != "paused"]
    troubles = {(job.trouble_from, job.trouble) for job in jobs if job.state == "paused" and job.trouble}
    resting = sorted(words.removeprefix(RESTS) for source, words in troubles if source == TroubleSource.PAUSE)
    full = [job for job in running if job.used >= job.capacity and not job.ready]
    stuck = [job for job in full if job.unfinished <= STUCK_SHARE * job.used]
    cramped = [job for job in full if job.unfinished > STUCK_SHARE * job.used and _at_work(job)]
    dues = [job.due_ms for job in running if job.due_ms >= 0]
    rates = [
        ("messages", status.rate_messages, status.tokens_messages),
        ("bytes", status.rate_bytes, status.tokens_bytes),
    ]
    return FlowReport(
        blocked=status.blocked,
        jobs=len(jobs),
        paused=len(jobs) - len(running),
        resting=resting,
        obscured=len(troubles) > len(resting),
        stuck=[_place(job) for job in stuck],
        cramped=[_place(job) for job in cramped],
        ready=sum(job.ready for job in running),
        behind=sum(job.behind for job in running),
        postponed=sum(job.postponed for job in running),
        due_in_s=(min(dues) - now_ms) / 1000 if dues else None,
        backoff=sum(job.backoff for job in running),
        outgoing=sum(job.outgoing for job in running),
        not_taken=sorted({job.trouble for job in running if job.trouble_from == TroubleSource.COPY}),
        unread=_unread(running),
        not_fetched=sorted(
            {
                job.trouble.removeprefix(FETCH_TROUBLE)
                for job in running
                if job.trouble_from == TroubleSource.FETCH
            }
        ),
        catching_up=sum(job.state == "catching-up" for job in running),
        budget_used=status.budget_used,
        cpu_throttled=status.cpu_throttled,
        rates=[RateShare(unit, per_s, tokens) for unit, per_s, tokens in rates if per_s],
        throttles=sorted({str(one) for job in running for one in job.throttles}),
        withheld=status.withheld,
        failures="; ".join(part for part in (spelled(status.withheld_by), status.withheld_last) if part),
    )


def _at_work(job: JobStatus) -> bool:
    """Most unfinished messages are with the receiver, or will return to it."""
    return job.in_flight + job.backoff > job.behind + job.postponed


def _unread(jobs: Sequence[JobStatus]) -> int | None:
    """Unread messages; None: unknown. Jobs with postponed messages do not count: these stop their reading."""
    free = [job for job in jobs if not job.postponed]
    if any(job.high_watermark < 0 or job.fetched < 0 for job in free):
        return None
    return sum(max(0, job.high_watermark - job.fetched) for job in free)


def _place(job: JobStatus) -> str:
    _, _, topic, partition = job.job.split(":")
    return f"{topic}-{partition} at offset {job.committed}"


def _worker(worker: str, status: WorkloadStatus, jobs: Sequence[JobStatus], now_ms: int) -> WorkerFlow:
    flow = _facts(status, jobs, now_ms)
    diagnosis = pace(flow, status.targets)
    rates = {rate.unit: rate for rate in flow.rates}
    messages, size = rates.get("messages"), rates.get("bytes")
    states = [job.state for job in jobs]
    return WorkerFlow(
        worker=worker,
        bound=str(diagnosis.bound),
        why=diagnosis.why,
        blocked=status.blocked or None,
        jobs=flow.jobs,
        paused=flow.paused,
        catching_up=states.count("catching-up"),
        emptying=states.count("emptying"),
        in_flight=status.in_flight,
        held=status.held,
        ready=flow.ready,
        behind=flow.behind,
        postponed=flow.postponed,
        due_in_s=flow.due_in_s,
        backoff=flow.backoff,
        outgoing=flow.outgoing,
        unread=flow.unread,
        messages_per_s=messages.per_s if messages else None,
        messages_short=messages.short if messages else None,
        bytes_per_s=size.per_s if size else None,
        bytes_short=size.short if size else None,
        buffered_bytes=sum(job.buffered_bytes for job in jobs),
        budget_used=status.budget_used,
        cpu_throttled=status.cpu_throttled,
        stashed=status.stashed,
        withheld=status.withheld,
        withheld_by=status.withheld_by,
        withheld_last=status.withheld_last or None,
        letters=None if status.letters < 0 else status.letters,
        throttles=list(flow.throttles),
    )


def _receiver(worker: str, target: TargetStatus) -> Receiver:
    is_adaptive = target.ceiling > 0
    return Receiver(
        worker=worker,
        address=target.address,
        contract=target.contract,
        breaker=target.breaker,
        why_open=target.why_open or None,
        probe_in_s=_seconds(target.probe_in_ms),
        limit=target.limit,
        allowed=target.limit if target.allowed < 0 else target.allowed,
        ceiling=target.ceiling if is_adaptive else None,
        phase=target.phase if is_adaptive else None,
        in_flight=target.in_flight,
        credit=None if target.credit < 0 else target.credit,
        held=target.held,
        timeout_s=target.timeout_ms / 1000,
        base_timeout_s=(target.base_timeout_ms or target.timeout_ms) / 1000,
        health=target.health or None,
        calls=target.calls,
        failed=target.failed,
        failed_share=_share(target.failed, target.calls),
        endpoints=[_endpoint(endpoint, target.answered) for endpoint in target.endpoints],
        more_endpoints=target.more_endpoints,
        unresolved=target.unresolved or None,
    )


def _endpoint(endpoint: EndpointStatus, answered: int) -> Endpoint:
    return Endpoint(
        name=endpoint.name,
        local=endpoint.local,
        state=endpoint.state,
        for_s=endpoint.for_s,
        why=endpoint.why or None,
        contract=endpoint.contract,
        in_flight=endpoint.in_flight,
        limit=endpoint.limit,
        credit=None if endpoint.credit < 0 else endpoint.credit,
        health=endpoint.health or None,
        calls=endpoint.calls,
        failed_share=_share(endpoint.failed, endpoint.calls),
        latency_ms=None if endpoint.latency_ms < 0 else endpoint.latency_ms,
        share=_share(endpoint.calls, answered),
    )


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _seconds(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000


def _head_of_line(definition: JsonObject, worker_statuses: Sequence[WorkerStatus]) -> HeadOfLine:
    candidates = [
        Candidate(worker=worker, **msgspec.structs.asdict(head))
        for worker, status, _ in worker_statuses
        for head in status.heads
    ]
    decisions = [
        Decision(worker=worker, **msgspec.structs.asdict(decision))
        for worker, status, _ in worker_statuses
        for decision in status.decisions
    ]
    candidates.sort(key=lambda head: -1.0 if head.age_s is None else head.age_s, reverse=True)
    decisions.sort(key=lambda decision: decision.at_ms, reverse=True)
    limits = _head_limits(definition)
    return HeadOfLine(
        after_s=limits.after_s,
        patience_s=limits.patience_s,
        use_threshold=limits.full_share,
        unfinished_threshold=limits.unfinished_share,
        stashed=sum(status.stashed for _, status, _ in worker_statuses),
        candidates=candidates,
        more_candidates=sum(status.more_heads for _, status, _ in worker_statuses),
        decisions=decisions[:MAX_DECISIONS],
    )


def _head_limits(definition: JsonObject) -> HeadLimits:
    """The limits in force, also of a definition by a newer worker."""
    try:
        return Workload.from_wire(definition).head_limits()
    except ValidationError:
        return HeadLimits(HEAD_OF_LINE_S)
