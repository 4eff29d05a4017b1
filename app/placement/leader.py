"""The leader's rounds: find the live workers, place every job, and run the leader's other work.

Every worker runs this service; only the worker whose claim is current in the control log acts. A worker
claims the leadership when there is no leader, or the leader has ended, or has been silent for `dead_after_s`.
It adds a share by its rank among the live workers, so that claims rarely race; if they do, the log decides.
Claims, assignments and shares carry the leader's term, so those of a deposed leader do not count. Its drains,
repaired definitions and tombstones only repeat what the log says.

A leader may send heartbeats while its rounds fail. After `SLOW_ROUND_S` its heartbeats say that it does
not lead (`term`). Other workers treat that as silence, and the next in rank claims.

A worker begins a round only while its own lease holds *and* it has received its own heartbeat lately. After a
suspension it would otherwise declare all workers dead before it has read their heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.codec import Heartbeat
from app.controllog.events import AnyControlEvent, Assignment, Claim, Drain
from app.controllog.log import ControlLog
from app.kernel.clock import now_ms
from app.placement.inputs import PlacementInputs, members_of
from app.placement.limit_divider import LimitDivider
from app.placement.model.plan import Member, PlacementRules, RoundPlan
from app.placement.repairs import repairs
from app.worker.members.leadership import Leadership
from app.worker.members.membership import DRAINING, Members

log = structlog.get_logger(__name__)

PLACEMENT_INTERVAL_S = 0.5
# Erased events are repaired within `min.compaction.lag.ms`, at most this often.
REPAIR_INTERVAL_S = 30.0
SLOW_ROUND_S = 5.0  # a successful round takes two seconds at most, with a slow data cluster
ROUND_TIMEOUT_S = 60.0  # a longer wait will not end, so the round begins again
EVENTS_PER_WRITE = 5_000  # a region's first assignments then count as progress before all are written

JobsOf = Callable[[], Awaitable[Collection[str]]]


class Leader(Service):
    """Claims the leadership when there is no leader, and leads while its claim is current."""

    def __init__(
        self,
        leadership: Leadership,
        control: ControlLog,
        members: Members,
        jobs: JobsOf,
        inputs: PlacementInputs,
        asleep: Callable[[], Mapping[str, str]],
        chores: Callable[[], Awaitable[None]] | None = None,
        limits: LimitDivider | None = None,
    ) -> None:
        super().__init__()
        self.worker = leadership.worker
        self._leadership = leadership
        self._control = control
        self._members = members
        self._lease = leadership.lease
        self._jobs = jobs
        self._inputs = inputs
        self._asleep = asleep
        self._chores = chores  # the leader's other work in each round
        self._limits = limits
        self._buried: set[str] = set()
        self._wake = leadership.round_wanted
        self._repaired_s = float("-inf")
        self._acting_since_s = float("inf")
        self._well_until_s = float("-inf")  # the deadline of the next successful round
        self._led = (0, float("-inf"))  # the last term, and when its leader's last heartbeat with it arrived

    @property
    def term(self) -> int:
        """The term that this worker leads, for its heartbeat; 0 when it does not lead, or its rounds fail."""
        return self._control.view.term if self.leads and time.monotonic() < self._well_until_s else 0

    @property
    def leads(self) -> bool:
        """Whether this worker's claim is current."""
        return self._leadership.leads()

    async def on_start(self) -> None:
        self._control.on_change(self._wake.set)

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    await self._round()
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("the leader's round failed; the leader tries again", error=repr(error))
            except Exception:
                # A bug in one round must not end the leadership silently.
                log.exception("the leader's round failed; the leader begins another")
                await self.sleep(1.0)
            try:
                async with asyncio.timeout(max(PLACEMENT_INTERVAL_S, self._pause_s)):
                    await self._wake.wait()
                await self.sleep(max(0.01, self._pause_s))  # several changes become one round
            except TimeoutError:
                pass
            self._wake.clear()

    @property
    def _pause_s(self) -> float:
        """The wait between rounds: in a very large region nine tenths of the time, for the worker's
        messages."""
        return 9 * self._inputs.took_s

    def _is_well(self) -> None:
        self._well_until_s = time.monotonic() + SLOW_ROUND_S + 2 * self._pause_s

    @Service.task
    async def _report_when_stalled(self) -> None:
        seen = is_logged = False
        while not self.should_stop:
            await self.sleep(1.0)
            sick = self.leads and not self.term
            if sick and seen and not is_logged:  # twice: a worker that was suspended sees it once
                is_logged = True
                log.error(
                    "this worker's rounds as the leader fail or hang; another worker may lead now",
                    remedy="the lines before this say why; restart this worker if it happens again",
                    term=self._control.view.term,
                )
            seen, is_logged = sick, is_logged and sick

    async def _round(self) -> None:
        now_s = time.monotonic()
        if (
            not self._lease.holds(now_s)
            or self._members.silent_s(self.worker, now_s) > self._lease.duration_s
        ):
            self._acting_since_s = float("inf")
            return
        self._acting_since_s = min(self._acting_since_s, now_s)
        if not self.leads:
            self._is_well()
            await self._maybe_claim(now_s)
            return
        await self._repair(self._control.view.term)
        if not self.leads:
            return
        await self._place(self._control.view.term, now_s)
        self._is_well()
        if self._chores is not None and self.leads:
            await self._chores()

    async def _maybe_claim(self, now_s: float) -> None:
        state = self._control.view
        live = sorted(self._members.live(now_s))
        if self.worker not in live or self._members.heard[self.worker][1].state == DRAINING:
            return
        term, led_at_s = self._led if self._led[0] == state.term else (state.term, now_s)
        heard = self._members.heard.get(state.leader)
        if heard is not None and heard[1].term == term:
            led_at_s = max(led_at_s, heard[0])
        self._led = term, led_at_s
        silent_s = max(self._members.silent_s(state.leader, now_s), now_s - led_at_s)
        # A leader without a heartbeat since this worker started may be alive: wait the whole time.
        silent_s = min(silent_s, now_s - self._acting_since_s)
        has_ended = self._members.ended(state.leader)
        patience_s = 0.0 if not state.leader or has_ended else self._members.dead_after_s
        if silent_s < patience_s + 0.2 * live.index(self.worker):
            return
        log.info("claiming leadership", term=state.term + 1, silent_leader=state.leader or None)
        await self._control.append(Claim(at_ms=now_ms(), term=state.term + 1, worker=self.worker))

    async def _repair(self, term: int) -> None:
        """Writes valid records again where compaction could keep a refused one instead."""
        now_s, refused, erased = time.monotonic(), self._control.take_refused(), list[AnyControlEvent]()
        if now_s > self._repaired_s + REPAIR_INTERVAL_S and (erased := self._control.take_erased()):
            self._repaired_s = now_s
        try:
            if any(isinstance(event, Claim) and event.term == term for event in erased):
                await self._control.append(Claim(at_ms=now_ms(), term=term + 1, worker=self.worker))
                if not self.leads:  # another worker claimed that term, and repairs
                    return
            if repeated := repairs(self._control.view, [*refused, *erased], self._control.view.term):
                log.warning(
                    "the leader writes valid records again over records that do not count",
                    count=len(repeated),
                )
                for start in range(0, len(repeated), EVENTS_PER_WRITE):
                    await self._control.append(*repeated[start : start + EVENTS_PER_WRITE])
        except Exception:
            self._control.refuse_again(refused)
            self._control.erase_again(erased)
            raise
        await self._control.drop_stale()

    async def _place(self, term: int, now_s: float) -> None:
        state = self._control.view
        live = self._members.live(now_s)
        await self._bury(live, now_s)
        jobs = await self._jobs()
        if not state.assignments and not self._settled(now_s):
            return  # a new region: workers that start together get a share each
        if state.term != term:
            return  # deposed meanwhile
        made = self._inputs.plan(state, jobs, self._able(now_s), asleep=self._asleep())
        events: list[AnyControlEvent] = []
        for decision in made.decisions:
            held = state.assignments.get(decision.job)
            if decision.release:
                if held is None or held.worker not in live:
                    continue  # its owner has sent no heartbeat yet; the next round knows more
                events.append(
                    msgspec.structs.replace(
                        held, release=True, term=term, reason=decision.reason, at_ms=now_ms()
                    )
                )
            else:
                events.append(
                    Assignment(
                        at_ms=now_ms(),
                        job=decision.job,
                        worker=decision.worker,
                        epoch=state.next_epoch(decision.job),
                        term=term,
                        reason=decision.reason,
                    )
                )
        self._inputs.decided(state, made)
        if events:
            log.info("placing jobs", changes=len(events), workers=len(live))
        events = [
            *self._divided(live, now_s, [one for one in events if isinstance(one, Assignment)]),
            *events,
        ]
        for start in range(0, len(events), EVENTS_PER_WRITE):
            await self._control.append(*events[start : start + EVENTS_PER_WRITE])
            self._is_well()

    async def foresee(self, wishes: Mapping[str, str], rules: PlacementRules) -> RoundPlan:
        """The round that the leader would make now with these wishes and rules; changes nothing. For the
        leader only."""
        jobs = await self._jobs()
        able = self._able(time.monotonic())
        view = self._control.view
        return self._inputs.plan(view, jobs, able, asleep=self._asleep(), wishes=wishes, rules=rules)

    def _divided(
        self, live: Mapping[str, Heartbeat], now_s: float, made: Collection[Assignment]
    ) -> list[AnyControlEvent]:
        """New shares of limits; `made` are the assignments that follow them."""
        if self._limits is None:
            return []
        settled = self._settled(now_s)

        def is_gone(worker: str) -> bool:
            return worker not in live and (settled or self._members.ended(worker))

        return [*self._limits.divide(self._control.view, live, is_gone, made, now_s)]

    def _settled(self, now_s: float) -> bool:
        return now_s - self._acting_since_s >= self._members.dead_after_s

    def _able(self, now_s: float) -> list[Member]:
        state, heard = self._control.view, self._members.heard
        live = self._members.live(now_s)
        self._inputs.observe(state, (beat for _, beat in heard.values()))
        able = members_of(state, live)
        if not self._settled(now_s):
            # A new leader has few heartbeats yet, and none came while the control cluster was unreachable. An
            # owner without a heartbeat is not dead yet.
            owners = {held.worker for held in state.assignments.values() if held.worker}
            silent = [owner for owner in owners if owner not in live and not self._members.ended(owner)]
            able += [Member(owner, draining=True) for owner in silent]
        return able

    async def _bury(self, live: Mapping[str, Heartbeat], now_s: float) -> None:
        settled = self._settled(now_s)
        gone = [
            worker
            for worker in self._members.heard
            if worker not in live and (settled or self._members.ended(worker))
        ]
        for worker in gone:
            if worker not in self._buried:
                self._buried.add(worker)
                log.warning("a worker is gone; its jobs move", worker=worker)
        self._buried &= set(gone)
        # Workers' names are never used twice, so a drain ends with its worker.
        ended = [worker for worker in self._control.view.draining if worker in self._buried]
        if ended:
            await self._control.append(
                *(Drain(at_ms=now_ms(), worker=worker, draining=False, actor=self.worker) for worker in ended)
            )
