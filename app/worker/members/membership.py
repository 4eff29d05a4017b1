"""Who lives: every worker's heartbeats, as every worker hears them.

`Members` keeps the last heartbeat of each worker and *when it was heard* on the local monotonic
clock; a worker unheard for `dead_after_s` is dead, and so is one whose process is known to have ended
(`app.worker.members.sentinel`) unless its heartbeats go on. `Heartbeats` sends this worker's own and renews
its lease (`app.kernel.lease`) whenever the control cluster has acknowledged one and the control log was read
to its end after that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiokafka.errors import InvalidTimestampError, KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.codec import Heartbeat
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.topic_tail import TopicTail
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kernel.lease import Lease
from app.worker.members.host_clock import HostClock

log = structlog.get_logger(__name__)

FORGET_WORKER_AFTER_S = 3600.0
SWEEP_INTERVAL_S = 10.0
MAX_SILENT = 1_000
STRAY_HEARTBEAT_S = 1.0  # a heartbeat that was under way when its sender died is heard by then
DRAINING = "draining"  # the state of a worker that was asked to stop
STOPPED = "stopped"  # the state in a worker's last heartbeat: dead at once, without waiting


class Members:
    """The last heartbeat of every worker, and when it was heard (monotonic seconds).

    At most `MAX_SILENT` workers that no longer live are remembered, and those for `FORGET_WORKER_AFTER_S`.
    """

    def __init__(self, dead_after_s: float) -> None:
        self.dead_after_s = dead_after_s
        self.heard: dict[str, tuple[float, Heartbeat]] = {}
        self._parts: dict[str, list[Heartbeat]] = {}
        self._refused: dict[str, float] = {}
        self._swept_s = float("-inf")

    def observe(self, beat: Heartbeat, now_s: float) -> None:
        """Takes one heartbeat in, or a part of one."""
        if beat.parts > 1:
            beat = self._joined(beat)
        else:
            self._parts.pop(beat.worker, None)
        self.heard.pop(beat.worker, None)  # so that they stand in the order in which they were heard
        self.heard[beat.worker] = (now_s, beat)
        if now_s - self._refused.get(beat.worker, now_s) > STRAY_HEARTBEAT_S:
            del self._refused[beat.worker]
            log.warning("a worker that was taken for dead goes on sending heartbeats", worker=beat.worker)
        if now_s - self._swept_s > SWEEP_INTERVAL_S:
            self._swept_s = now_s
            self._forget(now_s)

    def _joined(self, beat: Heartbeat) -> Heartbeat:
        """All parts together once they have come; until then what was said before of jobs and receivers."""
        before = [part for part in self._parts.get(beat.worker, []) if part.at_ms == beat.at_ms]
        parts = [part for part in before if part.part != beat.part] + [beat]
        self._parts[beat.worker] = parts
        whole = msgspec.structs.replace(beat, part=0, parts=1)
        if len(parts) < beat.parts:
            last = self.heard.get(beat.worker)
            if last is None:
                return msgspec.structs.replace(whole, jobs=[], workloads=[], needs=[], troubles=[], read=0)
            former = last[1]  # what it had read by then, too: its needs are of that time
            return msgspec.structs.replace(
                whole, jobs=former.jobs, workloads=former.workloads, needs=former.needs,
                troubles=former.troubles, read=former.read,
            )  # fmt: skip
        return msgspec.structs.replace(
            whole,
            jobs=[status for part in parts for status in part.jobs],
            workloads=[status for part in parts for status in part.workloads],
            needs=[need for part in parts for need in part.needs],
            troubles=[trouble for part in parts for trouble in part.troubles],
        )

    def refuse(self, worker: str, now_s: float) -> None:
        """Its process has ended, as far as can be seen; if it is still heard after `STRAY_HEARTBEAT_S`, it
        lives."""
        if worker in self.heard:
            self._refused[worker] = now_s

    def live(self, now_s: float) -> dict[str, Heartbeat]:
        """Workers heard within `dead_after_s` that have neither said goodbye nor ended."""
        return {
            worker: beat
            for worker, (heard_s, beat) in self.heard.items()
            if now_s - heard_s < self.dead_after_s and beat.state != STOPPED and worker not in self._refused
        }

    def ended(self, worker: str) -> bool:
        """Whether it said goodbye, or its process was seen to have ended: more than mere silence."""
        found = self.heard.get(worker)
        return worker in self._refused or (found is not None and found[1].state == STOPPED)

    def silent_s(self, worker: str, now_s: float) -> float:
        """For how long `worker` has not been heard; infinite when never or after its goodbye."""
        found = self.heard.get(worker)
        return float("inf") if found is None or found[1].state == STOPPED else now_s - found[0]

    def _forget(self, now_s: float) -> None:
        live = self.live(now_s)
        silent = [worker for worker in self.heard if worker not in live]
        gone = set(silent[:-MAX_SILENT]) | {
            w for w in silent if now_s - self.heard[w][0] >= FORGET_WORKER_AFTER_S
        }
        for worker in gone:
            del self.heard[worker]
            self._parts.pop(worker, None)
            self._refused.pop(worker, None)


class Heartbeats(Service):
    """Sends `compose()` every `interval_s` and hears everybody's."""

    def __init__(
        self,
        topic: str,
        kafka_options: dict[str, Any],
        *,
        compose: Callable[[], Heartbeat],
        members: Members,
        lease: Lease,
        interval_s: float,
        read_control: Callable[[float], Awaitable[None]],
        host_clock: HostClock,
        seal: RecordSeal | None = None,
    ) -> None:
        """`read_control(timeout_s)` returns once all that stands in the control log by now was read here."""
        super().__init__()
        self.topic = topic
        self.members = members
        self.lease = lease
        self.interval_s = interval_s
        self._compose = compose
        self._read_control = read_control
        self.host_clock = host_clock
        self._tail = TopicTail(topic, kafka_options, self._on_records, from_start=False)
        # One attempt a beat: a beat that waited in a retry queue would renew nothing of worth.
        self._producer = ReplaceableProducer(
            "heartbeats", kafka_options, enable_idempotence=False, seal=seal, request_timeout_ms=5_000
        )
        self._back_s = float("-inf")  # when the first heartbeat after a lapse was sent
        self._unreadable = UnreadableRecords("records of the heartbeat topic are no heartbeats")

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)

    async def on_stop(self) -> None:
        await self._producer.stop()

    def _on_records(self, records: list[Any]) -> None:
        now_s = time.monotonic()
        for record in records:
            try:
                self.members.observe(codec.heartbeat(record.value), now_s)
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)

    @Service.task
    async def _beat(self) -> None:
        while not self.should_stop:
            started_s = time.monotonic()
            try:
                await self.beat()
            except Exception:
                log.exception(
                    "a heartbeat failed; this worker pauses when its lease ends, unless a next one goes"
                )
            await self.sleep(max(0.05, self.interval_s - (time.monotonic() - started_s)))

    async def beat(self) -> bool:
        """Sends one heartbeat and renews the lease by it; returns whether it did."""
        sent_s, sent_ms = time.monotonic(), self.host_clock.steady_ms()
        try:
            async with asyncio.timeout(self.lease.duration_s):
                events = codec.heartbeat_events(self._compose())
                sent = [await self._producer.send(self.topic, event, partition=0) for event in events]
                acknowledged = await asyncio.gather(*sent)
        except (KafkaError, TimeoutError, OSError) as error:
            if isinstance(error, InvalidTimestampError):
                self.host_clock.refused(error)
            log.warning(
                "no heartbeat could be sent; this worker pauses when its lease ends",
                error=repr(error),
                lease_left_s=round(self.lease.expires_at_s - time.monotonic(), 2),
            )
            return False
        self.host_clock.acknowledged(acknowledged[-1], sent_ms)
        try:
            # No longer than this: heartbeats go on, and the next one asks again.
            await self._read_control(self.lease.duration_s / 2)
        except (KafkaError, ClusterUnreachable, TimeoutError, OSError) as error:
            log.warning(
                "the control log was not read to its end; this worker pauses when its lease ends",
                error=repr(error),
                lease_left_s=round(self.lease.expires_at_s - time.monotonic(), 2),
            )
            return False
        if self.lease.lapsed(sent_s) and not 0 < sent_s - self._back_s < self.members.dead_after_s:
            # A leader that had not heard it for long may be giving its jobs away just now: by the next
            # heartbeat it has heard this one, and what it wrote before is read.
            self._back_s = sent_s
            return False
        self.lease.renewed(sent_s)
        return True
