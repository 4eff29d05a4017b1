"""One round of placement: carries out the rules of `app.placement.model.bin_packing` in their order.
`plan.py` has the types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.controllog.events import Assignment
from app.kernel.load import DEFAULT_JOB, DEFAULT_WORKER, Load, Vector, capacity_or_default, vector
from app.placement.model.fleet import ROUNDING, WorkerBins, WorkerSlot, mean_of, percent
from app.placement.model.plan import (
    HIBERNATED,
    UNREAD,
    Member,
    Notice,
    PlacementDecision,
    PlacementRules,
    RoundPlan,
    name_of,
    topic_of,
)

GONE = "the job is gone"


def is_gone(held: Assignment) -> bool:
    """Whether the job was released because it does not exist any more; the record keeps its epoch only."""
    return not held.worker and held.reason.startswith(GONE)


def is_hibernated(held: Assignment) -> bool:
    """Whether the job was released because its workload is idle and sleeps."""
    return not held.worker and held.reason.startswith(HIBERNATED)


def _why_homeless(held: Assignment) -> str:
    """The reason of its release, which is the reason for its next worker."""
    if not held.reason or held.reason.startswith((GONE, HIBERNATED)):
        return "it had no owner"
    return held.reason


class PlacementRound:
    """One call of `plan`: reads the inputs once, then decides in the order of the rules."""

    # more than eight: what a round knows at its start, from its only caller `plan`
    def __init__(
        self,
        jobs: Iterable[str],
        members: Iterable[Member],
        assignments: Mapping[str, Assignment],
        loads: Mapping[str, Load],
        groups: Mapping[str, str],
        wishes: Mapping[str, str],
        planned: Mapping[str, PlacementDecision],
        asleep: Mapping[str, str],
        rules: PlacementRules,
    ) -> None:
        self.wanted = set(jobs)
        if asleep:
            self.wanted = {job for job in self.wanted if name_of(job) not in asleep}
        self.live = {member.worker: member for member in members}
        self.assignments, self.loads, self.groups = assignments, loads, groups
        self.wishes, self.planned, self.asleep, self.rules = wishes, planned, asleep, rules
        self.high = rules.high + ROUNDING
        self.slots: dict[str, WorkerSlot] = {}
        self.bins: dict[str, WorkerBins] = {}
        for name, member in sorted(self.live.items()):
            if not member.draining:
                slot = WorkerSlot(name, capacity_or_default(member.capacity), member.group)
                self.slots[name] = self.bins.setdefault(member.group, WorkerBins(rules.fill)).slots[name] = (
                    slot
                )
        self.mean: Vector = mean_of(
            [slot.capacity for slot in self.slots.values()] or [vector(DEFAULT_WORKER)]
        )
        self.hot_from = tuple(rules.hot * mean for mean in self.mean)
        self.grouped = bool(groups) or any(self.bins)
        self.settled: dict[str, list[str]] = {name: [] for name in self.slots}
        self.homeless: list[tuple[str, str]] = []
        self.arriving: list[str] = []
        self.misplaced: list[str] = []
        self.decisions: list[PlacementDecision] = []
        self.notices: list[Notice] = []
        self.left = max(rules.moves, int(rules.region_share * len(self.wanted)))

    def run(self) -> RoundPlan:
        """The plan of the round."""
        self._read()
        for bins in self.bins.values():
            bins.open()
        self._place_homeless()
        self._expect_arriving()
        self._fulfil_wishes()
        self._regroup()
        self._relieve_all()
        if self.rules.even:
            for bins in self.bins.values():
                self._level(bins)
        return RoundPlan(
            self.decisions, self.notices, {name: slot.level for name, slot in self.slots.items()}
        )

    # -- what there is ------------------------------------------------------------------------------

    def _read(self) -> None:
        wanted, live, slots, loads, grouped = self.wanted, self.live, self.slots, self.loads, self.grouped
        hot_cpu, hot_memory, hot_network = self.hot_from
        housed, stranded, leaving = 0, dict[str, list[str]](), list[tuple[str, str]]()
        for job in sorted(self.assignments):
            held = self.assignments[job]
            owner = held.worker
            if not owner:
                continue
            slot = slots.get(owner)
            if job not in wanted:
                self._end(job, held)
            elif slot is None and owner not in live:
                housed += 1
                self.homeless.append((job, f"{owner} is dead"))
            elif held.release:
                housed += 1
                self.arriving.append(job)  # it counts for its next worker, not for this one
            elif slot is None and self._group(job) not in self.bins:
                housed += 1
                stranded.setdefault(owner, []).append(job)
            elif slot is None:
                housed += 1
                leaving.append((job, owner))
            else:
                housed += 1
                size = vector(loads.get(job, DEFAULT_JOB))
                slot.add(size)
                if size[0] >= hot_cpu or size[1] >= hot_memory or size[2] >= hot_network:
                    slot.hot.add(topic_of(job))
                if grouped and self._group(job) != slot.group:
                    self.misplaced.append(job)
                else:
                    self.settled[owner].append(job)
            if held.release and owner in live:
                self.left -= 1
                if slot is not None:
                    slot.leaving += 1
        for job, owner in leaving[: max(0, self.left)]:  # the rest in the next rounds
            self.left -= 1
            self.decisions.append(PlacementDecision(job, owner, release=True, reason=f"{owner} is draining"))
        for owner, jobs in stranded.items():
            self._report(
                "no-worker",
                owner,
                f"{owner} is draining or silent, and keeps {len(jobs)} jobs, {jobs[0]} among them: "
                "no other worker may run them",
                "start a worker of their isolation group",
            )
        if housed < len(wanted):
            assignments = self.assignments
            self.homeless += [
                (job, "it had no owner" if found is None else _why_homeless(found))
                for job in wanted
                if (found := assignments.get(job)) is None or not found.worker
            ]

    def _end(self, job: str, held: Assignment) -> None:
        """Ends a job that should not run."""
        why = self.asleep.get(name_of(job)) if self.asleep else None
        why = GONE if why is None else f"{HIBERNATED}{why}"
        if held.worker not in self.live:
            self.decisions.append(
                PlacementDecision(job, "", release=False, reason=f"{why}; {held.worker} is dead")
            )
        elif not held.release:
            self.decisions.append(PlacementDecision(job, held.worker, release=True, reason=why))

    def _report(self, kind: str, subject: str, message: str, remedy: str) -> None:
        self.notices.append(Notice(kind, subject, message, remedy))

    def _size(self, job: str) -> Vector:
        return vector(self.loads.get(job, DEFAULT_JOB))

    def _hot(self, job: str, size: Vector) -> str:
        """The job's topic when the job is a hot partition, else ""."""
        hot = self.hot_from
        return topic_of(job) if size[0] >= hot[0] or size[1] >= hot[1] or size[2] >= hot[2] else ""

    def _group(self, job: str) -> str:
        return self.groups.get(name_of(job), "") if self.grouped else ""

    def _able(self, job: str, worker: str) -> WorkerSlot | None:
        """`worker`, when it may get the job."""
        slot = self.slots.get(worker)
        return slot if slot is not None and slot.group == self._group(job) else None

    def _is_pinned(self, job: str) -> bool:
        """Whether an operator wants the job on a worker that may run it."""
        wish = self.wishes.get(job)
        return wish is not None and self._able(job, wish) is not None

    # -- jobs without a worker ----------------------------------------------------------------------

    def _place_homeless(self) -> None:
        crowded, lost = dict[str, int](), dict[str, list[str]]()
        loads, grouped, hot_from, decisions = self.loads, self.grouped, self.rules.hot, self.decisions
        cpu, memory, network = self.mean
        homeless = self.homeless
        homeless.sort()
        sizes = [vector(loads.get(job, DEFAULT_JOB)) for job, _ in homeless]
        levels = [max(size[0] / cpu, size[1] / memory, size[2] / network) for size in sizes]
        has_requests = bool(self.wishes or self.planned)
        no_room = f"no worker has room for it below {percent(self.rules.fill)}"
        until = len(decisions) + self.rules.placements
        for at in sorted(range(len(homeless)), key=levels.__getitem__, reverse=True):
            if len(decisions) >= until:
                break
            job, why = homeless[at]
            size = sizes[at]
            hot = topic_of(job) if levels[at] >= hot_from else ""
            group = self._group(job) if grouped else ""
            bins = self.bins.get(group)
            if bins is None:
                lost.setdefault(group, []).append(job)
                continue
            requested = self._requested_home(job, size, why) if has_requests else None
            if requested is not None:
                target, reason, room = requested
                bins.put(target, size, hot)
            else:
                found, room = bins.give(size, hot)
                assert found is not None, "bins are never empty"
                target = found
                if room:
                    reason = (
                        f"{why}; with it {target.describe()}, the emptiest of {len(bins.slots)} with room"
                    )
                else:
                    reason = f"{why}; {no_room}, and {target.describe()} with it, the least loaded"
                    room = target.level <= self.high
            if not room:
                crowded[group] = crowded.get(group, 0) + 1
            decisions.append(PlacementDecision(job, target.name, False, reason))
        self._report_homeless(crowded, lost)

    def _requested_home(self, job: str, size: Vector, why: str) -> tuple[WorkerSlot, str, bool] | None:
        """The worker that an operator or an earlier round chose, with the reason, and whether it stays at
        or below the high mark; None: no such worker may run the job, or the planned one has no room."""
        if (wish := self.wishes.get(job)) is not None and (slot := self._able(job, wish)) is not None:
            return slot, f"{why}; an operator wants it on {wish}", slot.level_with(size) <= self.high
        if (before := self.planned.get(job)) is not None:
            slot = self._able(job, before.target)
            if slot is not None and slot.level_with(size) <= self.high:
                return slot, f"moved to {before.target} as planned: {before.reason}", True
        return None

    def _report_homeless(self, crowded: Mapping[str, int], lost: Mapping[str, list[str]]) -> None:
        for group, jobs in lost.items():
            whose = f"of the isolation group {group!r}" if group else "without an isolation group"
            remedy = f"start a worker {whose}" if self.grouped else "start a worker"
            if group == UNREAD:
                whose, remedy = "whose isolation group cannot be read", "deploy their definitions again"
            self._report(
                "no-worker",
                group or jobs[0],
                f"{len(jobs)} jobs {whose} have no worker that may run them, {jobs[0]} among them",
                remedy,
            )
        for group, count in crowded.items():
            self._report(
                "no-room",
                group,
                f"{count} jobs were placed although no worker has room for them below "
                f"{percent(self.rules.high)}",
                "start more workers, or larger ones",
            )

    def _expect_arriving(self) -> None:
        """Reserves room on the next workers of jobs whose release was requested."""
        for job in self.arriving:
            bins = self.bins.get(self._group(job))
            if bins is None:
                continue
            size, before = self._size(job), self.planned.get(job)
            slot = self._able(job, self.wishes.get(job, before.target if before is not None else ""))
            if slot is None:
                slot, _ = bins.choose(
                    size, self._hot(job, size), self.slots.get(self.assignments[job].worker)
                )
            if slot is not None:
                bins.put(slot, size, self._hot(job, size))

    # -- jobs that have one -------------------------------------------------------------------------

    def _may_leave(self, slot: WorkerSlot) -> bool:
        rules, jobs = self.rules, slot.count + slot.leaving
        return self.left > 0 and slot.leaving < max(rules.moves, int(rules.worker_share * jobs))

    def _release(self, job: str, slot: WorkerSlot, target: WorkerSlot, reason: str) -> None:
        size = self._size(job)
        self.decisions.append(
            PlacementDecision(job, slot.name, release=True, reason=reason, target=target.name)
        )
        self.bins[slot.group].remove_job(slot, size)
        self.bins[target.group].put(target, size, self._hot(job, size))
        slot.leaving += 1
        self.left -= 1

    def _fulfil_wishes(self) -> None:
        settled = (
            {job: self.slots[name] for name, jobs in self.settled.items() for job in jobs}
            if self.wishes
            else {}
        )
        for job, wish in sorted(self.wishes.items()):
            if job not in self.wanted:
                continue
            target, slot = self._able(job, wish), settled.get(job)
            if target is None:
                member = self.live.get(wish)
                what = "is not alive" if member is None else (
                    "is draining" if member.draining else f"serves the isolation group {member.group!r}"
                )  # fmt: skip
                self._report(
                    "wish-impossible",
                    job,
                    f"{job} is wanted on {wish}, which {what}",
                    "cancel the wish (placement move --release), or wish for another worker",
                )
            elif slot is not None and slot is not target and self._may_leave(slot):
                self.settled[slot.name].remove(job)
                self._release(job, slot, target, f"an operator wants it on {wish}; {target.describe()}")

    def _regroup(self) -> None:
        """Jobs on workers of another isolation group leave as soon as their own has a worker; until then
        they run on."""
        for job in self.misplaced:
            slot, group = self.slots[self.assignments[job].worker], self._group(job)
            bins = self.bins.get(group)
            if group == UNREAD:
                continue  # another notice says that its definition cannot be read
            if bins is None:
                self._report(
                    "no-worker",
                    job,
                    f"{job} runs on {slot.name} of the isolation group {slot.group!r}, and no worker of its "
                    f"own, {group!r}, lives",
                    f"start a worker of the isolation group {group!r}",
                )
            elif self._may_leave(slot):
                size = self._size(job)
                target, _ = bins.choose(size, self._hot(job, size))
                assert target is not None, "bins are never empty"
                whose = f"{slot.name} is of the isolation group {slot.group!r}, the job of {group!r}"
                self._release(job, slot, target, f"{whose}; {target.describe()}")

    def _relieve(self, slot: WorkerSlot) -> bool:
        """Makes as few moves as bring `slot` back to the mark. Returns False when no worker can take the
        excess."""
        high, bins = self.high, self.bins[slot.group]
        over = [(d, -room) for d, room in enumerate(slot.room(high)) if room < 0]
        weighed = []
        for job in self.settled[slot.name]:
            if not self._is_pinned(job):
                size = self._size(job)
                weighed.append((sum(size[d] / need for d, need in over), job, size))
        weighed.sort()
        largest = [max((size[d] for _, _, size in weighed), default=0.0) for d in range(3)]
        moved: set[str] = set()
        while slot.level > high and self._may_leave(slot):
            if not weighed or not (bins.lowest < self.rules.fill or self._worth_it(slot, bins.lowest)):
                break
            rooms = slot.room(high)
            at = -1
            if all(largest[d] >= -rooms[d] for d in range(3)):
                enough = (
                    at
                    for at, (_, _, size) in enumerate(weighed)
                    if size[0] >= -rooms[0] and size[1] >= -rooms[1] and size[2] >= -rooms[2]
                )
                at = next(enough, -1)
            # A job without a place now finds none later in this round, so it is not tried again.
            _, job, size = weighed.pop(at)
            target, room = bins.choose(size, self._hot(job, size), slot)
            if target is None or not (room or self._worth_it(slot, target.level_with(size))):
                continue
            has = "has room" if room else "is the least loaded"
            self._release(
                job, slot, target, f"{slot.describe()}, above {percent(high)}; {target.describe()} and {has}"
            )
            moved.add(job)
        if moved:
            self.settled[slot.name] = [job for job in self.settled[slot.name] if job not in moved]
        return slot.level <= high or not self._may_leave(slot)

    def _worth_it(self, slot: WorkerSlot, level: float) -> bool:
        """Whether a move helps although the target has no room and ends at `level`."""
        return slot.level > 1 and level <= slot.level - self.rules.gain

    def _relieve_all(self) -> None:
        full = [slot for slot in self.slots.values() if slot.level > self.high]
        full.sort(key=lambda slot: (-slot.level, slot.name))
        if stuck := [slot for slot in full if not self._relieve(slot)]:
            self._report(
                "overloaded",
                stuck[0].name,
                f"{len(stuck)} workers stay above {percent(self.rules.high)}, and no worker has room for "
                f"the jobs that they could give away: {stuck[0].describe()}",
                "start more workers, or larger ones",
            )

    def _level(self, bins: WorkerBins) -> None:
        """Evens the job counts, if the rules say so (`PlacementRules.even`)."""
        slots, left = bins.slots.values(), self.rules.moves
        while left and self.left > 0:
            left -= 1
            poor = min(slots, key=lambda slot: (slot.count, slot.name))
            givers = [slot for slot in slots if self.settled[slot.name] and self._may_leave(slot)]
            rich = max(givers, key=lambda slot: (slot.count, slot.name), default=poor)
            if rich.count - poor.count < self.rules.even:
                break
            job = self.settled[rich.name].pop()
            if self._is_pinned(job) or poor.level_with(self._size(job)) > min(rich.level, self.rules.fill):
                continue
            self._release(job, rich, poor, f"{rich.name} has {rich.count} jobs, {poor.name} has {poor.count}")
