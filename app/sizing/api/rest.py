"""Recommended sizes of workloads and fleets by REST, from `app.sizing.recommendation`.

Rules
1. Every worker answers alike, because all figures come from heartbeats.
2. Partitions are recommended for the main topic, by its arrivals. Calls in flight and workers also include
   the retry tiers, whose messages are delivered again.
3. Messages younger than `spec.delay` wait on purpose, and those of the last second are on their way,
   because commits come twice a second. Neither counts as lag.
4. Each isolation group is a fleet of its own. Its workers count as equal: with the median of their
   capacities.
5. A throttled worker's load is no more than its quota, whatever its jobs need. So no fleet with one shrinks.
6. A job without a measurement gets an estimate from its siblings; the answer has the number of such jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TypedDict

import msgspec
from aiohttp import web

from app.controllog.codec import JobStatus
from app.controllog.events import WorkloadPut
from app.dispatch.definition import Workload
from app.kernel.clock import now_ms
from app.kernel.load import DEFAULT_WORKER, THROTTLED, Load, vector, with_estimates
from app.placement.inputs import members_of
from app.placement.model.fleet import DIMENSIONS
from app.placement.model.plan import Member
from app.sizing.recommendation import (
    Figure,
    Measured,
    Recommendation,
    recommend,
    recommend_fleet,
    recommend_partitions,
)
from app.web.http.context import ApiContext
from app.web.http.responses import json_response, paged
from app.web.http.route_docs import PAGE, described
from app.worker.api.overview import ASLEEP, JobsOverview, lag_messages

FLOWING_S = 1.0  # rule 3


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended number, the present one, and the reason for the recommendation. Null: not known."""

    value: int | None
    now: int | None
    why: str


