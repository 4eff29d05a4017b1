"""The console's overview, from the workers' heartbeats and the control log. Pure.

Rules
1. Unknown stays unknown (None) and never becomes 0: a lag that no worker measured is not zero.
2. `JobsOverview` reads everything once, because it runs in the loop that also pushes messages and renews
   the lease. So its cost grows with the jobs, not with workloads times jobs.
3. A status counts only from the worker that the control log names as the owner, under its epoch.
4. A workload sleeps when the log says that all its jobs were released for that, or when it may sleep and
   had no job yet. It waits for nothing, so its unknown values make no sum of the region unknown. The same
   holds for a workload that is passive here: jobs that another region left in the log do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from app.controllog.codec import Heartbeat, IncidentRecord, JobStatus, WorkloadStatus
from app.controllog.events import ALL, Assignment, RoutePut, WorkloadPut
from app.controllog.incident_log import IncidentLog, is_open
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.dispatch.model.throughput_diagnosis import ThroughputBound, ThroughputDiagnosis, hibernated, passive
from app.dispatch.view import WorkerStatus, WorkloadFlow, slowest, workload_flow
from app.failover.view import passive_why, role_fields
from app.kernel.job import JobId
from app.kernel.json_types import JsonMapping, JsonObject
from app.placement.model.plan import HIBERNATED, topic_of
from app.placement.model.round import is_gone, is_hibernated
from app.replicate.view import copying_fields, copying_sums
from app.worker.members.membership import STOPPED

ASLEEP = "hibernated"  # the state of a sleeping workload's jobs
RESTING = {ThroughputBound.HIBERNATED, ThroughputBound.PASSIVE}
COUNTS = ("in_flight", "unfinished", "delivered", "retried", "dead_lettered", "passed_over")
QUEUES = ("ready", "behind", "postponed", "backoff", "outgoing")
BREAKER_ORDER = {"closed": 0, "half-open": 1, "open": 2}
ENDED_SHOWN_S = 30.0
MAX_SHOWN_INCIDENTS = 20
MAX_SHOWN_TROUBLES = 5  # of a workload, in one line of a table


def lag_messages(status: JobStatus) -> int | None:
    """Messages between the commit and the high watermark; None when either is unknown."""
    if status.committed < 0 or status.high_watermark < 0:
        return None
    return max(0, status.high_watermark - status.committed)


def lag_s(status: JobStatus, now_ms: int) -> float | None:
    """Age of the oldest unfinished message; 0 when there is none, None when unknown."""
    if status.oldest_ms >= 0:
        return max(0.0, (now_ms - status.oldest_ms) / 1000)
    return 0.0 if lag_messages(status) == 0 else None


def partition(
    status: JobStatus, worker: str, held: Assignment | None, now_ms: int, wish: str | None = None
) -> JsonObject:
    job = JobId.parse(status.job)
    return {
        "job": status.job,
        "topic": job.topic,
        "partition": job.partition,
        "worker": worker,
        "epoch": status.epoch,
        "state": status.state,
        "committed": _known(status.committed),
        "fetched": _known(status.fetched),
        "high_watermark": _known(status.high_watermark),
        "lag_messages": lag_messages(status),
        "lag_s": lag_s(status, now_ms),
        **{name: getattr(status, name) for name in (*COUNTS, *QUEUES)},
        "due_in_s": None if status.due_ms < 0 else (status.due_ms - now_ms) / 1000,
        "tracker_used": status.used,
        "tracker_capacity": status.capacity,
        "buffered_bytes": status.buffered_bytes,
        "trouble": status.trouble,
        "reason": held.reason if held else "",
        "since_ms": held.at_ms if held else None,
        "wish": wish,
    }


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _sum(values: Iterable[float | int | None]) -> Any:
    """The sum; None without values, or when one is unknown."""
    known: list[Any] = list(values)
    return None if not known or None in known else sum(known)


class JobsOverview:
    """Every job's owner and status, by workload (rule 2).

    `region` "" knows of no other regions. `returned`: this region has just returned, and acts by no role
    yet.
    """

    __slots__ = (
        "_held",
        "_receivers",
        "_statuses",
        "_troubles",
        "live",
        "now_ms",
        "region",
        "returned",
        "state",
    )

    def __init__(
        self,
        state: ControlState,
        live: Mapping[str, Heartbeat],
        now_ms: int,
        region: str = "",
        *,
        returned: bool = False,
    ) -> None:
        self.state = state
        self.live = live
        self.now_ms = now_ms
        self.region = region
        self.returned = returned
        self._statuses: dict[str, JobStatus] = {}
        self._held: dict[str, list[str]] = {}
        self._receivers: dict[str, list[tuple[str, WorkloadStatus]]] = {}
        self._troubles = {one.key: one.why for beat in live.values() for one in beat.troubles}
        for job in state.assignments:
            self._held.setdefault(_workload_of(job), []).append(job)
        for worker, beat in live.items():
            for status in beat.jobs:
                held = state.assignments.get(status.job)
                if held is not None and held.worker == worker and held.epoch == status.epoch:
                    self._statuses[status.job] = status
            for receiver in beat.workloads:
                self._receivers.setdefault(receiver.key, []).append((worker, receiver))

    def statuses(self, key: str) -> list[JobStatus]:
        """Every job of a workload; one without a live owner waits, and its values are unknown."""
        return [self._statuses.get(job) or self._waiting(job) for job in self._jobs_of(key)]

    def _jobs_of(self, key: str) -> list[str]:
        """Jobs with or without an owner; not those of a removed retry tier, which the log keeps for the
        epoch."""
        jobs, put = self._held.get(key, []), self.state.workloads.get(key)
        if key in self.state.routes:
            return [job for job in jobs if not is_gone(self.state.assignments[job])]
        if put is None or all(self.state.assignments[job].worker for job in jobs):
            return jobs
        if self._passive_why(put):
            return [job for job in jobs if self.state.assignments[job].worker]
        try:
            workload = Workload.from_wire(put.definition)
        except ValidationError:
            return jobs
        topics = {workload.metadata.topic, *workload.retry_topics()}
        return [job for job in jobs if self.state.assignments[job].worker or job.split(":")[2] in topics]

    def _waiting(self, job: str) -> JobStatus:
        held = self.state.assignments[job]
        if is_hibernated(held):
            return JobStatus(job=job, epoch=held.epoch, state=ASLEEP)
        if not held.worker:
            trouble = f"no worker owns it: {held.reason}" if held.reason else "no worker owns it"
        elif held.worker in self.live:
            trouble = "its worker has not taken it over yet"
        else:
            trouble = "its worker is silent; the job moves within seconds"
        return JobStatus(job=job, epoch=held.epoch, state="waiting", trouble=trouble)

    def partitions(self, key: str) -> list[JsonObject]:
        """Every job of a workload for the console, by topic and partition."""
        shown = []
        for status in sorted(self.statuses(key), key=lambda status: JobId.parse(status.job)):
            held, wish = self.state.assignments[status.job], self.state.wishes.get(status.job)
            fields = partition(status, held.worker, held, self.now_ms, wish.worker if wish else None)
            shown.append(fields | copying_fields(status) if key in self.state.routes else fields)
        return shown

    def _reported_by(self, key: str, jobs: Sequence[JobStatus]) -> list[WorkerStatus]:
        """Each worker's status of the workload, with the jobs that it owns."""
        owned: dict[str, list[JobStatus]] = {}
        for job in jobs:
            owned.setdefault(self.state.assignments[job.job].worker, []).append(job)
        reports = sorted(self._receivers.get(key, ()), key=lambda entry: entry[0])
        return [(worker, status, owned.get(worker, [])) for worker, status in reports]

    def flow(self, put: WorkloadPut) -> WorkloadFlow:
        """The workload's flow: the bound of its throughput, with all the numbers."""
        jobs = self.statuses(put.key)
        reports = self._reported_by(put.key, jobs)
        flow = workload_flow(put.definition, reports, _without_owner(jobs), len(jobs), self.now_ms)
        if (known := self._beyond_workers(put, jobs)) is None:
            return flow
        return msgspec.structs.replace(flow, bound=str(known.bound), why=known.why)

    def receivers(self, key: str) -> list[tuple[str, WorkloadStatus]]:
        return self._receivers.get(key, [])

    def hibernated(self, put: WorkloadPut, jobs: Sequence[JobStatus]) -> str | None:
        """Why the workload, whose `statuses` are `jobs`, sleeps; None when it does not."""
        sleeps = self._sleeps(put, jobs)
        return None if sleeps is None else sleeps.why

    def _passive_why(self, put: WorkloadPut) -> str:
        return passive_why(self._role(put), self.region) if self.region else ""

    def _role(self, put: WorkloadPut) -> JsonObject | None:
        return role_fields(self.state, put, self.region, returned=self.returned)

    def _beyond_workers(self, put: WorkloadPut, jobs: Sequence[JobStatus]) -> ThroughputDiagnosis | None:
        """Rule 4; or why a workload has no job yet, if known."""
        if not jobs and (why := self._passive_why(put)):
            return passive(why)
        if not jobs and put.key in self._troubles:
            return ThroughputDiagnosis(ThroughputBound.WORKER, self._troubles[put.key])
        return self._sleeps(put, jobs)

    def _sleeps(self, put: WorkloadPut, jobs: Sequence[JobStatus]) -> ThroughputDiagnosis | None:
        if any(job.state != ASLEEP for job in jobs):
            return None
        if jobs:
            why = self.state.assignments[jobs[0].job].reason.removeprefix(HIBERNATED)
            return hibernated(why)
        spec = put.definition.get("spec")
        if isinstance(spec, dict) and spec.get("hibernate") and self.state.term:
            return hibernated("no message has come for it yet; it wakes with the first one")
        return None

    def workload(self, put: WorkloadPut) -> JsonObject:
        """One workload for the console; sums over its partitions and retry tiers."""
        jobs = self.statuses(put.key)
        receivers = [receiver for _, receiver in self._receivers.get(put.key, ())]
        sleeps, known = self._sleeps(put, jobs), self._beyond_workers(put, jobs)
        waiting = 0 if known else _without_owner(jobs)
        pace, _ = slowest(self._reported_by(put.key, jobs), waiting, len(jobs), self.now_ms)
        pace = known or pace
        metadata = _mapping(put.definition.get("metadata"))
        return {
            "key": put.key,
            "group": metadata.get("group"),
            "topic": metadata.get("topic"),
            "cluster": metadata.get("cluster"),
            "owner": metadata.get("owner", ""),
            "etag": put.etag,
            "partitions": len(jobs),
            "waiting": waiting,
            "bound": str(pace.bound),
            "why": pace.why,
            "hibernated": sleeps.why if sleeps else None,
            "role": self._role(put),
            **self._lags(jobs),
            **{name: sum(getattr(job, name) for job in jobs) for name in COUNTS},
            "stashed": sum(receiver.stashed for receiver in receivers),
            "breaker": _worst(receivers),
            "held": sum(receiver.held for receiver in receivers),
            "troubles": [*filter(None, [self._troubles.get(put.key)]), *_troubles(jobs)],
        }

    def _lags(self, jobs: Sequence[JobStatus]) -> JsonObject:
        ages: list[Any] = [lag_s(job, self.now_ms) for job in jobs]
        return {
            "lag_messages": _sum(lag_messages(job) for job in jobs),
            "lag_s": None if not ages or None in ages else max(ages),
            "lag_s_at_least": max((age for age in ages if age is not None), default=None),
        }

    def route(self, put: RoutePut) -> JsonObject:
        jobs = self.statuses(put.key)
        metadata, spec = (_mapping(put.definition.get(part)) for part in ("metadata", "spec"))
        return {
            "name": put.key,
            "from": spec.get("from"),
            "to": spec.get("to"),
            "owner": metadata.get("owner", ""),
            "etag": put.etag,
            "topics": len({topic_of(job.job) for job in jobs}),
            "partitions": len(jobs),
            "waiting": _without_owner(jobs),
            "paused": ALL in self.state.paused.get(put.key, ()),
            **self._lags(jobs),
            "copied": sum(job.delivered for job in jobs),
            **copying_sums(jobs),
            "unfinished": sum(job.unfinished for job in jobs),
            "troubles": _troubles(jobs),
        }


