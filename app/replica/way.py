"""A replica's way to its destination: whose copies are there already, whose name they go under, its lane.

Rules
1. Nothing is appended under an id and epoch before the tracker table knows them (`app.replica.note`).
2. The destination's log is known by its id: a note of another one (the topic was made anew) says nothing, and
   when it becomes another one the replica begins again, from where the source stands.
3. What needs the destination is tried as often as it takes; `why` says what is in the way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiokafka.errors import KafkaError

from app.core.fencing import LogId
from app.core.verbatim import Copy
from app.kafka.append_errors import AppendTrouble, LaneClosed
from app.kafka.append_lane import Lane
from app.kafka.append_producers import new_producer
from app.kafka.clusters import ClusterUnreachable
from app.replica.ledger import Ledger, Sent
from app.replica.note import BadNote, Note
from app.replica.succession import Succession

if TYPE_CHECKING:
    from app.replica.runtime import RouteRuntime

RETRY_S = 1.0
LOOK_S = 0.02

T = TypeVar("T")


class Way:
    """See the module.

    Args:
        target: topic and partition.
        note: of the former owner, b"" when there was none; `is_same_log`: of the log that is copied.
        is_first: nothing was copied before.
        tell: takes kind, message and remedy. unsure: takes why records may come twice from here on.

    Attributes:
        log: the destination's, once it was met.
        lane: None until there is something to append; `is_ready`: it may be appended to (rule 1).
        max_batch_bytes: of the destination.
        why: what is in the way, "" while nothing is.
    """

    def __init__(
        self,
        runtime: RouteRuntime,
        target: tuple[str, int],
        ledger: Ledger,
        note: bytes,
        *,
        is_same_log: bool,
        is_first: bool,
        tell: Callable[[str, str, str], None],
        unsure: Callable[[str], None],
    ) -> None:
        self.target = target
        self.log = LogId()
        self.lane: Lane | None = None
        self.is_ready = False
        self.max_batch_bytes = 0
        self.why = ""
        self._runtime = runtime
        self._ledger = ledger
        self._note_bytes = note
        self._is_same_log = is_same_log
        self._is_known = is_first  # what was copied before
        self._tell = tell
        self._unsure = unsure
        self._succession = self._succeed(None)

    @property
    def name(self) -> str:
        """The destination, for people."""
        return f"{self._runtime.target.name}/{self.target[0]}"

    @property
    def note(self) -> bytes:
        """For the successor; what the former owner left until there is something of our own."""
        note = self._ledger.note
        return self._note_bytes if note is None else note.to_bytes()

    def _succeed(self, note: Note | None) -> Succession:
        return Succession(self._runtime.target, *self.target, note, is_same_log=self._is_same_log)

    async def meet(self) -> None:
        """Gets to know the destination, and what a former owner has copied there."""
        self.log = await self._trying(self._find_log)
        self.max_batch_bytes = await self.limit()
        note: Note | None = None
        try:
            note = Note.from_bytes(self._note_bytes) if self._note_bytes else None
            self._is_known = self._is_known or note is not None
        except BadNote as error:
            self._tell("note-corrupt", str(error), "what was copied since the last position comes twice")
        if note is not None and note.log.is_another(self.log):
            self._tell(
                "destination-begun-anew",
                f"the copies were in {note.log}, what is there now is {self.log}; copying goes on at "
                f"{self._ledger.base}, what was copied before is not there any more",
                "reset the route's topic to copy it from its start",
            )
            note = None
        self._succession = self._succeed(note)
        self._ledger.inherit(note)
        await self._trying(self._succession.look_up)

    async def _find_log(self) -> LogId:
        client, topic = self._runtime.target, self.target[0]
        ids = await client.topic_ids([topic])
        if topic not in ids:
            raise ClusterUnreachable(f"topic {topic} is not known in {client.name}")
        return LogId(await client.cluster_id(), ids[topic])

    async def limit(self) -> int:
        """The destination's `max.message.bytes`, asked for again."""
        self.max_batch_bytes = await self._runtime.max_batch_bytes(self.target[0])
        return self.max_batch_bytes

    def rest(self, found: list[Copy], copy: Copy) -> list[Copy]:
        """What of the copy, all of which is in `found`, was not copied before."""
        succession = self._succession
        if succession.is_over:
            return found
        rest = [piece for one in found for piece in succession.rest(one, self.max_batch_bytes)]
        self._ledger.pass_over(Sent(-1 if rest else copy.source_end, accounted=succession.accounted))
        if rest and succession.unmatched:
            self._unsure(
                f"{succession.unmatched} records that were copied are not in the source any more, or differ; "
                "what follows the last one that was found may be there twice"
            )
        return rest

    async def open(self, saved: Callable[[], int]) -> int:
        """Makes it ready to append, once the version of the ledger that is `saved` has the note (rule 1).
        Returns where the destination ended before.

        What was under way of a former owner may have arrived meanwhile: ask `rest` again.
        """
        ledger, succession = self._ledger, self._succession
        if self.lane is None:
            lane = self.lane = await self._trying(self._new_lane)
            note = ledger.note
            if note is not None and note.producer_id == lane.producer.id and succession.goes_on:
                # What the former owner wrote stays behind its floor until a copy of ours moves that.
                ledger.begin(msgspec.structs.replace(note, epoch=lane.producer.epoch), goes_on=True)
            else:
                ledger.begin(Note(self.log, ledger.base, *lane.producer, lane.floor), goes_on=False)
            if not self._is_known:
                self._unsure("nobody knows what was copied behind the last position")
            elif not succession.is_sure:
                self._unsure("the destination's log does not reach back to what was last saved")
        floor = self.lane.floor
        version = ledger.version
        while saved() < version:  # noqa: ASYNC110 - a round of snapshots does it
            await asyncio.sleep(LOOK_S)
        await self._trying(succession.look_up)
        self.is_ready = True
        return floor

    async def _new_lane(self) -> Lane:
        runtime = self._runtime
        producer = self._succession.producer or await new_producer(runtime.target)
        lane = await runtime.appender.lane(*self.target, producer, self._append_trouble)
        if lane.floor < 0:
            lane.close()
            raise ClusterUnreachable(f"{self.name}/{self.target[1]} has no leader that answers")
        return lane

    async def check_late(self, base_offset: int) -> None:
        """What a former owner got in behind our last look, before our first batch shut it out."""
        late = await self._trying(lambda: self._late(base_offset))
        if late:
            self._unsure(f"a former owner wrote {late} records after its successor had looked")

    async def _late(self, base_offset: int) -> int:
        lane = self.lane
        return 0 if lane is None else await self._succession.late(base_offset, lane.producer.epoch)

    def _append_trouble(self, trouble: AppendTrouble) -> None:
        self.why = f"append: {trouble.message}; {trouble.remedy}"
        self._tell("append-trouble", trouble.message, trouble.remedy)

    async def _trying(self, act: Callable[[], Awaitable[T]]) -> T:
        """Rule 3."""
        since_s = time.monotonic()
        while True:
            try:
                found = await act()
            except LaneClosed:
                raise
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                self.why = f"append: {error or repr(error)}, for {time.monotonic() - since_s:.0f} s"
                await asyncio.sleep(RETRY_S)
            else:
                self.why = ""
                return found

    def close(self) -> None:
        """Appends nothing any more."""
        if self.lane is not None:
            self.lane.close()
