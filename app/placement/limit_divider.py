"""Divides the limits of workloads and routes among the workers: the leader's part, and every worker's.

`app.kernel.limit_shares` has the rules. The leader reads the workers' needs in heartbeats and writes
`LimitShares` into the control log; each worker reads its share there. Without a record (an older leader),
a worker's share of a limit is its share of the jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from app.audit.definition import AUDIT_JOBS
from app.controllog.codec import Heartbeat
from app.controllog.events import Assignment, LimitShares
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.kernel.clock import now_ms
from app.kernel.limit_shares import (
    WHOLE,
    GrantedShare,
    LimitDemand,
    LimitGrant,
    LimitNeed,
    WorkerShare,
    aims,
    is_worth,
    scaled,
    step,
)
from app.placement.model.plan import name_of, topic_of
from app.replicate.definition import RouteDefinition

DIVISION_INTERVAL_S = 0.5  # the interval of heartbeats
MIN_CHANGE_INTERVAL_S = 2.0  # between two changes of the same limits
SLOT_TURN_S = 5.0  # with fewer slots than workers, each worker's turn

Jobs = dict[str, Counter[str]]  # key -> worker -> number of jobs


def jobs_of(assignments: Collection[Assignment]) -> Jobs:
    """The number of jobs of each workload and route, by worker."""
    found: Jobs = {}
    for held in assignments:
        if held.worker and not held.job.startswith(AUDIT_JOBS):
            found.setdefault(name_of(held.job), Counter())[held.worker] += 1
    return found


def is_of_own_topic(job: str) -> bool:
    """Whether the job reads its workload's own topic, not a retry topic."""
    return name_of(job).rpartition("/")[2] == topic_of(job)


def shares_of(view: ControlState, worker: str) -> dict[str, WorkerShare]:
    """The shares of `worker` in the limits of each workload and route that it has jobs of."""
    here = {name_of(job) for job, held in view.assignments.items() if held.worker == worker}
    of_here = [held for job, held in view.assignments.items() if name_of(job) in here] if here else []
    jobs = jobs_of(of_here)
    of_topics = jobs_of([one for one in of_here if is_of_own_topic(one.job)])
    shares = {}
    for key, owners in jobs.items():
        part = owners[worker] / owners.total()
        mains = of_topics.get(key, owners)
        topic = mains[worker] / mains.total()
        stands = view.limits.get(key)
        if stands is None:
            shares[key] = WorkerShare(part, part, topic=topic)
            continue
        grant = stands[0].grants.get(worker)
        rate, slots = (0.0, 0) if grant is None else (grant.parts / WHOLE, grant.slots)
        shares[key] = WorkerShare(part, rate, slots, max(1, stands[0].slots), topic)
    return shares