class FleetSize(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of an isolation group ("": those without one).

    `load_ratio` is the load of all jobs over the capacity of all workers, in the `fullest` dimension; null
    without workers. `load` is the load of all `jobs`, of which `estimated` were not measured yet;
    `capacity` is one worker's.
    """

    group: str
    workers: Now
    load_ratio: float | None
    fullest: str | None
    load: Load
    capacity: Load
    jobs: int
    estimated: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements behind a recommendation; null: not measured.

    `rate_per_s` is of the main topic, `retries_per_s` of the retry tiers. `partition_ceiling_per_s` is the
    most that one partition carried at its limit.
    """

    rate_per_s: float | None
    retries_per_s: float | None
    latency_ms: float | None
    lag_messages: int | None
    partition_ceiling_per_s: float | None
    load: Load | None


class WorkloadSize(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended size of a workload. `hibernated` says why it sleeps; null: it does not."""

    key: str
    group: str
    hibernated: str | None
    partitions: Now
    in_flight: Now
    workers: Now
    measured: Rates


class Sizes(TypedDict):
    """Every fleet, and a page of the workloads."""

    fleets: list[FleetSize]
    items: list[WorkloadSize]
    next: str | None


class SizeView:
    """Sizes at one moment; `workload` gives definitions."""

    def __init__(self, jobs: JobsOverview, workload: Callable[[str], Workload | None]) -> None:
        self._jobs = jobs
        self._workload = workload
        self._able: dict[str, list[Member]] = {}
        self._throttled = {worker: beat.cpu_throttled for worker, beat in jobs.live.items()}
        for member in members_of(jobs.state, jobs.live):
            if not member.draining:
                self._able.setdefault(member.group, []).append(member)
        self._capacities = {group: _median(members) for group, members in self._able.items()}

    @property
    def keys(self) -> list[str]:
        """Every workload."""
        return sorted(self._jobs.state.workloads)

    def workload(self, put: WorkloadPut) -> WorkloadSize:
        """One workload's size."""
        defined, jobs = self._workload(put.key), self._jobs.statuses(put.key)
        hibernated = self._jobs.hibernated(put, jobs)
        topic = put.key.rpartition("/")[2]
        main, rest = list[JobStatus](), list[JobStatus]()
        for job in jobs:
            (main if job.job.split(":")[2] == topic else rest).append(job)
        measured = self._rates(put.key, defined, main, rest)
        group = _group_of(defined)
        capacity = self._capacities.get(group, DEFAULT_WORKER)
        made = _recommend(measured, len(main), len(jobs), _is_ordered(defined), capacity)
        if hibernated is not None:
            sleeps = Figure(0, f"{ASLEEP}: {hibernated}")
            made = Recommendation(Figure(len(main) or None, sleeps.why), sleeps, sleeps)
        limits = [of.limit for _, of in self._jobs.receivers(put.key)]
        owners = {self._jobs.state.assignments[job.job].worker for job in jobs} - {""}
        return WorkloadSize(
            key=put.key,
            group=group,
            hibernated=hibernated,
            partitions=_now(made.partitions, len(main) or None),
            in_flight=_now(made.in_flight, sum(limits) if limits else None),
            workers=_now(made.workers, len(owners)),
            measured=measured,
        )

    def fleets(self) -> list[FleetSize]:
        """Every isolation group with workers or jobs."""
        jobs: dict[str, list[JobStatus]] = {group: [] for group in self._able}
        for key in self.keys:
            group = _group_of(self._workload(key))
            awake = [job for job in self._jobs.statuses(key) if job.state != ASLEEP]
            jobs.setdefault(group, []).extend(awake)
        for name in self._jobs.state.routes:
            jobs.setdefault("", []).extend(self._jobs.statuses(name))  # routes have no isolation group
        return [self._fleet(group, jobs[group]) for group in sorted(jobs)]

    def _fleet(self, group: str, jobs: Sequence[JobStatus]) -> FleetSize:
        known = {job.job: job.load for job in jobs if job.load is not None}
        loads = with_estimates([job.job for job in jobs], known).values()
        members, capacity = self._able.get(group, []), self._capacities.get(group, DEFAULT_WORKER)
        figure, estimated = recommend_fleet(loads, capacity), len(jobs) - len(known)
        if estimated:
            figure = Figure(figure.value, f"{figure.why}; {estimated} of {len(jobs)} jobs are estimated")
        if throttled := sum(self._throttled[member.worker] >= THROTTLED for member in members):
            why = (
                f"{figure.why}; CPU quotas throttle {throttled} of {len(members)} workers, so none should go"
            )
            figure = Figure(max(figure.value or 0, len(members)), why)
        total = _sum(loads)
        shares = [
            amount / have
            for amount, have in zip(
                vector(total) if jobs else (0.0, 0.0, 0.0),
                vector(_sum(member.capacity for member in members)),
                strict=True,
            )
        ]
        fullest = max(range(3), key=shares.__getitem__)
        return FleetSize(
            group=group,
            workers=_now(figure, len(members)),
            load_ratio=round(shares[fullest], 4) if members else None,
            fullest=DIMENSIONS[fullest] if members else None,
            load=total,
            capacity=capacity,
            jobs=len(jobs),
            estimated=estimated,
        )

    def _rates(
        self, key: str, defined: Workload | None, main: Sequence[JobStatus], rest: Sequence[JobStatus]
    ) -> Rates:
        rate, jobs = _total(job.arriving for job in main), [*main, *rest]
        lags = [lag_messages(job) for job in main]
        lag = None if not lags or None in lags else sum(one for one in lags if one is not None)
        if lag is not None and rate is not None:
            due_s = FLOWING_S + (0.0 if defined is None else defined.spec.delay)
            lag = max(0, lag - round(rate * due_s))
        known = {job.job: job.load for job in jobs if job.load is not None}
        loads = with_estimates([job.job for job in jobs], known).values()
        return Rates(
            rate_per_s=rate,
            retries_per_s=_total(job.arriving for job in rest) if rest else 0.0,
            latency_ms=self._latency_ms(key),
            lag_messages=lag,
            partition_ceiling_per_s=max((job.ceiling for job in main if job.ceiling > 0), default=None),
            load=_sum(loads) if known else None,
        )

    def _latency_ms(self, key: str) -> float | None:
        """The mean over all workers and receivers, weighted by their recent answers."""
        latencies = [
            (max(1, target.calls), target.latency_ms)
            for _, of in self._jobs.receivers(key)
            for target in of.targets
            if target.latency_ms >= 0
        ]
        answers = sum(calls for calls, _ in latencies)
        return round(sum(calls * ms for calls, ms in latencies) / answers, 3) if latencies else None


class SizingRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes of sizes."""
        return [
            web.get("/api/v1/sizing", self.all),
            web.get("/api/v1/workloads/{group}/{topic}/sizing", self.one),
        ]

    @described(Sizes, query=PAGE)
    async def all(self, request: web.Request) -> web.Response:
        """Recommends the workers of each fleet, and every workload's size, with reasons."""
        jobs = self._overview()
        sizing = SizeView(jobs, self._api.runtime.catalog.workloads.workload)
        page = paged(sizing.keys, request)
        puts = jobs.state.workloads
        page["items"] = [msgspec.to_builtins(sizing.workload(puts[key])) for key in page["items"]]
        return json_response({"fleets": msgspec.to_builtins(sizing.fleets()), **page})

    @described(WorkloadSize, problems=(404,))
    async def one(self, request: web.Request) -> web.Response:
        """Recommends one workload's partitions, messages in flight and workers, with reasons."""
        key, jobs = self._api.workload_of(request).key, self._overview()
        sizing = SizeView(jobs, self._api.runtime.catalog.workloads.workload)
        size = sizing.workload(jobs.state.workloads[key])
        return json_response(msgspec.to_builtins(size))

    def _overview(self) -> JobsOverview:
        runtime = self._api.runtime
        live = runtime.members.live(time.monotonic())
        returned = runtime.failover.keeper.has_just_returned()
        return JobsOverview(runtime.control.view, live, now_ms(), self._api.region, returned=returned)


def _recommend(
    measured: Rates, partitions: int, jobs: int, ordered: bool, capacity: Load
) -> Recommendation:  # fmt: skip
    latency_s = None if measured.latency_ms is None else measured.latency_ms / 1000
    if not jobs:
        nothing = Figure(None, "not known: none of its partitions is assigned yet")
        return Recommendation(nothing, nothing, nothing)
    arriving = Measured(
        rate=measured.rate_per_s,
        latency_s=latency_s,
        lag_messages=measured.lag_messages,
        partitions=partitions,
        partition_ceiling=measured.partition_ceiling_per_s,
        ordered=ordered,
    )
    retries, rate = measured.retries_per_s, measured.rate_per_s
    worked_on = msgspec.structs.replace(
        arriving,
        rate=None if rate is None or retries is None else rate + retries,
        partitions=jobs,
        load=measured.load,
    )
    whole = recommend(worked_on, capacity)
    return Recommendation(recommend_partitions(arriving), whole.in_flight, whole.workers)


def _median(members: Sequence[Member]) -> Load:
    have = [member.capacity for member in members]
    return Load(
        median(one.cpu_cores for one in have),
        median(one.memory_bytes for one in have),
        median(one.network_bytes_per_s for one in have),
    )


def _group_of(defined: Workload | None) -> str:
    place = None if defined is None else defined.spec.placement
    return "" if place is None else place.group


def _is_ordered(defined: Workload | None) -> bool:
    return defined is not None and defined.spec.ordering == "partition"


def _now(figure: Figure, now: int | None) -> Now:
    return Now(value=figure.value, now=now, why=figure.why)


def _total(rates: Iterable[float]) -> float | None:
    """The sum; None for no rates, or when one is unknown (below 0)."""
    listed = list(rates)
    return round(sum(listed), 2) if listed and min(listed) >= 0 else None


def _sum(loads: Iterable[Load]) -> Load:
    cpu, memory, network = 0.0, 0.0, 0.0
    for load in loads:
        one = vector(load)
        cpu, memory, network = cpu + one[0], memory + one[1], network + one[2]
    return Load(cpu, memory, network)
