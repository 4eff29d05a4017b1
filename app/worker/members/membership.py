"""The workers that live, by their heartbeats, which every worker reads.

`Members` keeps each worker's last heartbeat and when it came, on the local monotonic clock. A worker is dead
after `dead_after_s` without a heartbeat, and after its goodbye. It is also dead when its process is known to
have ended (`app.worker.members.sentinel`), until another heartbeat comes. `Heartbeats` sends this worker's
own. It renews the lease (`app.kernel.lease`) when the control cluster has acknowledged a heartbeat and this
worker has then read the control log to its end. The first heartbeat after a lapsed lease renews nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
from aiokafka.errors import InvalidTimestampError, KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.codec import Heartbeat
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.topic_tail import TopicTail
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.records.record import PlacedRecord
from app.kernel.lease import Lease
from app.worker.members.host_clock import HostClock

log = structlog.get_logger(__name__)

FORGET_WORKER_AFTER_S = 3600.0
SWEEP_INTERVAL_S = 10.0
MAX_SILENT = 1_000
DIVIDED = ("jobs", "workloads", "needs", "troubles")  # the lists that the parts of a heartbeat divide
STRAY_HEARTBEAT_S = 1.0  # a heartbeat in flight when its sender died arrives within this time
DRAINING = "draining"  # the state of a worker that stops
STOPPED = "stopped"  # the state in a worker's last heartbeat: it is dead at once


class Members:
    """Each worker's last heartbeat, and when it came (monotonic seconds).

    It keeps at most `MAX_SILENT` workers that no longer live, each for `FORGET_WORKER_AFTER_S`. `unsealed`
    has those whose last heartbeat lacks the seal of a worker: of an earlier version, or forged.
    """

    def __init__(self, dead_after_s: float) -> None:
        self.dead_after_s = dead_after_s
        self.heard: dict[str, tuple[float, Heartbeat]] = {}
        self.unsealed: set[str] = set()
        self._parts: dict[str, list[Heartbeat]] = {}
        self._refused: dict[str, float] = {}
        self._swept_s = float("-inf")

    def observe(self, beat: Heartbeat, now_s: float, *, is_sealed: bool = True) -> None:
        (self.unsealed.discard if is_sealed else self.unsealed.add)(beat.worker)
        if beat.parts > 1:
            beat = self._joined(beat)
        else:
            self._parts.pop(beat.worker, None)
        self.heard.pop(beat.worker, None)  # keeps the order of arrival
        self.heard[beat.worker] = (now_s, beat)
        if now_s - self._refused.get(beat.worker, now_s) > STRAY_HEARTBEAT_S:
            del self._refused[beat.worker]
            log.warning("a worker that was taken for dead still sends heartbeats", worker=beat.worker)
        if now_s - self._swept_s > SWEEP_INTERVAL_S:
            self._swept_s = now_s
            self._forget(now_s)

    def _joined(self, beat: Heartbeat) -> Heartbeat:
        """The whole heartbeat once all its parts are here; until then the former jobs and receivers."""
        before = [part for part in self._parts.get(beat.worker, []) if part.at_ms == beat.at_ms]
        parts = [part for part in before if part.part != beat.part] + [beat]
        self._parts[beat.worker] = parts
        whole = msgspec.structs.replace(beat, part=0, parts=1)
        if len(parts) < beat.parts:
            last = self.heard.get(beat.worker)
            if last is None:
                return msgspec.structs.replace(whole, **{name: [] for name in DIVIDED}, read=0)
            # `read` is also the former: the needs are of that time.
            former = {name: getattr(last[1], name) for name in (*DIVIDED, "read")}
            return msgspec.structs.replace(whole, **former)
        return msgspec.structs.replace(
            whole, **{name: [entry for part in parts for entry in getattr(part, name)] for name in DIVIDED}
        )

    def refuse(self, worker: str, now_s: float) -> None:
        """Its port shows that the process has ended, until a heartbeat after `STRAY_HEARTBEAT_S`."""
        if worker in self.heard:
            self._refused[worker] = now_s

    def live(self, now_s: float) -> dict[str, Heartbeat]:
        """Workers with a heartbeat within `dead_after_s` that have neither said goodbye nor ended."""
        return {
            worker: beat
            for worker, (heard_s, beat) in self.heard.items()
            if now_s - heard_s < self.dead_after_s and beat.state != STOPPED and worker not in self._refused
        }

    def ended(self, worker: str) -> bool:
        """Whether it said goodbye or its process was seen to end: more than silence."""
        found = self.heard.get(worker)
        return worker in self._refused or (found is not None and found[1].state == STOPPED)

    def silent_s(self, worker: str, now_s: float) -> float:
        """Seconds since the last heartbeat; infinite without one, or after the goodbye."""
        found = self.heard.get(worker)
        return float("inf") if found is None or found[1].state == STOPPED else now_s - found[0]

    def _forget(self, now_s: float) -> None:
        live = self.live(now_s)
        silent = [worker for worker in self.heard if worker not in live]
        old = {worker for worker in silent if now_s - self.heard[worker][0] >= FORGET_WORKER_AFTER_S}
        gone = old.union(silent[:-MAX_SILENT])
        for worker in gone:
            del self.heard[worker]
            self._parts.pop(worker, None)
            self._refused.pop(worker, None)
            self.unsealed.discard(worker)


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The lease that heartbeats renew, and the read that comes before each renewal. `read_control(timeout_s)`
    returns when the control log is read up to its present end."""

    lease: Lease
    read_control: Callable[[float], Awaitable[None]]


