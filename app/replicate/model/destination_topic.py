"""What a destination topic needs, to take what its sources hold: pure, so that a dry run and the deed agree.

Rules
1. It has as many partitions as its largest source. More are told and kept: Kafka takes none away.
2. Configuration that says how long and how records are kept follows the source (`SYNCED`), where it was set
   for the topic; a setting that the source does not have (any more) goes back to the destination's default.
   Sources that disagree are told, and the setting stays as it is: two routes never quarrel over it.
3. Nothing else follows. Above all not what is the destination cluster's own business: throttled replicas,
   `min.insync.replicas`, unclean elections, a second storage tier and what is kept before it.
4. Records must arrive as they are (`_forced`): the destination keeps their timestamps, also those that the
   source stamped itself; it takes them at any age, and at any size that a source could store. Its limits are
   only ever raised: what was written under an older, higher limit still comes.
5. `leave` names settings that somebody keeps by hand; what then stands in the way is told. So it is where the
   destination's brokers let nobody alter them.
6. A limit that is smaller than the source's and cannot be raised keeps a topic from being copied only where
   the route says `block`: else what fits is copied, and what does not waits
   (`app.replicate.pump.blocked_batch`). What would give records other timestamps blocks always.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
NEWEST = "message.timestamp.after.max.ms"
OLDEST = "message.timestamp.before.max.ms"
ANY_AGE = str(2**63 - 1)  # Kafka's own default

Smaller = Literal["block", "copy", "divide"]  # what is done at a destination with smaller limits
STRICTEST: tuple[Smaller, ...] = ("block", "copy", "divide")  # which counts where several routes differ

SYNCED = frozenset({
    "cleanup.policy", "compression.type", "compression.gzip.level", "compression.lz4.level",
    "compression.zstd.level", "delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms",
    "min.cleanable.dirty.ratio", "retention.bytes", "retention.ms", "segment.bytes", "segment.ms",
})  # fmt: skip
SETTINGS = SYNCED | {MAX_BYTES, TIMESTAMP_TYPE, NEWEST, OLDEST}  # all that a plan looks at


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is.

    Attributes:
        partitions: how many.
        config: its settings, all that are known, with the broker's defaults.
        own: those that were set for the topic.
    """

    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    own: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class TopicSync:
    """What may be done to the destination topic; `leave` are settings never to be touched. `smaller`: what is
    done where its limits are smaller than the source's, and cannot be raised (rule 6). `refused`: why the
    destination does not do what the route wants (create, partitions), with the remedy; then it is not to be
    done now."""

    create: bool = True
    partitions: bool = True
    configuration: bool = True
    leave: Collection[str] = ()
    smaller: Smaller = "divide"
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do, in this order, and what cannot be done.

    Attributes:
        create: partitions and settings of the topic that is missing; None when there is nothing to create.
        expand_to: partitions to have; None when there are enough.
        alter: settings to set, or (None) to take back to the default.
        blocked: why records could not be copied, or not all of them; with the remedy.
        told: what is not as at the source and hurts nobody's data.
    """

    create: tuple[int, dict[str, str]] | None = None
    expand_to: int | None = None
    alter: Mapping[str, str | None] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.create is not None or self.expand_to is not None or bool(self.alter)


def plan_topic(sources: Mapping[str, TopicState], present: TopicState | None, sync: TopicSync) -> TopicPlan:
    """What makes a destination topic fit for its sources; carried out, it leaves nothing to do.

    After a creation it may: which defaults a broker has is seen only then.

    `sources` are all topics that are copied to it, by a name for people such as "orders in east"; at least
    one. `present` is the destination topic, None when there is none.
    """
    assert sources, "a destination has a source"
    partitions = max(source.partitions for source in sources.values())
    wanted, told = _followed(sources, sync)
    forced = _forced(sources)
    if present is None:
        if not sync.create:
            why = "the destination topic does not exist; create it, or write sync.create: true"
            return TopicPlan(blocked=(sync.refused.get("create", why),))
        everywhere = {name: forced[name] for name in (MAX_BYTES, TIMESTAMP_TYPE) if name in forced}
        own = {name: value for name, value in (wanted | everywhere).items() if value is not None}
        config = {name: value for name, value in own.items() if name not in sync.leave}
        return TopicPlan(create=(partitions, config), told=tuple(told))
    blocked = []
    expand_to = None
    if present.partitions > partitions:
        told.append(f"it has {present.partitions} partitions, the source {partitions}: the others stay empty")
    elif present.partitions < partitions and sync.partitions:
        expand_to = partitions
    elif present.partitions < partitions:
        few = f"it has {present.partitions} partitions, the source {partitions}; "
        remedy = "add partitions, or write sync.partitions: true"
        blocked.append(sync.refused.get("partitions", few + remedy))
    differing = {name: value for name, value in wanted.items() if _own(present, name) != value}
    alter = {name: value for name, value in differing.items() if name in present.config}
    told += [f"{name}: the destination's brokers do not know it" for name in differing.keys() - alter.keys()]
    for name, value in forced.items():
        if not _in_the_way(name, value, present):
            continue
        if sync.configuration and name not in sync.leave:
            alter[name] = value
        elif name == TIMESTAMP_TYPE or sync.smaller == "block":
            blocked.append(_why(name, value, present, sync.smaller))
        else:
            told.append(_why(name, value, present, sync.smaller))
    return TopicPlan(None, expand_to, alter, tuple(blocked), tuple(told))


def _followed(sources: Mapping[str, TopicState], sync: TopicSync) -> tuple[dict[str, str | None], list[str]]:
    """Settings as all sources have them (None: the default), and what they disagree on."""
    if not sync.configuration:
        return {}, []
    wanted: dict[str, str | None] = {}
    told = []
    for name in sorted(SYNCED.difference(sync.leave)):
        values = {label: _own(source, name) for label, source in sources.items()}
        if len(set(values.values())) == 1:
            wanted[name] = next(iter(values.values()))
        else:
            shown = ", ".join(f"{value or 'the default'} ({label})" for label, value in values.items())
            told.append(f"{name}: the sources disagree, so it stays as it is: {shown}")
    return wanted, told


def _forced(sources: Mapping[str, TopicState]) -> dict[str, str]:
    """What the destination must have for records to arrive as they are."""
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


def _why(name: str, value: str, present: TopicState, smaller: Smaller) -> str:
    harm = {
        TIMESTAMP_TYPE: "timestamps would be overwritten",
        OLDEST: "older records do not fit",
        NEWEST: "records of the future, which the source takes, do not fit",
        MAX_BYTES: "larger batches are divided, and larger records do not fit",
    }[name]
    if name == MAX_BYTES and smaller == "copy":
        harm = "larger batches do not fit"
    if name != TIMESTAMP_TYPE and smaller != "block":
        harm += ", and wait"
    remedy = f"set it to {value}"
    if name != TIMESTAMP_TYPE and smaller == "block":
        remedy += ", or write sync.onSmallerLimits: divide"
    return f"{name} is {present.config[name]}: {harm}; {remedy}"


def _own(topic: TopicState, name: str) -> str | None:
    return topic.config.get(name) if name in topic.own else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
