"""Every control topic of a region, declared once: name, partitions, retention.

All of them are created before anything starts, because a topic that Kafka makes by itself (or one
that appears after a Faust agent has started) is not consumed for minutes or crashes the table.
A table's changelog has exactly as many partitions as the topic its agent reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRACKER_PARTITIONS = 8  # how far writing the tracker table and answering takeovers can be spread over workers
AUDIT_PARTITIONS = 8  # the same of what is audited: a topic's tiers are in one
CHECKPOINT_PARTITIONS = 4  # the same of the offset map: a tenth of the trackers' events, and no answers

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

# Events are kept below 1 MB (app.controllog.codec): a broker whose own limit is lower must not stop the
# control plane.
_MAX_MESSAGE_BYTES = str(2 * 1024 * 1024)

# The brokers' time: no worker's clock, nor a client's, is trusted to be right, and brokers refuse timestamps
# that lie an hour ahead of theirs.
TIMES = {"message.timestamp.type": "LogAppendTime"}

_COMPACTED = {
    **TIMES,
    "max.message.bytes": _MAX_MESSAGE_BYTES,
    "cleanup.policy": "compact",
    # A fresh reader must never find that compaction kept a refused event before the leader could
    # write the valid one again (controllog.state, rule 5), nor an old record of the tracker table that a
    # paused writer wrote behind a newer one (worker.tracker.fold).
    "min.compaction.lag.ms": str(10 * 60_000),
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(_HOUR_MS),
}


@dataclass(frozen=True, slots=True)
class ControlTopic:
    """A topic as it must exist in the control cluster."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


def _expiring(retention_ms: int) -> dict[str, str]:
    return {
        **TIMES,
        "cleanup.policy": "delete",
        "max.message.bytes": _MAX_MESSAGE_BYTES,
        "retention.ms": str(retention_ms),
        "segment.bytes": str(16 * 1024 * 1024),
    }


@dataclass(frozen=True, slots=True)
class ControlTopics:
    """The control topics of `region`; `app_id` is also the Faust application's id."""

    region: str

    @property
    def app_id(self) -> str:
        return f"switchyard-{self.region}"

    @property
    def control(self) -> ControlTopic:
        """Definitions, leadership, assignments: one partition, one order, compacted."""
        return ControlTopic(f"{self.app_id}-control", 1, _COMPACTED)

    @property
    def heartbeats(self) -> ControlTopic:
        """Workers prove that they live, and say what they do."""
        return ControlTopic(f"{self.app_id}-heartbeats", 1, _expiring(_HOUR_MS))

    @property
    def trackers(self) -> ControlTopic:
        """Snapshots and takeovers: its order is the fence (`app.worker.tracker.fold`)."""
        return ControlTopic(f"{self.app_id}-trackers", TRACKER_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def checkpoints(self) -> ControlTopic:
        """Barriers of the offset map (`app.offsets.model.offset_map`). An event carries those of many lines:
        what is kept is the table, whose changelog is compacted, by line."""
        return ControlTopic(f"{self.app_id}-checkpoints", CHECKPOINT_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def audit(self) -> ControlTopic:
        """Audit reports and what closes windows (`app.audit.counts`), by audited topic. What is kept are the
        tables."""
        return ControlTopic(f"{self.app_id}-audit", AUDIT_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def answers(self) -> ControlTopic:
        """Answers to takeovers, by those who follow the tracker topic; all workers read them from the end."""
        return ControlTopic(f"{self.app_id}-answers", 1, _expiring(_HOUR_MS))

    @property
    def incidents(self) -> ControlTopic:
        """What happened that a person must know: gaps, undecodable batches, fenced workers."""
        return ControlTopic(f"{self.app_id}-incidents", 1, _expiring(30 * _DAY_MS))

    def changelog(self, table: str, partitions: int) -> ControlTopic:
        """The changelog of a Faust table."""
        return ControlTopic(f"{self.app_id}-{table}-changelog", partitions, _COMPACTED)

    @property
    def seals(self) -> ControlTopic:
        """From which offset on records have a seal (`app.controllog.seals`). Never compacted, and without an
        end: what stood there once stands."""
        config = {**_expiring(-1), "retention.bytes": "-1"}
        return ControlTopic(f"{self.app_id}-seals", 1, config)

    @property
    def sealed(self) -> list[ControlTopic]:
        """What only workers of the region write, each record with a seal (`app.controllog.seals`)."""
        return [
            self.control,
            self.heartbeats,
            self.trackers,
            self.checkpoints,
            self.answers,
            *(topic for topic in self.all() if topic.name.endswith("-changelog")),
        ]

    @property
    def needed_by_other_regions(self) -> list[ControlTopic]:
        """What other regions need when this one is lost: who does what, how far it is, how offsets map.
        Compacted, all of it."""
        return [
            self.control,
            self.changelog("checkpoints", CHECKPOINT_PARTITIONS),
            self.changelog("trackers", TRACKER_PARTITIONS),
        ]

    @property
    def followed_by_other_regions(self) -> list[ControlTopic]:
        """What other regions read the end of: how far this one is, and where its copies lie, before the
        tables' writers say so."""
        return [self.trackers, self.checkpoints]

    def all(self) -> list[ControlTopic]:
        """Everything that must exist before a worker starts."""
        return [
            self.control,
            self.heartbeats,
            self.trackers,
            self.checkpoints,
            self.audit,
            self.answers,
            self.incidents,
            self.seals,
            self.changelog("workloads", 1),
            self.changelog("routes", 1),
            self.changelog("audit_plans", 1),
            self.changelog("assignments", 1),
            self.changelog("activity", 1),
            self.changelog("trackers", TRACKER_PARTITIONS),
            self.changelog("checkpoints", CHECKPOINT_PARTITIONS),
            self.changelog("audit_windows", AUDIT_PARTITIONS),
            self.changelog("audit_tiers", AUDIT_PARTITIONS),
        ]