class LimitDivider:
    """The leader's part. `workload` and `route` give the current definitions."""

    def __init__(
        self, workload: Callable[[str], Workload | None], route: Callable[[str], RouteDefinition | None]
    ) -> None:
        self._workload = workload
        self._route = route
        self._divided_s = float("-inf")
        self._not_before_s: dict[str, float] = {}
        self._jobs: tuple[int, Jobs] = -1, {}

    def divide(
        self, view: ControlState, live: Mapping[str, Heartbeat], is_gone: Callable[[str], bool],
        made: Collection[Assignment], now_s: float,
    ) -> Iterator[LimitShares]:  # fmt: skip
        """The records to write now.

        Args:
            is_gone: Whether a worker is certainly dead, so that its lease is over.
            made: Assignments that the leader writes after these records.
            now_s: Monotonic seconds.
        """
        if now_s - self._divided_s < DIVISION_INTERVAL_S and not made:
            return
        self._divided_s = now_s
        if self._jobs[0] != view.next_offset:
            self._jobs = view.next_offset, jobs_of(view.assignments.values())
        begin = jobs_of(made)
        view.drop_soon(
            f"limit-shares/{key}"
            for key in view.limits
            if key not in view.workloads and key not in view.routes
        )
        needs = {(worker, need.key): need for worker, beat in live.items() for need in beat.needs}
        for key in self._jobs[1].keys() | begin.keys():
            if self._not_before_s.get(key, now_s) > now_s or (slots := self._slots(key)) is None:
                continue
            owners = {w for w in {*self._jobs[1].get(key, ()), *begin.get(key, ())} if not is_gone(w)}
            wanted = {worker: needs.get((worker, key), LimitNeed(key)) for worker in sorted(owners)}
            event = self._divide(view, key, slots, wanted, live, is_gone, int(now_s // SLOT_TURN_S))
            if event is not None:
                yield event
                unread = any(
                    one.most_parts > one.parts or one.most_slots > one.slots for one in event.grants.values()
                )
                self._not_before_s[key] = now_s if unread else now_s + MIN_CHANGE_INTERVAL_S
        self._not_before_s = {key: at_s for key, at_s in self._not_before_s.items() if at_s > now_s}

    def _slots(self, key: str) -> int | None:
        """The calls in flight to divide, 0 when there are only rates; None: no limits."""
        workload = self._workload(key)
        if workload is not None:
            flow = workload.spec.flow
            most = flow.max_inflight if isinstance(flow.max_inflight, int) else 0
            return most if flow.is_limited else None
        route = self._route(key)
        return 0 if route is not None and route.spec.limits.is_limited else None

    def _divide(
        self, view: ControlState, key: str, slots: int, needs: Mapping[str, LimitNeed],
        live: Mapping[str, Heartbeat], is_gone: Callable[[str], bool], turn: int,
    ) -> LimitShares | None:  # fmt: skip
        parts_held, slots_held = self._held(view, key, slots, live, is_gone)
        by_rate = {
            worker: LimitDemand(round(min(1.0, max(0.0, need.used)) * WHOLE), need.wants, need.weight)
            for worker, need in needs.items()
        }
        by_slots = {
            worker: LimitDemand(need.in_flight, need.wants_slots, need.weight)
            for worker, need in needs.items()
        }
        parts_aimed, slots_aimed = aims(WHOLE, by_rate), aims(slots, by_slots, turn)
        if (
            key in view.limits
            and not is_worth(WHOLE, by_rate, parts_aimed, parts_held)
            and not (slots and is_worth(slots, by_slots, slots_aimed, slots_held))
        ):
            return None
        parts_next, slots_next = step(WHOLE, parts_aimed, parts_held), step(slots, slots_aimed, slots_held)
        grants = {}
        for worker in sorted(parts_next | slots_next):
            part, slot = parts_next.get(worker, GrantedShare()), slots_next.get(worker, GrantedShare())
            grants[worker] = LimitGrant(part.now, part.most, slot.now, slot.most)
        stands = view.limits.get(key)
        if stands is not None and stands[0].slots == slots and stands[0].grants == grants:
            return None
        number = 1 if stands is None else stands[0].number + 1
        return LimitShares(at_ms=now_ms(), key=key, term=view.term, number=number, slots=slots, grants=grants)

    def _held(
        self, view: ControlState, key: str, slots: int, live: Mapping[str, Heartbeat],
        is_gone: Callable[[str], bool],
    ) -> tuple[dict[str, GrantedShare], dict[str, GrantedShare]]:  # fmt: skip
        """The shares of the rate and the slots that workers may use now, without dead workers (rule 2)."""
        stands = view.limits.get(key)
        if stands is None:
            jobs = self._jobs[1].get(key, Counter())
            by_jobs = {
                w: WorkerShare(rate=count / jobs.total()) for w, count in jobs.items() if not is_gone(w)
            }
            parts = {w: round(one.rate * WHOLE) for w, one in by_jobs.items()}
            flying = {w: one.in_flight(slots) if slots else 0 for w, one in by_jobs.items()}
            return {w: GrantedShare(n, n) for w, n in parts.items()}, {
                w: GrantedShare(n, n) for w, n in flying.items()
            }
        record, behind = stands
        parts_held, slots_held = {}, {}
        for worker, grant in record.grants.items():
            if is_gone(worker):
                continue
            beat = live.get(worker)
            has_read = beat is not None and beat.read >= behind
            needs = () if beat is None else beat.needs
            in_flight = next((need.in_flight for need in needs if need.key == key), 0)
            parts_held[worker] = GrantedShare(grant.parts, grant.parts if has_read else grant.most_parts)
            now = scaled(grant.slots, record.slots, slots)
            most = now if has_read else scaled(grant.most_slots, record.slots, slots)
            slots_held[worker] = GrantedShare(now, max(now, most, in_flight if slots else 0))
        return parts_held, slots_held
