"""The offset map: which offset of a copy stands for which offset of its source.

    barrier (S, T)   every kept record of the source below S has a copy below T, and
                     no record of the source from S on has a copy below T
    line             the barriers of one source partition in one destination partition, in order

All offsets are next offsets: the design's inclusive (s, t) is (S - 1, T - 1).

What makes a barrier true, told by those who record one
1. It is recorded only at a new maximum of the source: after a restart not before the source passes whatever
   the previous incarnation may have sent.
2. The first of a line is its genesis: where copying began, and where the destination ended before that.
3. An idle barrier (S stays, T is the destination's end) is recorded when all that was sent is acknowledged,
   and nothing was sent until that end was known. Without it an idle source would hold others' readers back.
4. Another log (a topic made anew, or truncated, on either side) is another lineage, and begins a line.
5. Who had not read so far notices no truncation, and lines of who did come late. So each line says in which
   leader epochs it was read (`app.kafka.records.leader_epochs`), and what two say of one source holds
   together only below the offset up to which they agree (`OffsetMapLine.agrees_below`).

Once true a barrier stays true in its lineage: logs only grow. So a line may get its barriers twice, late, or
not at all: what is missing moves a translated position back, never forth.

Of a line, `read_up_to` is the design's k_r, and `resume_at` its x_r; `app.offsets.model.translation` puts the
x of a position together.

Thinning drops barriers, of a line with more than `MAX_BARRIERS`: the further behind the newest, the wider
apart they may be, up to a share of that distance which is as small as their number allows (a few percent), so
that what is read again is a few percent of what the reader was behind. Of a reader that lies still
(`PinnedOffsets`) the barrier that it asks for stays, however long it does: nothing more of its position is
lost.

A route that is deleted leaves its lines behind: what it copied lies there, and who has not read it must. It
tells no idle barriers any more; what is known of where nothing of it lies says as much (`LineEnd`).

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

MAX_BARRIERS = 512  # of a line: its record is written anew at every barrier, and stays below 40 kB
THINNED_TO = 384  # so that not every further one thins
FINEST_SHARE = 1 / 256
MAX_NEEDS = 100  # of a line, of each kind: the furthest behind; others lose a few percent, as all did

_source_end = attrgetter("source_end")
_target_end = attrgetter("target_end")


class Barrier(msgspec.Struct, frozen=True, array_like=True):
    """See the module. `source_end` is the design's s + 1, `target_end` its t + 1; recorded at `at_ms`.

    With a `stamp` (`app.kafka.records.producer_sequences`): what its producer wrote before it are copies of
    records below `source_end`, what it writes from there on are of others. It is as true as the barrier, and
    as long.
    """

    source_end: int
    target_end: int
    at_ms: int = 0
    stamp: ProducerStamp | None = None


class BarrierItem(msgspec.Struct, frozen=True, array_like=True):
    """New barriers of one source partition on their way to the table, oldest first.

    Attributes:
        route, topic, partition: the source partition, as the route's job names it.
        epoch, lineage: of the job that recorded them.
        source, target: the logs that the offsets are of.
        target_topic, target_partition: the copy.
        source_epoch: the leader epoch in which the source's log was found truncated; 0: it never was.
        losses: how often the copy was found to have lost its end, with what had been acknowledged there.
        epochs: in which the source was read, by who recorded them; (): not known.
    """

    route: str
    topic: str
    partition: int
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

    @property
    def key(self) -> str:
        """The line's."""
        return line_key(self.route, self.topic, self.partition)


class Barriers(msgspec.Struct, frozen=True, tag="barriers", tag_field="event", kw_only=True):
    """Barriers of many lines by one worker, all of one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[BarrierItem]


class PinnedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Where readers lie still, as next offsets, ascending: `read` of the copy, `resumed` of its source."""

    read: list[int] = []
    resumed: list[int] = []


NO_PINS = PinnedOffsets()


class NeedItem(msgspec.Struct, frozen=True, array_like=True):
    """What is asked for of one line from now on; `target` is the copy's log that this was seen of."""

    route: str
    topic: str
    partition: int
    target: LogId
    needs: PinnedOffsets

    @property
    def key(self) -> str:
        """The line's."""
        return line_key(self.route, self.topic, self.partition)