def _mapping(value: object) -> JsonMapping:
    return value if isinstance(value, Mapping) else {}


def _without_owner(jobs: Iterable[JobStatus]) -> int:
    return sum(job.state in ("waiting", ASLEEP) for job in jobs)


def _workload_of(job: str) -> str:
    # Not JobId.parse, which checks every character: this runs for every job of the region.
    return job.split(":", 2)[1]


def _troubles(jobs: Iterable[JobStatus]) -> list[str]:
    found = sorted({job.trouble for job in jobs if job.trouble})
    more = len(found) - MAX_SHOWN_TROUBLES
    return found[:MAX_SHOWN_TROUBLES] + ([f"and {more} more"] if more > 0 else [])


def _worst(receivers: Sequence[WorkloadStatus]) -> str:
    states = [state for r in receivers for state in (r.breaker, *(target.breaker for target in r.targets))]
    return max(states, key=lambda b: BREAKER_ORDER.get(b, 3), default="unknown")


def workers(
    state: ControlState, heard: Mapping[str, tuple[float, Heartbeat]], live: Iterable[str], now_s: float
) -> list[JsonObject]:
    """Every worker with a recent heartbeat: also the dead ones, and for `ENDED_SHOWN_S` those that said
    goodbye."""
    alive = set(live)
    return [
        {
            "worker": worker,
            "url": beat.url,
            "state": _state(worker, beat, worker in alive, worker in state.draining),
            "silent_s": round(now_s - heard_s, 1),
            "started_ms": beat.started_ms,
            "jobs": len(beat.jobs) if worker in alive else 0,
            "leader": worker == state.leader and worker in alive,
            "group": beat.group,
            "capacity": msgspec.to_builtins(beat.capacity),
            "used": msgspec.to_builtins(beat.used),
            "cpu_throttled": beat.cpu_throttled,
            "clock_ahead_s": None if beat.clock_ahead_s is None else round(beat.clock_ahead_s, 1),
        }
        for worker, (heard_s, beat) in sorted(heard.items())
        if beat.state != STOPPED or now_s - heard_s < ENDED_SHOWN_S
    ]