class HeartbeatSeals(RecordSeal, Protocol):
    """Seals heartbeats, and knows those that are sealed: `app.controllog.seals.Seals`."""

    def is_sealed(self, topic: str, record: PlacedRecord) -> bool: ...


class Heartbeats(Service):
    """Sends `compose()` every `interval_s`, and reads every worker's heartbeats."""

    def __init__(
        self,
        topic: str,
        kafka_options: ClientOptions,
        *,
        compose: Callable[[], Heartbeat],
        members: Members,
        renewal: LeaseRenewal,
        interval_s: float,
        host_clock: HostClock,
        seals: HeartbeatSeals | None = None,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.members = members
        self.lease = renewal.lease
        self.interval_s = interval_s
        self._compose = compose
        self._read_control = renewal.read_control
        self.host_clock = host_clock
        self._seals = seals
        self._tail = TopicTail(topic, kafka_options, self._on_records, from_start=False)
        # One attempt each: a heartbeat delayed by retries renews almost nothing.
        self._producer = ReplaceableProducer(
            "heartbeats", kafka_options, enable_idempotence=False, seal=seals, request_timeout_ms=5_000
        )
        self._back_s = float("-inf")  # when the first heartbeat after a lapsed lease was sent
        self._unreadable = UnreadableRecords("the heartbeat topic has records that are no heartbeats")

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)

    async def on_stop(self) -> None:
        await self._producer.stop()

    def _on_records(self, records: Sequence[PlacedRecord]) -> None:
        now_s = time.monotonic()
        for record in records:
            try:
                beat = codec.heartbeat(record.value)
                is_sealed = self._seals is None or self._seals.is_sealed(self.topic, record)
                self.members.observe(beat, now_s, is_sealed=is_sealed)
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)

    @Service.task
    async def _beat(self) -> None:
        while not self.should_stop:
            started_s = time.monotonic()
            try:
                await self.beat()
            except Exception:
                log.exception("a heartbeat failed; without another this worker pauses when its lease ends")
            await self.sleep(max(0.05, self.interval_s - (time.monotonic() - started_s)))

    async def beat(self) -> bool:
        """Sends one heartbeat and renews the lease; returns whether the lease was renewed."""
        sent_s, sent_ms = time.monotonic(), self.host_clock.steady_ms()
        try:
            async with asyncio.timeout(self.lease.duration_s):
                events = codec.heartbeat_events(self._compose())
                sent = [await self._producer.send(self.topic, event, partition=0) for event in events]
                acknowledged = await asyncio.gather(*sent)
        except (KafkaError, TimeoutError, OSError) as error:
            if isinstance(error, InvalidTimestampError):
                self.host_clock.refused(error)
            self._warn("the control cluster took no heartbeat; this worker pauses when its lease ends", error)
            return False
        self.host_clock.acknowledged(acknowledged[-1], sent_ms)
        try:
            # Bounded: the next heartbeat is due, and reads the log again.
            await self._read_control(self.lease.duration_s / 2)
        except (KafkaError, ClusterUnreachable, TimeoutError, OSError) as error:
            self._warn("this worker pauses when its lease ends: it could not read the control log", error)
            return False
        if self.lease.lapsed(sent_s) and not 0 < sent_s - self._back_s < self.members.dead_after_s:
            # A leader without its heartbeats may be reassigning its jobs now. When the next heartbeat is
            # acknowledged, the leader knows this one, and this worker has read the leader's decisions.
            self._back_s = sent_s
            return False
        self.lease.renewed(sent_s)
        return True

    def _warn(self, event: str, error: BaseException) -> None:
        left_s = self.lease.expires_at_s - time.monotonic()
        log.warning(event, error=repr(error), lease_left_s=round(left_s, 2))
