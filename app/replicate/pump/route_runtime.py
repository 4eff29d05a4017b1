"""The state that a route's replicas share on this worker: the definition, the clusters, the limits.

The rates are this worker's share of the route's, as the leader divides them (`app.kernel.limit_shares`). A
batch waits for them before it is appended; a batch larger than a burst is sent when the bucket is full. It
also waits for routes of a higher priority on this worker (`app.replicate.model.route_priority`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from aiokafka.errors import KafkaError

from app.kafka.append.appender import Appender
from app.kafka.append.local_appends import LaneWrites, LocalAppends
from app.kafka.client.cluster import LATEST, ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kernel.fencing import LogId
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.lease import Lease
from app.kernel.limit_shares import ALL, LimitNeed, LimitUsage, WorkerShare
from app.kernel.repeated_trouble import RepeatedTrouble
from app.kernel.token_bucket import TokenBucket
from app.replicate.definition import RouteDefinition
from app.replicate.destination.copy_headers import HeaderEdit
from app.replicate.destination.ledger import CopyLedger
from app.replicate.destination.session import DESTINATION_RECREATED
from app.replicate.destination.verification import CopyVerifier, VerificationBudget
from app.replicate.model.destination_topic import MAX_BYTES
from app.replicate.model.route_priority import PRIORITY_HOLD_S, RoutePriorities
from app.replicate.pump.unsnapshotted_budget import UnsnapshottedBudget

log = structlog.get_logger(__name__)

ROUTE_POLL_INTERVAL_S = 1.0
TOPIC_IDS_INTERVAL_S = 3.0
KAFKA_MAX_BYTES = 1_048_588  # Kafka's default max.message.bytes, if the destination's cannot be read
NO_SHARE_RETRY_INTERVAL_S = 0.25  # for a worker without a share of the rates
BUSY_REPLICA_S = 5.0  # a replica that took a batch within this time has work
# Parts of a definition that a replica with the same destination does not hold, or reads again each time.
LIVE_FIELDS = ("topics", "exclude", "rename", "offsets", "limits", "sync", "start", "verify")
# Share of the worker's memory for fetched data that routes of each priority leave to others.
MEMORY_SHARE_LEFT = {"high": 0.0, "normal": 0.2, "low": 0.5}


def group_of(route: str) -> str:
    """The consumer group of the source cluster under which a route's positions are committed."""
    return f"switchyard-{route}"


class RouteReplica(Protocol):
    """A replica as its route's runtime needs it (`app.replicate.pump.partition`).

    Attributes:
        target: Its destination's topic and partition.
        target_log: The destination's log, once the replica has read it.
    """

    target: tuple[str, int]
    ledger: CopyLedger

    @property
    def target_log(self) -> LogId: ...

    def lose(self, why: str) -> None:
        """The replica begins again."""
        ...

    def wants_idle_barrier(self, now_s: float) -> bool: ...

    def wants_floor(self, now_s: float) -> bool: ...

    async def ended_at(self, target_end: int, appended: int) -> None:
        """Takes the destination's end, read after `appended` batches had been appended."""
        ...


@dataclass(frozen=True, slots=True)
class RouteDestination:
    """A worker's connection to a route's target. `appended`: takes what the target has acknowledged; None:
    no audit counts copies here."""

    client: ClusterClient
    appender: Appender
    appended: LocalAppends | None = None


@dataclass(frozen=True, slots=True)
class CopyBudgets:
    """The limits that all routes of a worker share: of compared bytes, of copied records without a snapshot,
    and of routes of a lower priority."""

    verification: VerificationBudget = field(default_factory=VerificationBudget)
    unsnapshotted: UnsnapshottedBudget = field(default_factory=UnsnapshottedBudget)
    priorities: RoutePriorities = field(default_factory=RoutePriorities)