def _state(worker: str, beat: Heartbeat, lives: bool, drained: bool) -> str:
    if not lives and beat.state != "stopped":
        return "dead"
    return "drained" if drained and beat.state == "running" else beat.state


def overview(
    region: str,
    state: ControlState,
    heard: Mapping[str, tuple[float, Heartbeat]],
    live: Mapping[str, Heartbeat],
    incidents: IncidentLog,
    now_ms: int,
    now_s: float,
    *,
    returned: bool = False,
) -> JsonObject:
    jobs = JobsOverview(state, live, now_ms, region, returned=returned)
    listed = [jobs.workload(put) for _, put in sorted(state.workloads.items())]
    routes = [jobs.route(put) for _, put in sorted(state.routes.items())]
    awake = [shown for shown in listed if shown["bound"] not in RESTING]
    return {
        "region": region,
        "at_ms": now_ms,
        "term": state.term,
        "leader": state.leader if state.leader in live else None,
        "workers": workers(state, heard, live, now_s),
        "workloads": listed,
        "routes": routes,
        "totals": {
            "workloads": len(listed),
            "routes": len(routes),
            "workers": len(live),
            "lag_messages": _sum(w["lag_messages"] for w in awake) if awake else 0,
            "in_flight": sum(w["in_flight"] for w in listed),
            "dead_lettered": sum(w["dead_lettered"] for w in listed),
            "alerts_firing": sum(one.state == "firing" for one in state.alert_states.states.values()),
        },
        "incidents": [incident(record) for record in incidents.newest_first(live)[:MAX_SHOWN_INCIDENTS]],
    }


def incident(record: IncidentRecord) -> JsonObject:
    """An incident of `IncidentLog.newest_first`, for the console."""
    return msgspec.structs.asdict(record) | {"open": is_open(record), "ended_ms": record.ended_ms or None}