class PinRequests(msgspec.Struct, frozen=True, tag="needed", tag_field="event", kw_only=True):
    """What is asked for of many lines, by the leader; all of one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[NeedItem]


class LineEnd(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a line whose job has no owner, as nothing is copied meanwhile: of the log `target`
    nothing of it lies in [since, until), and no record of its source from `source_end` on (`ENDLESS`: not
    known) has a copy below `until`. That stays true when there is an owner again: he copies behind it.

    `epoch`: the highest that the job had. While it stays the same there was no owner in between.
    """

    epoch: int
    target: LogId
    source_end: int
    since: int
    until: int


class EndedItem(msgspec.Struct, frozen=True, array_like=True):
    """That of one line; `lineage` and `source`: those of the line that this was seen of."""

    route: str
    topic: str
    partition: int
    lineage: int
    source: LogId
    ended: LineEnd

    @property
    def key(self) -> str:
        """The line's."""
        return line_key(self.route, self.topic, self.partition)


class EndedLines(msgspec.Struct, frozen=True, tag="ended", tag_field="event", kw_only=True):
    """What is known of many lines without an owner, by the leader; all of one partition of the checkpoint
    topic."""

    worker: str
    at_ms: int
    items: list[EndedItem]


class OffsetMapLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkpoint table holds for a source partition.

    Attributes:
        target_topic, target_partition: the copy.
        epoch: the highest of a job that wrote; lower ones are refused.
        lineage: of the job: how often the offsets have begun to mean something else.
        source, source_epoch, target, losses: the logs that the offsets are of.
        barriers: neither their source nor their target ends decrease.
        needs: what thinning leaves, beside the genesis and the newest.
        epochs: in which the source was read, up to the newest barrier at least; (): not known.
        ended: what is known since its job has no owner; None: it has one, or nothing is.
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
        """Whether the source's offsets certainly mean something else there."""
        return self.source_epoch != other.source_epoch or self.source.is_another(other.source)

    def agrees_below(self, other: OffsetMapLine) -> int:
        """Below it offsets of the source are of the same records there; `NOWHERE`: none certainly is."""
        if self.source.is_another(other.source):
            return NOWHERE
        # Copies of what the source has lost lie below a line that was begun anew, and above older ones.
        if self.source_epoch != other.source_epoch and not (self._knows_of(other) and other._knows_of(self)):
            return NOWHERE
        if self.epochs and other.epochs:
            return agree_below(self.epochs, other.epochs)
        unknown = [line for line in (self, other) if not line.epochs]
        return ENDLESS if len(unknown) == 2 else _ends(unknown[0].barriers)[0]

    def _knows_of(self, other: OffsetMapLine) -> bool:
        """Whether it has read what the source has had since the other was begun anew."""
        return bool(self.epochs) and self.epochs[-1].epoch >= other.source_epoch

    def read_up_to(self, next_offset: int) -> int | None:
        """k: all of the source below it was read by who came to `next_offset` of the copy; None: unknown."""
        at = bisect_right(self.barriers, next_offset, key=_target_end)
        return self.barriers[at - 1].source_end if at else None

    def resume_at(self, source_end: int) -> int | None:
        """x: nothing of the source from `source_end` on has a copy below it; None: unknown."""
        at = bisect_right(self.barriers, source_end, key=_source_end)
        return self.barriers[at - 1].target_end if at else None


def line_key(route: str, topic: str, partition: int) -> str:
    """The table's key; none of its parts holds a '/'."""
    return f"{route}/{topic}/{partition}"


def after(line: OffsetMapLine | None, item: BarrierItem) -> OffsetMapLine | None:
    """The line with the barriers of `item`; None when they are refused or say nothing new.

    Refused are those of an older epoch, lineage or loss, and a barrier that runs counter to the newest one.
    The same items once more, in their order, change nothing for good.
    """
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
        if _ends(item.barriers) > _ends(before):  # else it may come once more, late
            epochs, holds_below = joined_epochs(line.epochs, item.epochs)
            if holds_below < ENDLESS:
                before = _holding(before, holds_below)
    barriers = thinned(_extended(before, item.barriers), needs)
    if not barriers:
        return None
    ended = None if line is None or not continues else line.ended
    if ended is not None and ended.epoch < item.epoch:
        ended = None  # it has an owner again
    new = OffsetMapLine(
        target_topic=item.target_topic, target_partition=item.target_partition, epoch=item.epoch,
        lineage=item.lineage, source=source, target=target, barriers=barriers,
        source_epoch=item.source_epoch, losses=item.losses, needs=needs, epochs=epochs, ended=ended,
    )  # fmt: skip
    return None if new == line else new


