"""Plans what a destination topic needs so that it can take its sources' records. Pure, so that a dry run and
the deed agree.

Rules
1. The destination topic has as many partitions as its largest source. Additional ones are reported and kept,
   because Kafka removes no partition.
2. Retention, compaction and similar settings follow the source (`SYNCED`) if they are set for the source
   topic. A setting that the source topic does not have (any more) returns to the destination's default. If
   sources disagree, that is reported and the setting stays as it is, so two routes never overwrite each
   other. If the topic had records before any route wrote to it, its settings of `KEPT` stay as well, because
   a change could delete these records. `adopt` lets them follow.
3. No other setting follows, above all not what is up to the destination cluster: throttled replicas,
   `min.insync.replicas`, unclean elections, tiered storage and its local retention.
4. Records must arrive unchanged (`_forced`). So the destination keeps their timestamps, also those that the
   source stamped itself. It takes records of any age, and of any size that a source could store. Limits are
   only raised, because records that were written under an older, higher limit may still come.
5. `leave` names settings that people keep by hand. If such a setting is in the way of records, the plan
   reports it. The same holds for a setting that the destination's brokers do not allow to be altered.
6. If a limit is smaller than the source's and cannot be raised, only `block` keeps the topic from being
   copied. Otherwise the records that fit are copied and the others wait (`app.replicate.pump.blocked_batch`).
   A setting that would change records' timestamps always blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MAX_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
NEWEST = "message.timestamp.after.max.ms"
OLDEST = "message.timestamp.before.max.ms"
ANY_AGE = str(2**63 - 1)  # Kafka's own default

Smaller = Literal["block", "copy", "divide"]  # the action at a destination with smaller limits
STRICTEST: tuple[Smaller, ...] = ("block", "copy", "divide")  # if routes differ, the first of these counts

SYNCED = frozenset({
    "cleanup.policy", "compression.type", "compression.gzip.level", "compression.lz4.level",
    "compression.zstd.level", "delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms",
    "min.cleanable.dirty.ratio", "retention.bytes", "retention.ms", "segment.bytes", "segment.ms",
})  # fmt: skip
# Those of `SYNCED` that decide which records stay in the topic.
KEPT = frozenset({
    "cleanup.policy", "delete.retention.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "retention.bytes", "retention.ms",
})  # fmt: skip
SETTINGS = SYNCED | {MAX_BYTES, TIMESTAMP_TYPE, NEWEST, OLDEST}  # all that a plan looks at


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as its cluster describes it.

    Attributes:
        partitions: The number of partitions.
        config: All known settings, with the broker's defaults.
        own: The names of the settings that are set for the topic.
    """

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    own: Collection[str] = ()


class TopicFinding(NamedTuple):
    """What differs or is refused, and what people can do: "" where nothing has to be done."""

    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True)
class TopicSync:
    """The changes that the route allows at the destination topic.

    Attributes:
        leave: Settings that are never changed.
        smaller: The action if the destination's limits are smaller than the source's and cannot be raised
            (rule 6).
        adopt: Settings of `KEPT` follow also where others' records are in the topic.
        refused: Why the destination refuses an action (create, partitions). The plan does not try such an
            action now.
    """

    create: bool = True
    partitions: bool = True
    configuration: bool = True
    leave: Collection[str] = ()
    smaller: Smaller = "divide"
    adopt: bool = False
    refused: Mapping[str, TopicFinding] = field(default_factory=dict)


