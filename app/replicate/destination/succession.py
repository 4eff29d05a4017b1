"""How a replica continues behind a former owner: which records have a copy, which producer appends.

    the note (app.replicate.destination.handover) -> what the former owner wrote behind it
                                -> the records that have no copy
                                -> the same producer's next epoch, saved before it is used

Rules
1. The replica looks for the former owner's writes at the start, and a last time right before its first
   batch. Until then batches in flight may arrive. From the first batch on the broker refuses the former
   owner, and records under the same id are the replica's own.
2. While there is nothing to copy, it looks again with every idle offset sync of the first
   `LATE_COPY_SEARCH_S`. Then it assumes that the former owner is silent, because others may write a lot to
   the same destination.
3. If nothing is known (no note, or the destination's log no longer reaches back to it), copying continues
   from the last saved position. Records that were copied behind it arrive twice, and the replica reports
   that.
4. The former owner's lane is closed once all its writes are known copies of certain source records,
   and its sequence numbers have no gap. The replica then emits the offset sync behind that lane, which the
   former owner could not emit itself. Later writes, by anyone, do not change what it says of the destination
   below it.
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
from app.replicate.destination.predecessor import drop_first, predecessor_of, prints_of
from app.replicate.model.copied_index import CopiedIndex

LATE_COPY_SEARCH_S = 60.0
NOT_REACHED = "the destination's log does not reach back to the last saved position"
NOT_COMPARED = "the destination has lost some, but not all, of the copies behind the last saved position"
NOT_SHUT_OUT = "the former owner's producer id has no epoch left, so brokers cannot fence the former owner"


class Succession:
    """The state of a replica's former owner, as far as the destination's log shows it.

    Args:
        note: The former owner's note; None: there was none.
        is_same_log: The note's position is of the source log that is copied now. Otherwise the replica
            succeeds the producer, but no record of the source has a copy.

    Attributes:
        unsure: Why not all of the former owner's writes are known; "": they are.
        looked_to: Where the destination's log ended at the last look.
        lost: The offsets of the former owner's copies that the destination has lost; None: none, or already
            reported.
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
        self._passed_before = 0 if note is None else note.passed
        self._began_s = time.monotonic()
        self._below_epoch = MAX_EPOCH + 1  # above the former owner's epochs
        self._look_lock = asyncio.Lock()
        self._has_looked_last = False

    def use_producer(self, producer: ProducerId) -> None:
        """Sets the producer under which copying continues."""
        if self.note is None:
            return
        if producer.id == self.note.producer_id:
            self._below_epoch = producer.epoch
        else:
            self.unsure = NOT_SHUT_OUT

    async def look_up(self, *, is_last: bool = False) -> None:
        """Reads what the former owner wrote since the last look (rule 1).

        Raises:
            ClusterUnreachable, KafkaError: It cannot be read now.
        """
        async with self._look_lock:
            if not self._has_looked_last:  # after the last look, this replica's own copies may be there
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
                self.distrust_tail()
            return
        self._tail = found.tail
        self._timed = self._timed and found.timed
        self._seen_epoch = max(self._seen_epoch, found.epoch)
        self._copied_index.add(found.prints[note.passed :] if begins else found.prints)
        self.looked_to = found.end

    async def end_below(self, offset: int) -> int:
        """The destination's end if it is below `offset`, else -1. Raises as `look_up`."""
        at = self._topic, self._partition
        if await reaches(self._cluster, *at, offset):
            return -1
        end = (await self._cluster.offsets([at], LATEST)).get(at)
        if end is None:
            raise ClusterUnreachable(
                f"the leader of {self._topic}-{self._partition} does not report its end offset"
            )
        return end if end < offset else -1

    async def has_settled(self) -> bool:
        """Whether all the former owner's writes are matched with the source (rule 2). Raises as `look_up`."""
        if time.monotonic() - self._began_s < LATE_COPY_SEARCH_S:
            await self.look_up()
        return self.is_over

    def restart_at(self, floor: int) -> None:
        """Starts from `floor`: all records below it in the destination are accounted for."""
        if self.note is not None:
            if self.tail is None:
                self.distrust_tail()
            self.note = msgspec.structs.replace(self.note, floor=floor, passed=0)
            self.unsure, self._searches = "", True
            self._copied_index, self._passed_before, self.looked_to = CopiedIndex(), 0, floor
            self._tail = self._tail._replace(end=floor)

    def lose(self, end: int) -> None:
        """Sets the destination's new end. All records behind the last saved position are copied again."""
        if self.note is not None and end > self.note.floor and not self.is_over:
            self.unsure = NOT_COMPARED
        self._copied_index, self._searches, self.looked_to = CopiedIndex(), False, end
        self.distrust_tail()

    async def count_late(self, end_offset: int, producer: ProducerId) -> int:
        """Counts the former owner's records between the last look and `end_offset`, where this producer's
        first batch begins. Their source records are in the copy twice."""
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

    async def skip_silence(self) -> None:
        """Moves the next look to the log's end if the leader confirms that the former owner wrote nothing
        since the last one, so others' writes need not be read. The caller has appended nothing since then."""
        if self.note is None or self.looked_to < 0 or not self._searches:
            return
        at = self._topic, self._partition
        end, last = await last_of(self._cluster, *at, self.note.producer_id)
        if last is not None and last == self._tail.stamp:
            self.looked_to = max(self.looked_to, end)

    @property
    def is_over(self) -> bool:
        """All of the former owner's copies are matched."""
        return self._copied_index.is_over

    @property
    def unmatched(self) -> int:
        """Once it is over: the number of its copies without a record in the source (any more)."""
        return self._copied_index.left

    @property
    def tail(self) -> tuple[int, ProducerStamp] | None:
        """Where the former owner's writes end in the destination, and its stamp there (rule 4); None: not
        certain."""
        end, stamp, is_whole = self._tail
        is_exact = is_whole and not self._copied_index.left and not self._copied_index.skipped
        return (end, stamp) if stamp is not None and is_exact and self.continues else None

    def distrust_tail(self) -> None:
        """Marks the tail as incomplete: the destination has lost records, and no stamp is true of those."""
        self._tail = self._tail._replace(is_whole=False)

    def uncopied(self, copy: VerbatimCopy, max_batch_bytes: int) -> list[VerbatimCopy]:
        """The part of the next copy, in order, that has to be appended."""
        if self._copied_index.is_over:
            return [copy]
        dropped = self._copied_index.drop(prints_of(copy, timed=self._timed))
        if dropped == copy.record_count:
            return []
        return list(drop_first(copy, dropped, max_batch_bytes)) if dropped else [copy]

    @property
    def accounted(self) -> int:
        """The producer's matched records at or above the note's floor; -1: the note is of others."""
        return self._passed_before + self._copied_index.passed if self.continues else -1

    @property
    def continues(self) -> bool:
        """Whether the former owner's copies are known and of this source, so that they still count."""
        return not self.unsure and self._searches

    @property
    def producer(self) -> ProducerId | None:
        """The producer under which copying continues; None: a new one."""
        return None if self.note is None else self.note.successor(self._seen_epoch)
