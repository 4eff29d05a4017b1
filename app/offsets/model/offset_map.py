"""The offset map: for an offset of a source, the offset in its copy below which the same records lie.

    offset sync (S, T)   every kept record of the source below S has a copy below T;
                         no record of the source from S on has a copy below T
    line                 the offset syncs of one source partition in one destination partition, in order

All offsets are next offsets. An offset sync stays true in its lineage, because logs only grow. It may arrive
twice, late or not at all: a missing one moves a translated position back, never forward.

Rules by which a replica records offset syncs (`tests/offsets/model/test_offset_map.py`)
1. It records one only at a new maximum of the source offset. After a restart, the replica first passes every
   offset that its previous owner may have sent.
2. A line's first offset sync is its genesis: where copying began, and where the destination ended before.
3. An idle offset sync has the same S, and the destination's end as T. Without it an idle source would hold
   back readers of other sources. It is recorded once all sent records are acknowledged, if the replica sent
   none before it knew that end.
4. A topic that was recreated or truncated, on either side, is another log. It gets another lineage, and
   the line begins again.
5. A replica that had not read up to a truncation does not notice it. So each line names the leader epochs
   in which its source was read (`app.kafka.records.leader_epochs`). Two lines of one source agree only
   below the offset that `OffsetMapLine.agrees_below` returns.

Thinning drops offset syncs of a line with more than `MAX_BARRIERS`, so that neighbours lie apart by a share
of their distance from the newest. The share is as small as the limit allows, so a reader reads again a few
percent of its lag. `PinnedOffsets` keep the offset syncs that readers at rest need.

A deleted route leaves its lines, because readers still have to finish its copies. They get no idle offset
syncs; a `LineEnd` says instead where the log has no copies of the line.

Source: Uber, Disaster Recovery for Multi-Region Kafka, "offset management service". Its own pairing of the
latest checkpoints loses records when a source is idle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import msgspec

from app.kafka.records.leader_epochs import ENDLESS, NOWHERE, Epochs, agree_below, joined_epochs
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId

MAX_BARRIERS = 512  # in a line: every offset sync rewrites its record, which stays below 40 kB
THINNED_TO = 384  # below MAX_BARRIERS, so that not every further offset sync thins the line
FINEST_SHARE = 1 / 256
MAX_NEEDS = 100  # pinned offsets of each kind in a line; readers beyond it lose a few percent

_source_end = attrgetter("source_end")
_target_end = attrgetter("target_end")


class Barrier(msgspec.Struct, frozen=True, array_like=True):
    """An offset sync of two next offsets, recorded at `at_ms`. Records that the producer of a `stamp`
    (`app.kafka.records.producer_sequences`) wrote before it are copies from below `source_end`; its later
    ones are copies from `source_end` on."""

    source_end: int
    target_end: int
    at_ms: int = 0
    stamp: ProducerStamp | None = None


class _LineItem(msgspec.Struct, frozen=True, array_like=True):
    """An item about one line; its fields are the source partition, as the route's job names it."""

    route: str
    topic: str
    partition: int

    @property
    def key(self) -> str:
        return line_key(self.route, self.topic, self.partition)


class BarrierItem(_LineItem, frozen=True, array_like=True):
    """New offset syncs of one line on their way to the table, oldest first.

    Attributes:
        epoch, lineage: The recording job's.
        source, target: The logs of the offsets; the target is the copy.
        source_epoch: The leader epoch in which the source was found truncated; 0: never.
        losses: How often the copy was found to have lost acknowledged records from its end.
        epochs: The leader epochs in which the replica read the source; (): not known.
    """

    epoch: int
    lineage: int
    source: LogId
    target: LogId
    target_topic: str
    target_partition: int
    barriers: list[Barrier]
    source_epoch: int = 0
    losses: int = 0
    epochs: Epochs = ()


class Barriers(msgspec.Struct, frozen=True, tag="barriers", tag_field="event", kw_only=True):
    """Offset syncs of many lines, from one worker; all lines are in one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[BarrierItem]


class PinnedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Next offsets of readers at rest, ascending: `read` in the copy, `resumed` in its source."""

    read: list[int] = []
    resumed: list[int] = []


NO_PINS = PinnedOffsets()


class NeedItem(_LineItem, frozen=True, array_like=True):
    """A line's pinned offsets from now on. `target`: the copy's log to which they belong."""

    target: LogId
    needs: PinnedOffsets


class PinRequests(msgspec.Struct, frozen=True, tag="needed", tag_field="event", kw_only=True):
    """The leader's pinned offsets for many lines, all in one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[NeedItem]


class LineEnd(msgspec.Struct, frozen=True, array_like=True):
    """A line's end, while its job has no owner: where the log `target` has none of its copies.

    [since, until) has none. No record of its source from `source_end` on (`ENDLESS`: not known) has a copy
    below `until`. Both stay true under a later owner, because it copies from `until` on.
    `epoch`: the job's highest so far. While the line has no higher one, the job had no owner in between.
    """

    epoch: int
    target: LogId
    source_end: int
    since: int
    until: int


class EndedItem(_LineItem, frozen=True, array_like=True):
    """A line's `LineEnd`, with the `lineage` and `source` of the line when the leader read it."""

    lineage: int
    source: LogId
    ended: LineEnd