class SettingChange(NamedTuple):
    """A setting's old and new value, for people. `old` is None for a new topic, `new` is None for the
    default."""

    setting: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        new = "the default" if self.new is None else self.new
        return f"{self.setting} {new}" if self.old is None else f"{self.setting} {self.old} -> {new}"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The changes to make, in this order, and the differences that stay.

    Attributes:
        create: Partitions and settings of the missing topic; None: nothing to create.
        expand_to: The number of partitions to reach; None: there are enough.
        alter: Settings to set, or (None) to reset to the default.
        blocked: Why none or not all of the records could be copied.
        notes: Differences that do not stop the copying; records that do not fit wait.
    """

    create: tuple[int, dict[str, str]] | None = None
    expand_to: int | None = None
    alter: Mapping[str, str | None] = field(default_factory=dict)
    blocked: tuple[TopicFinding, ...] = ()
    notes: tuple[TopicFinding, ...] = ()

    @property
    def changes(self) -> bool:
        return self.create is not None or self.expand_to is not None or bool(self.alter)

    def setting_changes(self, present: TopicState | None) -> list[SettingChange]:
        """All changes, value by value. `present` is the topic that was planned for."""
        if self.create is not None:
            partitions, config = self.create
            created = {"partitions": str(partitions), **dict(sorted(config.items()))}
            return [SettingChange(name, None, value) for name, value in created.items()]
        assert present is not None, "only a missing topic is created"
        count = str(present.partitions)
        grown = (
            [SettingChange("partitions", count, str(self.expand_to))] if self.expand_to is not None else []
        )
        altered = sorted(self.alter.items())
        return [*grown, *(SettingChange(name, present.config.get(name), value) for name, value in altered)]


def plan_topic(
    sources: Mapping[str, TopicState], present: TopicState | None, sync: TopicSync, *, is_own: bool = True
) -> TopicPlan:
    """Plans the changes that make a destination topic fit for its sources.

    After they are carried out, a second plan is empty, except after a creation: only then are the broker's
    defaults visible. `sources` are all topics that are copied to it, at least one, by a label such as "orders
    in east". `present` is the destination topic, None if there is none. `is_own`: it had no record before
    the first route wrote to it."""
    assert sources, "a destination has a source"
    partitions = max(source.partitions for source in sources.values())
    wanted, notes = _followed(sources, sync)
    forced = _forced(sources)
    if present is None:
        if not sync.create:
            absent = TopicFinding(
                "the destination topic does not exist", "create it, or write sync.create: true"
            )
            return TopicPlan(blocked=(sync.refused.get("create", absent),))
        everywhere = {name: forced[name] for name in (MAX_BYTES, TIMESTAMP_TYPE) if name in forced}
        own = {name: value for name, value in (wanted | everywhere).items() if value is not None}
        config = {name: value for name, value in own.items() if name not in sync.leave}
        return TopicPlan(create=(partitions, config), notes=tuple(notes))
    blocked = []
    expand_to = None
    count = f"it has {present.partitions} partitions, the source {partitions}"
    if present.partitions > partitions:
        notes.append(TopicFinding(f"{count}: the others stay empty"))
    elif present.partitions < partitions and sync.partitions:
        expand_to = partitions
    elif present.partitions < partitions:
        too_few = TopicFinding(count, "add partitions, or write sync.partitions: true")
        blocked.append(sync.refused.get("partitions", too_few))
    differing = {name: value for name, value in wanted.items() if _own(present, name) != value}
    if (
        not is_own
        and not sync.adopt
        and (kept := {name: differing.pop(name) for name in KEPT & differing.keys()})
    ):
        notes.append(_why_kept(kept, present))
    alter = {name: value for name, value in differing.items() if name in present.config}
    notes += [
        TopicFinding(f"{name}: the destination's brokers do not know it")
        for name in differing.keys() - alter.keys()
    ]
    for name, value in forced.items():
        if not _in_the_way(name, value, present):
            continue
        if sync.configuration and name not in sync.leave:
            alter[name] = value
        elif name == TIMESTAMP_TYPE or sync.smaller == "block":
            blocked.append(_why(name, value, present, sync.smaller))
        else:
            notes.append(_why(name, value, present, sync.smaller))
    return TopicPlan(None, expand_to, alter, tuple(blocked), tuple(notes))


def _followed(
    sources: Mapping[str, TopicState], sync: TopicSync
) -> tuple[dict[str, str | None], list[TopicFinding]]:
    """The settings that all sources agree on (None: the default), and a note for each of the others."""
    if not sync.configuration:
        return {}, []
    wanted: dict[str, str | None] = {}
    notes = []
    for name in sorted(SYNCED.difference(sync.leave)):
        values = {label: _own(source, name) for label, source in sources.items()}
        if len(set(values.values())) == 1:
            wanted[name] = next(iter(values.values()))
        else:
            shown = ", ".join(f"{value or 'the default'} ({label})" for label, value in values.items())
            notes.append(TopicFinding(f"{name}: the sources disagree, so it stays as it is: {shown}"))
    return wanted, notes


def _forced(sources: Mapping[str, TopicState]) -> dict[str, str]:
    """The settings that the destination needs so that records arrive unchanged."""
    forced = {TIMESTAMP_TYPE: "CreateTime", OLDEST: ANY_AGE}
    for name in (MAX_BYTES, NEWEST):
        limits = [_number(source.config.get(name)) for source in sources.values()]
        known = [limit for limit in limits if limit is not None]
        if known:
            forced[name] = str(max(known))
    return forced


def _in_the_way(name: str, value: str, present: TopicState) -> bool:
    current = present.config.get(name)
    if current is None:  # the broker does not know the setting, or did not say
        return False
    if name == TIMESTAMP_TYPE:
        return current != value
    number = _number(current)
    return number is None or number < int(value)


def _why(name: str, value: str, present: TopicState, smaller: Smaller) -> TopicFinding:
    harm = {
        TIMESTAMP_TYPE: "timestamps would be overwritten",
        OLDEST: "older records do not fit",
        NEWEST: "records from the future, which the source takes, do not fit",
        MAX_BYTES: "larger batches are divided, and larger records do not fit",
    }[name]
    if name == MAX_BYTES and smaller == "copy":
        harm = "larger batches do not fit"
    if name != TIMESTAMP_TYPE and smaller != "block":
        harm += ", and wait"
    remedy = f"set it to {value}"
    if name != TIMESTAMP_TYPE and smaller == "block":
        remedy += ", or write sync.onSmallerLimits: divide"
    return TopicFinding(f"{name} is {present.config[name]}: {harm}", remedy)


def _why_kept(kept: Mapping[str, str | None], present: TopicState) -> TopicFinding:
    shown = ", ".join(
        f"{name} stays {present.config.get(name, 'as it is')} (source: {value or 'the default'})"
        for name, value in sorted(kept.items())
    )
    return TopicFinding(
        f"it has records, and Switchyard did not see it empty, so {shown}",
        "write sync.adopt: true to let the route change them, which may delete records; or set them by hand, "
        "or list them in sync.leave",
    )


def _own(topic: TopicState, name: str) -> str | None:
    return topic.config.get(name) if name in topic.own else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
