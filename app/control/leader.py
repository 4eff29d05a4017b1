"""The leader's rounds: notice who lives, place every job, create the topics that workloads need.

Every worker runs this service; only the one whose claim stands in the control log acts. A worker
claims when the leader has been silent for `dead_after_s` (plus a share by its rank among the living, so
that claims rarely race; when they do, the log decides). All that the leader writes carries its term:
a deposed one can write what it likes, nobody counts it.

It acts only while its own lease holds *and* it has heard its own heartbeat lately: after a pause it
would otherwise take everybody for dead before it has read what they said meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.clock import now_ms
from app.control.log import ControlLog
from app.control.membership import Members
from app.core.control import AnyControlEvent, Assignment, Claim
from app.core.lease import Lease
from app.core.placement import Member, place

log = structlog.get_logger(__name__)

ROUND_S = 0.25
DRAINING = "draining"

JobsOf = Callable[[], Awaitable[Iterable[str]]]


class Leader(Service):
    """Claims leadership when there is none, and leads while its claim stands."""

    def __init__(
        self,
        worker: str,
        control: ControlLog,
        members: Members,
        lease: Lease,
        jobs: JobsOf,
        on_dead: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self.worker = worker
        self._control = control
        self._members = members
        self._lease = lease
        self._jobs = jobs
        self._on_dead = on_dead
        self._buried: set[str] = set()
        self._wake = asyncio.Event()
        self._acting_since_s = float("inf")

    @property
    def leads(self) -> bool:
        """Whether this worker's claim stands."""
        return self._control.view.leader == self.worker

    async def on_start(self) -> None:
        self._control.on_change(self._wake.set)

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            try:
                await self._round()
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("the leader's round failed and is tried again", error=repr(error))
            except Exception:
                # A mistake in one round must not end leadership silently.
                log.exception("the leader's round failed; the next one starts afresh")
                await self.sleep(1.0)
            try:
                async with asyncio.timeout(ROUND_S):
                    await self._wake.wait()
                await self.sleep(0.01)  # gather what comes together
            except TimeoutError:
                pass
            self._wake.clear()

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
            await self._maybe_claim(now_s)
            return
        await self._repair()
        await self._place(now_s)

    async def _maybe_claim(self, now_s: float) -> None:
        state = self._control.view
        live = sorted(self._members.live(now_s))
        if self.worker not in live or self._members.heard[self.worker][1].state == DRAINING:
            return
        if state.leader in live:
            return
        # A leader never heard since this worker started may live: give it the whole time.
        silent_s = min(self._members.silent_s(state.leader, now_s), now_s - self._acting_since_s)
        said_goodbye = state.leader in self._members.heard and state.leader not in live
        patience_s = 0.0 if not state.leader or said_goodbye else self._members.dead_after_s
        if silent_s < patience_s + 0.2 * live.index(self.worker):
            return
        log.info("claiming leadership", term=state.term + 1, silent_leader=state.leader or None)
        await self._control.append(Claim(at_ms=now_ms(), term=state.term + 1, worker=self.worker))

    async def _repair(self) -> None:
        """Writes the valid record again where a refused one may outlive it in compaction."""
        state = self._control.view
        repairs: list[AnyControlEvent] = []
        for refused in self._control.take_refused():
            valid = state.assignments.get(refused.job)
            if valid is not None and valid.term <= state.term:
                repairs.append(msgspec.structs.replace(valid, term=state.term))
        if repairs:
            log.warning("a deposed leader's assignments were refused and are repaired", count=len(repairs))
            await self._control.append(*repairs)

    async def _place(self, now_s: float) -> None:
        state = self._control.view
        live = self._members.live(now_s)
        settled = now_s - self._acting_since_s >= self._members.dead_after_s
        members = [Member(worker, draining=beat.state == DRAINING) for worker, beat in sorted(live.items())]
        # A new leader has heard nobody for a moment: owners it has not heard yet are not dead yet.
        members += [
            Member(owner, draining=True)
            for owner in {a.worker for a in state.assignments.values() if a.worker}
            if owner not in live and not settled and owner not in self._members.heard
        ]
        for worker in [w for w in self._members.heard if w not in live and w not in self._buried]:
            self._buried.add(worker)
            log.warning("a worker is gone; its jobs move", worker=worker)
            await self._on_dead(worker)
        self._buried &= set(self._members.heard) - set(live)

        jobs = await self._jobs()
        events: list[AnyControlEvent] = []
        for decision in place(jobs, members, state.assignments):
            held = state.assignments.get(decision.job)
            if decision.release:
                if held is None or held.worker not in live:
                    continue  # nobody to ask (an owner not heard yet): the next round knows more
                events.append(
                    msgspec.structs.replace(
                        held, release=True, term=state.term, reason=decision.reason, at_ms=now_ms()
                    )
                )
            else:
                events.append(
                    Assignment(
                        at_ms=now_ms(),
                        job=decision.job,
                        worker=decision.worker,
                        epoch=state.next_epoch(decision.job),
                        term=state.term,
                        reason=decision.reason,
                    )
                )
        if events:
            log.info("placing jobs", changes=len(events), workers=len(live))
            await self._control.append(*events)
