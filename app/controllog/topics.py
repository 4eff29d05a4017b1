"""The control topics of a region, declared once: name, partitions, settings.

All of them are created before anything starts. Faust would crash, or not consume for minutes, if a topic
appeared after its agent had started. A table's changelog has exactly as many partitions as the topic that
its agent reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRACKER_PARTITIONS = 8  # at most this many workers write the tracker table and answer takeovers
AUDIT_PARTITIONS = 8  # the same for audits; all tiers of a topic are in one partition
CHECKPOINT_PARTITIONS = 4  # the same for the offset map, which has a tenth of the trackers' events

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

# Events stay below 1 MB (app.controllog.codec). The topics take more, whatever the brokers' own limit is.
_MAX_MESSAGE_BYTES = str(2 * 1024 * 1024)

# Brokers set the timestamps: clocks of workers and clients may be wrong, and brokers refuse timestamps an
# hour in the future.
TIMES = {"message.timestamp.type": "LogAppendTime"}

_COMPACTED = {
    **TIMES,
    "max.message.bytes": _MAX_MESSAGE_BYTES,
    "cleanup.policy": "compact",
    # Compaction waits until the leader has written a valid event after a refused one (controllog.state, rule
    # 5), and a newer row after a paused writer's older row of the tracker table (worker.tracker.fold).
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
        """Workers' heartbeats, with the state of their jobs."""
        return ControlTopic(f"{self.app_id}-heartbeats", 1, _expiring(_HOUR_MS))

    @property
    def trackers(self) -> ControlTopic:
        """Snapshots and takeovers; their order fences old owners (`app.worker.tracker.fold`)."""
        return ControlTopic(f"{self.app_id}-trackers", TRACKER_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def checkpoints(self) -> ControlTopic:
        """Offset syncs (`app.offsets.model.offset_map`), many lines in an event. The table keeps them: its
        changelog is compacted by line."""
        return ControlTopic(f"{self.app_id}-checkpoints", CHECKPOINT_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def audit(self) -> ControlTopic:
        """Audit reports and events that close windows (`app.audit.counts`), by audited topic. Tables keep
        the results."""
        return ControlTopic(f"{self.app_id}-audit", AUDIT_PARTITIONS, _expiring(7 * _DAY_MS))

    @property
    def answers(self) -> ControlTopic:
        """Answers to takeovers from the followers of the tracker topic; all workers read them from the
        end."""
        return ControlTopic(f"{self.app_id}-answers", 1, _expiring(_HOUR_MS))

    @property
    def incidents(self) -> ControlTopic:
        """Incidents that a person must know of: gaps, undecodable batches, fenced workers."""
        return ControlTopic(f"{self.app_id}-incidents", 1, _expiring(30 * _DAY_MS))

    def changelog(self, table: str, partitions: int) -> ControlTopic:
        """The changelog of a Faust table."""
        return ControlTopic(f"{self.app_id}-{table}-changelog", partitions, _COMPACTED)

    @property
    def seals(self) -> ControlTopic:
        """The offsets from which on records need a seal (`app.controllog.seals`). Never compacted, and
        without expiry, so that no offset is lost."""
        config = {**_expiring(-1), "retention.bytes": "-1"}
        return ControlTopic(f"{self.app_id}-seals", 1, config)

    @property
    def sealed(self) -> list[ControlTopic]:
        """The topics that only workers of the region write, each record with a seal
        (`app.controllog.seals`)."""
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
        """The topics that other regions need when this one is lost: assignments, progress, the offset map.
        All are compacted."""
        return [
            self.control,
            self.changelog("checkpoints", CHECKPOINT_PARTITIONS),
            self.changelog("trackers", TRACKER_PARTITIONS),
        ]

    @property
    def followed_by_other_regions(self) -> list[ControlTopic]:
        """The topics whose end other regions read: newer progress and offset syncs than the tables'
        changelogs have."""
        return [self.trackers, self.checkpoints]

    def all(self) -> list[ControlTopic]:
        """Every topic that must exist before a worker starts."""
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