class EndedLines(msgspec.Struct, frozen=True, tag="ended", tag_field="event", kw_only=True):
    """The leader's `LineEnd`s for many lines, all in one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[EndedItem]


class OffsetMapLine(msgspec.Struct, frozen=True, kw_only=True):
    """A source partition's row in the checkpoint table; see also `BarrierItem`.

    Attributes:
        epoch: The highest epoch of a job that wrote the row; lower ones are refused.
        lineage: How often the job's offsets have begun to mean other records.
        barriers: The offset syncs. Neither source ends nor target ends decrease.
        needs: Pinned offsets; thinning keeps their offset syncs, the genesis and the newest.
        epochs: Covers the source up to the newest offset sync at least; (): not known.
        ended: The end of a line without an owner; None: its job has an owner, or the end is not known.
    """

    target_topic: str
    target_partition: int
    epoch: int
    lineage: int
    source: LogId
    target: LogId
    barriers: list[Barrier]
    source_epoch: int = 0
    losses: int = 0
    needs: PinnedOffsets = NO_PINS
    epochs: Epochs = ()
    ended: LineEnd | None = None

    def is_of_another(self, other: OffsetMapLine | BarrierItem) -> bool:
        """Whether the source's offsets certainly mean other records in `other`."""
        return self.source_epoch != other.source_epoch or self.source.is_another(other.source)

    def agrees_below(self, other: OffsetMapLine) -> int:
        """The source offset below which both lines mean the same records; `NOWHERE`: not known of any."""
        if self.source.is_another(other.source):
            return NOWHERE
        # Copies of lost records lie below the genesis of a line that began again, and above an older line.
        if self.source_epoch != other.source_epoch and not (self._knows_of(other) and other._knows_of(self)):
            return NOWHERE
        if self.epochs and other.epochs:
            return agree_below(self.epochs, other.epochs)
        unknown = [line for line in (self, other) if not line.epochs]
        return ENDLESS if len(unknown) == 2 else _newest_ends(unknown[0].barriers)[0]

    def _knows_of(self, other: OffsetMapLine) -> bool:
        """Whether it has read the source since the truncation at which the other line began again."""
        return bool(self.epochs) and self.epochs[-1].epoch >= other.source_epoch

    def read_up_to(self, next_offset: int) -> int | None:
        """k: a reader at `next_offset` of the copy has read all of the source below k; None: not known."""
        at = bisect_right(self.barriers, next_offset, key=_target_end)
        return self.barriers[at - 1].source_end if at else None

    def resume_at(self, source_end: int) -> int | None:
        """x: no record of the source from `source_end` on has a copy below x; None: not known."""
        at = bisect_right(self.barriers, source_end, key=_source_end)
        return self.barriers[at - 1].target_end if at else None


def line_key(route: str, topic: str, partition: int) -> str:
    """The line's key in the table; no part contains a '/'."""
    return f"{route}/{topic}/{partition}"


def after(line: OffsetMapLine | None, item: BarrierItem) -> OffsetMapLine | None:
    """The line with the offset syncs of `item`; None when they are refused or change nothing. Items of an
    older epoch, lineage or loss are refused, and so are offset syncs behind the newest one. Applying the same
    items again, in their order, ends in the same line."""
    if line is not None and (item.epoch, item.lineage, item.losses) < (line.epoch, line.lineage, line.losses):
        return None
    continues = (
        line is not None
        and (item.lineage, item.losses) == (line.lineage, line.losses)
        and (item.target_topic, item.target_partition) == (line.target_topic, line.target_partition)
        and not line.is_of_another(item)
        and not line.target.is_another(item.target)
    )
    before, source, target, needs, epochs = [], item.source, item.target, NO_PINS, item.epochs
    if line is not None and continues:
        before, source, target = line.barriers, line.source.filled_in(source), line.target.filled_in(target)
        needs, epochs = line.needs, line.epochs
        if _newest_ends(item.barriers) > _newest_ends(before):  # otherwise the item may be a late repetition
            epochs, holds_below = joined_epochs(line.epochs, item.epochs)
            if holds_below < ENDLESS:
                before = _still_true(before, holds_below)
    barriers = thinned(_extended(before, item.barriers), needs)
    if not barriers:
        return None
    ended = None if line is None or not continues else line.ended
    if ended is not None and ended.epoch < item.epoch:
        ended = None  # the job has an owner again
    new = OffsetMapLine(
        target_topic=item.target_topic, target_partition=item.target_partition, epoch=item.epoch,
        lineage=item.lineage, source=source, target=target, barriers=barriers,
        source_epoch=item.source_epoch, losses=item.losses, needs=needs, epochs=epochs, ended=ended,
    )  # fmt: skip
    return None if new == line else new


