"""Starts seals, and reports records without one (`app.controllog.seals`).

Rules
1. The leader starts seals when all workers with a heartbeat in the last minute write them; a stopping
   worker may still write. A worker of an earlier version that starts later does not count, because its
   heartbeats have no seal.
2. The leader reports the topics that all workers read; every other topic is reported by its readers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.seals import VERSION, Seals
from app.controllog.topics import ControlTopics
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kernel.incidents import ReportIncident
from app.kernel.repeated_trouble import RepeatedTrouble
from app.worker.jobs.unsealed_records import UnsealedRecords
from app.worker.members.membership import Members

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 1.0
FORMER_S = 60.0  # a worker that stopped or was paused writes nothing after this
REPORT_AFTER_S = 600.0  # a roll-out takes minutes


class SealKeeper(Service):
    """`leads`: whether this worker leads, and may act."""

    def __init__(
        self,
        seals: Seals,
        client: ClusterClient,
        worker: str,
        members: Members,
        leads: Callable[[], bool],
        report_incident: ReportIncident,
        topics: ControlTopics,
    ) -> None:
        super().__init__()
        self._seals = seals
        self._client = client
        self._worker = worker
        self._members = members
        self._leads = leads
        self._report_incident = report_incident
        self._read_by_all = {topics.control.name, topics.heartbeats.name, topics.answers.name}
        self._unsealed = UnsealedRecords(report_incident)
        self._leads_since_s: float | None = None
        self._waits = RepeatedTrouble()
        self._has_warned = False
        self._former: list[str] = []  # in the last report

    @Service.task
    async def _keep(self) -> None:
        while not self.should_stop:
            await self.sleep(POLL_INTERVAL_S)
            try:
                now_s = time.monotonic()
                self.report(now_s)
                await self._begin(now_s)
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                log.warning("the leader cannot start seals yet", error=repr(error), retry_s=POLL_INTERVAL_S)
            except Exception:
                log.exception("the seal keeper failed; it tries again")

    def report(self, now_s: float) -> None:
        left_to_leader = set() if self._leads() else self._read_by_all
        self._unsealed.report(
            [one for one in self._seals.take_refused() if one.topic not in left_to_leader], now_s
        )

    async def _begin(self, now_s: float) -> None:
        if not self._seals.missing or not self._leads():
            self._leads_since_s = None
            return
        if self._leads_since_s is None:
            self._leads_since_s = now_s
        leads_for_s = now_s - self._leads_since_s
        if leads_for_s < self._members.dead_after_s:
            return  # heartbeats of other workers may not have come yet
        heard = [(at_s, beat) for at_s, beat in self._members.heard.values() if beat.seals < VERSION]
        former = sorted(beat.worker for at_s, beat in heard if now_s - at_s < FORMER_S)
        if not former and self._worker in self._members.live(now_s):
            if self._seals.has_key:
                await self._seals.begin(self._client, self._worker)
            elif not self._has_warned:
                self._has_warned = True
                log.warning(
                    "control topics have no seals, because brokers before Kafka 2.8 give no topic ids",
                    remedy="docs/permissions.md says which principals may write there",
                )
        elif former and leads_for_s > REPORT_AFTER_S:
            self._waits.record(", ".join(former[:5]))
            if self._waits.due(now_s) is not None:
                self._former, shown = former, former
                self._report_incident(
                    "seals-wait", self._worker,
                    f"control topics have no seals yet: {len(former)} workers of an earlier version run, "
                    f"among them {', '.join(former[:5])}",
                    "update them: until then every principal that may write to the control topics is trusted",
                    lambda: not self._seals.missing or not self._leads() or self._former != shown,
                )  # fmt: skip