class RouteRuntime:
    """The shared state of one route on this worker.

    Attributes:
        messages, bytes: This worker's shares of the limits; None: no limit.
        group: The source cluster's consumer group of the commits, for people and their tools.

    Args:
        cluster_ids: The source's and the target's ids, for provenance; other installations may name the
            clusters otherwise.
    """

    def __init__(
        self,
        definition: RouteDefinition,
        source: ClusterClient,
        destination: RouteDestination,
        lease: Lease,
        report_incident: ReportIncident,
        budgets: CopyBudgets,
        cluster_ids: tuple[str, str] = ("", ""),
    ) -> None:
        self.definition = definition
        self.route = definition.route()
        self.source = source
        self.target = destination.client
        self.appender = destination.appender
        self.appended = destination.appended
        self.lease = lease
        self.group = group_of(definition.key)
        self.pumps: set[RouteReplica] = set()
        self.unsnapshotted_budget = budgets.unsnapshotted
        self.renumbered = RepeatedTrouble()  # batches (`app.kafka.records.verbatim_copy`, rule 4)
        self._report_incident = report_incident
        self.messages: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        self._priorities = budgets.priorities
        self._limited_s = float("-inf")
        self._keeps = definition.keeps_header()
        self._source_id, self._target_id = cluster_ids
        self._share = ALL
        self._usage = LimitUsage()
        self._took_s: dict[JobId, float] = {}
        self._set_limits()
        self.verifier = CopyVerifier(self.target, report_incident, budgets.verification)
        self.verifier.everything = definition.spec.verify == "all"
        self._topic_ids_at_s = time.monotonic()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._poll_for_ever(), self.verifier.run())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.verifier.close()

    # -- limits ----------------------------------------------------------------------------------

    def takes(self, definition: RouteDefinition) -> bool:
        """Whether only `LIVE_FIELDS` of a changed definition differ. The caller finds replicas with a new
        destination."""
        live = {part: getattr(definition.spec, part) for part in LIVE_FIELDS}
        spec = self.definition.spec.model_copy(update=live)
        return (
            self.definition.model_copy(update={"metadata": definition.metadata, "spec": spec}) == definition
        )

    def change(self, definition: RouteDefinition) -> None:
        """Puts a definition that it `takes` into force."""
        self.definition = definition
        self.route = definition.route()
        self.verifier.everything = definition.spec.verify == "all"
        self._set_limits()

    def shared(self, share: WorkerShare) -> None:
        if share != self._share:
            self._share = share
            self._set_limits()

    def need(self, now_s: float) -> LimitNeed | None:
        """This worker's need of the limits, for its heartbeat; None: the route has no limits."""
        if not self.definition.spec.limits.is_limited:
            return None
        self._took_s = {job: at_s for job, at_s in self._took_s.items() if now_s - at_s < BUSY_REPLICA_S}
        used, wants = round(self._usage.per_s(now_s), 4), self._usage.wants(now_s)
        return LimitNeed(self.definition.key, used, wants, weight=max(1, len(self._took_s)))

    def _set_limits(self) -> None:
        limits = self.definition.spec.limits
        self.messages = self._bucket(self.messages, limits.messages_per_second)
        self.bytes = self._bucket(self.bytes, limits.bytes_per_second)

    def _bucket(self, bucket: TokenBucket | None, rate_per_s: float | None) -> TokenBucket | None:
        if rate_per_s is None:
            return None
        if self._share.rate <= 0:
            return bucket  # `wait_s` holds everything back
        rate_per_s *= self._share.rate
        if bucket is None:
            return TokenBucket(rate_per_s)
        bucket.change(rate_per_s, time.monotonic())
        return bucket

    def wait_s(self, now_s: float, records: int, size_bytes: int) -> float:
        """Seconds until the next attempt; 0: the batch may be sent now."""
        wait_s = 0.0
        if self._share.rate <= 0 and self.definition.spec.limits.is_limited:
            wait_s = NO_SHARE_RETRY_INTERVAL_S
        elif self.messages is not None:
            wait_s = self.messages.wait_s(now_s, records)
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(now_s, size_bytes))
        if wait_s:
            self._limited_s = now_s
            self._usage.short(now_s)
        return wait_s or self._priorities.wait_s(self.definition.spec.limits.priority, now_s)

    def spend(self, now_s: float, records: int, size_bytes: int, job: JobId, *, is_behind: bool) -> None:
        """Accounts for a batch of the job that is sent. `is_behind`: the source has a backlog."""
        limits, used = self.definition.spec.limits, 0.0
        if self.messages is not None and limits.messages_per_second:
            self.messages.take(now_s, records)
            used = records / limits.messages_per_second
        if self.bytes is not None and limits.bytes_per_second:
            self.bytes.take(now_s, size_bytes)
            used = max(used, size_bytes / limits.bytes_per_second)
        if used:
            self._usage.add(now_s, used)
            self._took_s[job] = now_s
        presses = is_behind and now_s - self._limited_s > PRIORITY_HOLD_S
        self._priorities.spend(self.definition.spec.limits.priority, job, now_s, size_bytes, presses=presses)

    def leaves(self, capacity_bytes: int) -> int:
        """Bytes of the worker's memory that its fetching leaves to others, by its priority."""
        return int(MEMORY_SHARE_LEFT[self.definition.spec.limits.priority] * capacity_bytes)

    @property
    def divides(self) -> bool:
        """Whether batches that do not fit the destination are divided."""
        return self.definition.spec.sync.on_smaller_limits != "copy"

    # -- for a partition -------------------------------------------------------------------------

    def edit(self, topic: str, partition: int, target_topic: str) -> HeaderEdit | None:
        """The edit of the headers of a partition's copies; None: they stay unchanged."""
        provenance = self.definition.spec.headers.provenance
        if self._keeps is None and not provenance:
            return None
        source = f"{self._source_id or self.source.name}/{topic}"
        target = f"{self._target_id or self.target.name}/{target_topic}"
        return HeaderEdit(self.definition.key, source, partition, target, self._keeps, provenance=provenance)

    def lane_writes(self, pump: RouteReplica) -> LaneWrites | None:
        """Takes the acknowledged batches of a pump whose lane is open, for audits that count copies here."""
        if self.appended is None:
            return None
        ledger, topic_id = pump.ledger, pump.target_log.topic_id
        return self.appended.begin(*pump.target, topic_id, lambda: ledger.sent_to, lambda: ledger.in_flight)

    async def max_batch_bytes(self, target_topic: str) -> int:
        """`max.message.bytes` of a destination topic; Kafka's default if it cannot be read."""
        try:
            found = (await describe(self.target, [target_topic], [MAX_BYTES])).get(target_topic)
            if isinstance(found, TopicSettings):
                return int(found.config[MAX_BYTES])
        except (KafkaError, OSError, TimeoutError, RuntimeError, LookupError, ValueError) as error:
            log.debug("a topic's limit could not be read", topic=target_topic, error=repr(error))
        return KAFKA_MAX_BYTES

    # -- on a timer ------------------------------------------------------------------------------

    async def _poll_for_ever(self) -> None:
        while True:
            await asyncio.sleep(ROUTE_POLL_INTERVAL_S)
            for act in (self._report_renumbered, self._idle_barriers, self._check_target_ids):
                try:
                    await act()
                except Exception as error:  # noqa: BLE001 - the next round tries again
                    log.debug("a route could not be checked", route=self.definition.key, error=repr(error))

    async def _report_renumbered(self) -> None:
        if due := self.renumbered.due(time.monotonic()):
            self._report_incident(
                "batch-renumbered",
                self.definition.key,
                f"the records of {due[0]} batches had other offsets than their broker assigned; the copies"
                f" have the broker's offsets. The last: {due[1]}",
                "find the producer that wrote them; consumers of the source may lose such records",
            )

    async def _check_target_ids(self) -> None:
        """Makes replicas begin again whose destination topic was recreated, because it is another log."""
        ready = [pump for pump in self.pumps if pump.target_log.topic_id]
        if not ready or time.monotonic() - self._topic_ids_at_s < TOPIC_IDS_INTERVAL_S:
            return
        self._topic_ids_at_s = time.monotonic()
        ids = await self.target.topic_ids({pump.target[0] for pump in ready})
        for pump in ready:
            if pump.target_log.is_another(LogId(topic_id=ids.get(pump.target[0], ""))):
                pump.lose(DESTINATION_RECREATED)

    async def _idle_barriers(self) -> None:
        now_s = time.monotonic()
        idle = {
            pump: pump.ledger.appended
            for pump in self.pumps
            if pump.wants_idle_barrier(now_s) or pump.wants_floor(now_s)
        }
        if not idle:
            return
        ends = await self.target.offsets({pump.target for pump in idle}, LATEST)
        # Concurrently, because a destination whose end lies below the floor takes long and yields nothing.
        known = [
            pump.ended_at(ends[pump.target], appended)
            for pump, appended in idle.items()
            if pump.target in ends
        ]
        for result in await asyncio.gather(*known, return_exceptions=True):
            if isinstance(result, Exception):
                log.debug("an idle offset sync failed", route=self.definition.key, error=repr(result))