def with_pins(line: OffsetMapLine | None, item: NeedItem) -> OffsetMapLine | None:
    """The line with these pinned offsets; None when they are another copy's, or change nothing."""
    if line is None or line.target.is_another(item.target) or line.needs == item.needs:
        return None
    return msgspec.structs.replace(line, needs=item.needs)


def at_end(line: OffsetMapLine | None, item: EndedItem) -> OffsetMapLine | None:
    """The line with this end; None when it had an owner since, the source differs, or nothing changes."""
    new = item.ended
    if line is None or line.epoch > new.epoch or line.lineage != item.lineage:
        return None
    if line.source.is_another(item.source):
        return None
    known = line.ended
    if known is not None and known.epoch > new.epoch:
        return None
    if known is not None and (known.epoch, known.target) == (new.epoch, new.target):
        new = LineEnd(
            new.epoch, new.target, min(known.source_end, new.source_end), min(known.since, new.since),
            max(known.until, new.until),
        )  # fmt: skip
    return None if new == known else msgspec.structs.replace(line, ended=new)


def needs_of(read: Iterable[int], resumed: Iterable[int]) -> PinnedOffsets:
    """Pinned offsets for the readers that are furthest behind; negative offsets are left out."""
    return PinnedOffsets(*(sorted({at for at in found if at >= 0})[:MAX_NEEDS] for found in (read, resumed)))


def _still_true(barriers: Sequence[Barrier], below: int) -> list[Barrier]:
    """The offset syncs that hold when the source is known to be unchanged only below that offset. Copies
    behind a former owner's last offset sync may be of later records (`app.offsets.model.source_frontier`)."""
    return [one for one in barriers if one.source_end <= below]


def _newest_ends(barriers: Sequence[Barrier]) -> tuple[int, int]:
    return (barriers[-1].source_end, barriers[-1].target_end) if barriers else (-1, -1)


def _extended(barriers: Sequence[Barrier], more: Iterable[Barrier]) -> list[Barrier]:
    """Appends `more`, without the middle of three offset syncs with one source end. The first has the least T
    that a reader may have reached, the last the greatest T where one may continue. The same holds for three
    with one target end. A middle one stays if neither neighbour has its stamp, because no other stamp covers
    that lane's records."""
    extended = list(barriers)
    for new in more:
        last = extended[-1] if extended else None
        if last is not None:
            grown = new.source_end - last.source_end, new.target_end - last.target_end
            if min(grown) < 0 or (max(grown) == 0 and (new.stamp is None or _is_stamped(extended, new))):
                continue
            if max(grown) == 0 and last.stamp is None:
                extended.pop()
            elif len(extended) > 1:
                other = extended[-2]
                at_one_end = (
                    other.source_end == new.source_end == last.source_end
                    or other.target_end == new.target_end == last.target_end
                )
                if at_one_end and (last.stamp is None or last.stamp in (other.stamp, new.stamp)):
                    extended.pop()
        extended.append(new)
    return extended


def _is_stamped(barriers: Sequence[Barrier], new: Barrier) -> bool:
    """Whether an offset sync at the newest ends has the same stamp."""
    here = takewhile(lambda one: (one.source_end, one.target_end) == (new.source_end, new.target_end),
                     reversed(barriers))  # fmt: skip
    return any(one.stamp == new.stamp for one in here)


def thinned(barriers: Sequence[Barrier], needs: PinnedOffsets = NO_PINS) -> list[Barrier]:
    """The offset syncs in order: all of them up to `MAX_BARRIERS`, otherwise `THINNED_TO` at most. The
    genesis, the newest and those that `needs` pins always stay, even if they are more than that."""
    if len(barriers) <= MAX_BARRIERS:
        return list(barriers)
    pinned = {bisect_right(barriers, at, key=_target_end) - 1 for at in needs.read}
    pinned |= {bisect_right(barriers, at, key=_source_end) - 1 for at in needs.resumed}
    pinned.add(0)
    share = FINEST_SHARE
    while len(kept := _spaced(barriers, pinned, share)) > max(THINNED_TO, len(pinned) + 1):
        share *= 1.25
    return kept


def _spaced(barriers: Sequence[Barrier], pinned: Container[int], share: float) -> list[Barrier]:
    """Keeps the pinned offset syncs, and others. Neighbours are then at most `share` of the older one's
    distance from the newest apart, in the copy's offsets, unless they were further apart before."""
    newest = barriers[-1].target_end
    kept = [barriers[-1]]
    for index in range(len(barriers) - 2, -1, -1):
        older = barriers[max(0, index - 1)].target_end
        if index in pinned or kept[-1].target_end - older > share * (newest - older):
            kept.append(barriers[index])
    return kept[::-1]


class LineSource(NamedTuple):
    """A source partition's line to one destination; `name` is its cluster, topic and partition."""

    name: Hashable
    line: OffsetMapLine
