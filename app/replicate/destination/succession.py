"""How a replica goes on behind a former owner: what has a copy already, and under whose name it appends.

    the note (app.replicate.destination.handover) -> what the former owner wrote behind it -> records that
    have no copy
                                -> the same producer's next epoch, saved before it is used

Rules
1. What the former owner wrote is looked for at the beginning, and for the last time right before the first
   batch goes: what it had under way may arrive meanwhile. From that batch on the broker refuses it, and what
   is found under the same id is our own.
2. While there is nothing to copy, it is looked for with every idle barrier of the first `LATE_COPY_SEARCH_S`,
   and then believed to be silent: others may write a great deal to the same destination.
3. Where nothing can be told (no note, or the destination's log does not reach back to it any more), copying
   goes on from the last saved position: what was copied behind it comes twice. That is told.
4. Once all that the former owner wrote is known to be copies of certain source records, and its numbers go on
   without a gap, its lane is closed: the barrier behind it is told, which it could not tell itself. What that
   says of the destination below it stays true, whatever comes later, and from whom.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from app.kafka.client.cluster import LATEST, ClusterClient, ClusterUnreachable
from app.kafka.producers.history import last_of, reaches, walk
from app.kafka.producers.ids import MAX_EPOCH, ProducerId
from app.kafka.records.batch import RecordBatch
from app.kafka.records.producer_sequences import ProducerStamp, ProducerTail
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.ranges import Range
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.destination.predecessor import predecessor_of, prints_of, without
from app.replicate.model.copied_index import CopiedIndex

LATE_COPY_SEARCH_S = 60.0
NOT_REACHED = "the destination's log does not reach back to what was last saved"
NOT_COMPARED = "the destination has lost some of what was copied behind the last position, not all of it"
NOT_SHUT_OUT = "its former owner's producer id has no epoch left, so that nothing shuts that one out"


class Succession:
    """See the module.

    Args:
        note: of the former owner; None when there was none.
        is_same_log: the note's position is of the log that is copied now; otherwise its producer is
            succeeded, but nothing of the source has a copy.

    Attributes:
        unsure: why it is not known what the former owner wrote, all of it; "": it is.
        looked_to: where the destination's log ended when it was last looked at.
        lost: what the destination was found to have lost of that (or of what the note speaks of), as long as
            nobody has told it.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        partition: int,
        note: ReplicaHandover | None,
        *,
        is_same_log: bool,
    ) -> None:
        self.note = note
        self.unsure = ""
        self.looked_to = -1
        self.lost: Range | None = None
        self._cluster, self._topic, self._partition = cluster, topic, partition
        self._searches = note is not None and is_same_log
        self._copied_index = CopiedIndex()
        self._tail = ProducerTail(-1) if note is None else ProducerTail(note.floor, note.stamp)
        self._timed = True
        self._seen_epoch = -1
        self._begun_at = 0 if note is None else note.passed
        self._began_s = time.monotonic()
        self._below_epoch = MAX_EPOCH + 1  # the former owner's epochs are
        self._looking = asyncio.Lock()
        self._has_looked_last = False

    def begins(self, producer: ProducerId) -> None:
        """Copies go on under this one."""
        if self.note is None:
            return
        if producer.id == self.note.producer_id:
            self._below_epoch = producer.epoch
        else:
            self.unsure = NOT_SHUT_OUT

    async def look_up(self, *, is_last: bool = False) -> None:
        """Rule 1. Raises ClusterUnreachable, KafkaError: it cannot be known now."""
        async with self._looking:
            if not self._has_looked_last:  # who waited for the lock might find our own copies
                await self._look_up()
                self._has_looked_last = is_last

    async def _look_up(self) -> None:
        note = self.note
        if note is None or not self._searches:
            return
        begins = self.looked_to < 0
        start_offset = note.floor if begins else self.looked_to
        found = await predecessor_of(
            self._cluster, self._topic, self._partition, note.producer_id, start_offset, self._tail,
            self._below_epoch,
        )  # fmt: skip
        if not found.is_known:
            end = await self.end_below(start_offset)
            if end >= 0:
                self.lost = end, start_offset
                self.lose(end)
            else:
                self.unsure, self._searches = NOT_REACHED, False
                self.prove_nothing()
            return
        self._tail = found.tail
        self._timed = self._timed and found.timed
        self._seen_epoch = max(self._seen_epoch, found.epoch)
        self._copied_index.add(found.prints[note.passed :] if begins else found.prints)
        self.looked_to = found.end

    async def end_below(self, offset: int) -> int:
        """Where the destination ends, if that is below `offset`; else -1. Raises as `look_up`."""
        at = self._topic, self._partition
        if await reaches(self._cluster, *at, offset):
            return -1
        end = (await self._cluster.offsets([at], LATEST)).get(at)
        if end is None:
            raise ClusterUnreachable(f"{self._topic}-{self._partition} does not tell where it ends")
        return end if end < offset else -1

    async def has_settled(self) -> bool:
        """Whether all that the former owner wrote has its record behind: rule 2. Raises as `look_up`."""
        if time.monotonic() - self._began_s < LATE_COPY_SEARCH_S:
            await self.look_up()
        return self.is_over

    def begin_at(self, floor: int) -> None:
        """All that was written below `floor` of the destination is accounted for."""
        if self.note is not None:
            if self.tail is None:
                self.prove_nothing()
            self.note = msgspec.structs.replace(self.note, floor=floor, passed=0)
            self.unsure, self._searches = "", True
            self._copied_index, self._begun_at, self.looked_to = CopiedIndex(), 0, floor
            self._tail = self._tail._replace(end=floor)

    def lose(self, end: int) -> None:
        """The destination ends there: what it has lost of the former owner's has no copy, and goes again."""
        if self.note is not None and end > self.note.floor and not self.is_over:
            self.unsure = NOT_COMPARED
        self._copied_index, self._searches, self.looked_to = CopiedIndex(), False, end
        self.prove_nothing()

    async def late(self, end_offset: int, producer: ProducerId) -> int:
        """How many records a former owner got into the log behind the last look and before `end_offset`,
        where the producer's first batch begins: their source records came twice."""
        if self.note is None or self.looked_to < 0 or end_offset <= self.looked_to:
            return 0
        late, is_another = 0, producer.id != self.note.producer_id

        def take(batch: RecordBatch) -> bool:
            nonlocal late
            header = batch.header
            if header.base_offset >= end_offset:
                return True
            if header.producer_id == former_id and (is_another or header.producer_epoch < producer.epoch):
                late += header.record_count
            return False

        former_id = self.note.producer_id
        await walk(self._cluster, self._topic, self._partition, self.looked_to, take)
        return late

    async def stays_silent(self) -> None:
        """Nothing was appended since the last look: where the leader remembers that the former owner wrote
        nothing behind it either, the next look begins where the log ends now, whatever others wrote."""
        if self.note is None or self.looked_to < 0 or not self._searches:
            return
        at = self._topic, self._partition
        end, last = await last_of(self._cluster, *at, self.note.producer_id)
        if last is not None and last == self._tail.stamp:
            self.looked_to = max(self.looked_to, end)

    @property
    def is_over(self) -> bool:
        """All of the former owner's copies are behind."""
        return self._copied_index.is_over

    @property
    def unmatched(self) -> int:
        """Of its copies so many have no record in the source (any more); once it is over."""
        return self._copied_index.left

    @property
    def tail(self) -> tuple[int, ProducerStamp] | None:
        """Rule 4: where in the destination all ends that the former owner wrote, and its stamp there, once
        each of its copies is known to be of a record that is behind; None: that is not so, or not certain.
        """
        end, stamp, is_whole = self._tail
        is_exact = is_whole and not self._copied_index.left and not self._copied_index.skipped
        return (end, stamp) if stamp is not None and is_exact and self.goes_on else None

    def prove_nothing(self) -> None:
        """The destination has lost something: of what is gone no stamp is true."""
        self._tail = self._tail._replace(is_whole=False)

    def rest(self, copy: VerbatimCopy, max_batch_bytes: int) -> list[VerbatimCopy]:
        """What of the next copy, in order, is to be appended."""
        if self._copied_index.is_over:
            return [copy]
        dropped = self._copied_index.drop(prints_of(copy, timed=self._timed))
        if dropped == copy.record_count:
            return []
        return list(without(copy, dropped, max_batch_bytes)) if dropped else [copy]

    @property
    def accounted(self) -> int:
        """Records of the producer at or above the note's floor whose source records are behind; -1: the note
        speaks of others."""
        return self._begun_at + self._copied_index.passed if self.goes_on else -1

    @property
    def goes_on(self) -> bool:
        """The former owner's copies are copies of this source, and known: they count on."""
        return not self.unsure and self._searches

    @property
    def producer(self) -> ProducerId | None:
        """Under which the copies go on; None: a new one."""
        return None if self.note is None else self.note.successor(self._seen_epoch)