def with_pins(line: OffsetMapLine | None, item: NeedItem) -> OffsetMapLine | None:
    """The line with these needs; None when they are of another copy, or say nothing new."""
    if line is None or line.target.is_another(item.target) or line.needs == item.needs:
        return None
    return msgspec.structs.replace(line, needs=item.needs)


def at_end(line: OffsetMapLine | None, item: EndedItem) -> OffsetMapLine | None:
    """The line with what is known since it has no owner; None when it has had one since, is of another
    source, or that says nothing new."""
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
    """Of readers that lie still there: those furthest behind."""
    return PinnedOffsets(*(sorted({at for at in found if at >= 0})[:MAX_NEEDS] for found in (read, resumed)))


def _holding(barriers: Sequence[Barrier], below: int) -> list[Barrier]:
    """Those that hold where the source is known only below that offset to be what it was. What former owners'
    producers wrote behind their last barriers may have come from beyond
    (`app.offsets.model.source_frontier`)."""
    return [one for one in barriers if one.source_end <= below]


def _ends(barriers: Sequence[Barrier]) -> tuple[int, int]:
    """Of the newest."""
    return (barriers[-1].source_end, barriers[-1].target_end) if barriers else (-1, -1)


def _extended(barriers: Sequence[Barrier], more: Iterable[Barrier]) -> list[Barrier]:
    """Of three in a row with the same source end the first and the last say it all: the least T that one may
    have come to, the greatest at which one may go on. The same for three with one target end. What a lane's
    first stamp there says of its records is said by no other's."""
    extended = list(barriers)
    for new in more:
        last = extended[-1] if extended else None
        if last is not None:
            grown = new.source_end - last.source_end, new.target_end - last.target_end
            if min(grown) < 0 or (max(grown) == 0 and (new.stamp is None or _is_known(extended, new))):
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


def _is_known(barriers: Sequence[Barrier], new: Barrier) -> bool:
    """Whether the same is the newest there, or beside it."""
    here = takewhile(lambda one: (one.source_end, one.target_end) == (new.source_end, new.target_end),
                     reversed(barriers))  # fmt: skip
    return any(one.stamp == new.stamp for one in here)


def thinned(barriers: Sequence[Barrier], needs: PinnedOffsets = NO_PINS) -> list[Barrier]:
    """At most `MAX_BARRIERS` of them, in order: all when there are no more, else `THINNED_TO` at most.

    Never dropped: the genesis, the newest, and those that `needs` ask for.
    """
    if len(barriers) <= MAX_BARRIERS:
        return list(barriers)
    asked = {bisect_right(barriers, at, key=_target_end) - 1 for at in needs.read}
    asked |= {bisect_right(barriers, at, key=_source_end) - 1 for at in needs.resumed}
    asked.add(0)
    share = FINEST_SHARE
    while len(kept := _spaced(barriers, asked, share)) > max(THINNED_TO, len(asked) + 1):
        share *= 1.25
    return kept


def _spaced(barriers: Sequence[Barrier], asked: Container[int], share: float) -> list[Barrier]:
    """Those that are asked for, and as many others as it takes for them to be no wider apart than `share` of
    the distance of the older one from the newest, in offsets of the copy, unless they were before."""
    newest = barriers[-1].target_end
    kept = [barriers[-1]]
    for index in range(len(barriers) - 2, -1, -1):
        older = barriers[max(0, index - 1)].target_end
        if index in asked or kept[-1].target_end - older > share * (newest - older):
            kept.append(barriers[index])
    return kept[::-1]


class LineSource(NamedTuple):
    """A source partition's line to one destination. `name` says which partition it is, for every destination
    the same: its cluster, topic and partition."""

    name: Hashable
    line: OffsetMapLine
