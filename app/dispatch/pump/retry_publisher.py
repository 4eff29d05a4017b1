"""The way out of a topic: copies in a retry topic, the DLQ or the topic of delayed messages, and what is
finished once they are safe.

Invariant: a message is finished here only after all in-sync replicas have acknowledged its copy. A copy that
is not taken is tried again for as long as the job is this worker's, and not let go: then its message stays
unfinished, for the next owner. One that only waits for its time stays where it is once that time is near.

A copy is compressed as its source was, so that what one topic took another takes. What a retry topic does
not take all the same waits here for its attempts. What the DLQ does not take goes there without its value,
with where that stands: null would tell the receiver to delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from app.dispatch.model.delayed_delivery import LEVELS_MS, level_of
from app.dispatch.model.retry_headers import (
    RAW_BATCH,
    Header,
    MessageOrigin,
    left_out_headers,
    moved_headers,
    postponed_headers,
)
from app.dispatch.model.throughput_diagnosis import NO_COPY
from app.kafka.append.errors import RECORD_INVALID
from app.kafka.append.producer import RecordTooLarge
from app.kernel.clock import now_ms
from app.kernel.lease import Lease

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.pump.partition import DispatchPump
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.records.record import Record

log = structlog.get_logger(__name__)

POSTPONE_TRIES = 3  # then messages that wait for their time do so where they are, for now
PRODUCE_RETRY_S = 0.5  # a copy that was not taken is tried again this much later
LEASE_RETRY_S = 0.05
NO_DLQ_RETRY_S = 1.0
TOO_LARGE = "too large for a copy, read it where it stood"


class Lacks(IntEnum):
    """What a copy goes without, as no topic takes it with that."""

    NOTHING = 0
    VALUE = 1
    ALL = 2  # neither value nor key nor the producer's headers


# No retry topic takes it: it is tried again in place. A refused timestamp is this worker's and not the
# message's: such a copy is taken once the clocks agree.
NOT_AS_A_COPY = (RecordTooLarge, *RECORD_INVALID)


class CopyProducer(Protocol):
    """What the way out needs of a producer."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header],
        partition: int | None = None, codec: int = 0,
    ) -> Awaitable[Any]: ...  # fmt: skip


async def _all_levels() -> int:
    return len(LEVELS_MS)


class PostponedMessage(NamedTuple):
    """A message that is not to be delivered before `due_ms`."""

    record: Record
    origin: MessageOrigin
    due_ms: int


Stay = Callable[[list[PostponedMessage], str, bool], None]


class RetryPublisher:
    """Copies of one workload's messages.

    `make_delayed` creates the topic of delayed messages where it is missing, and tells its partitions.
    """

    def __init__(self, copies: CopyProducer, lease: Lease, clock: Callable[[], float]) -> None:
        self.make_delayed: Callable[[], Awaitable[int]] = _all_levels
        self._levels = 0
        self._copies = copies
        self._lease = lease
        self._clock = clock

    def start(
        self, delivery: Delivery, topic: str, tier: int | None, reason: str, code: str,
        finished: Callable[[], None], stay: Callable[[], None] | None = None, due_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Begins to copy a message to the topic of `tier`, where the copy waits until `due_ms` at least.

        No tier means the DLQ.

        Unless the pump is closed, `finished` is called once the message is finished here, or `stay` if the
        retry topic does not take its copy: too large, or not as the topic's settings want records.
        """
        pump, record = delivery.pump, delivery.record
        origin = delivery.told_origin()
        failed = replace(
            origin, attempt=origin.attempt + delivery.attempts,
            tier_attempt=origin.tier_attempt + (delivery.attempts > 0),  # else it only goes round
            timeouts=origin.timeouts + delivery.timeouts,
        )  # fmt: skip

        def letter(lacks: Lacks) -> tuple[bytes | None, bytes | None, list[Header]]:
            words = f"{TOO_LARGE}; {reason}" if lacks else reason
            headers = moved_headers(
                () if lacks is Lacks.ALL else record.headers, failed, tier=tier, reason=words, code=code,
                moved_at_ms=now_ms(), due_ms=due_ms,
            )  # fmt: skip
            if not lacks:
                return record.key, record.value, headers
            key = record.key if lacks is Lacks.ALL else None
            headers += left_out_headers(
                record.value, pump.job.topic, pump.job.partition, record.offset, pump.topic_id, key
            )
            return None if lacks is Lacks.ALL else record.key, None, headers

        def done() -> None:
            pump.finished(record, acknowledged=False, dead=tier is None)
            finished()

        copying = self._copy(pump, lambda: topic, letter, done, pump.codec, None if tier is None else stay)
        self._run(pump, record.offset, copying)

    def start_raw(
        self, pump: DispatchPump, error: UndecodableBatch, dlq_topic: Callable[[], str | None],
        finished: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begins to copy the bytes of a batch that cannot be decoded; then calls `finished`."""
        log.error(
            "a record batch cannot be decoded; its bytes go to the DLQ", job=str(pump.job), error=str(error)
        )
        origin = MessageOrigin(pump.job.topic, pump.job.partition, error.start, -1)

        def letter(lacks: Lacks) -> tuple[bytes | None, bytes | None, list[Header]]:
            words = f"{TOO_LARGE}; {error}" if lacks else str(error)
            headers = moved_headers(
                [], origin, tier=None, reason=words, code="UNDECODABLE", moved_at_ms=now_ms()
            )
            headers.append((RAW_BATCH, f"{error.start}-{error.end}".encode()))
            if not lacks:
                return None, error.raw, headers
            headers += left_out_headers(
                error.raw, pump.job.topic, pump.job.partition, error.start, pump.topic_id
            )
            return None, None, headers

        self._run(pump, error.start, self._copy(pump, dlq_topic, letter, finished, 0, None))

    def postpone(
        self, pump: DispatchPump, messages: Sequence[PostponedMessage], moved: Callable[[list[Record]], None],
        stay: Stay, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begins to copy messages to where they wait for their time (`app.dispatch.model.delayed_delivery`).

        Unless the pump is closed or let go, `moved` is told which are safe there, `stay` which are due too
        soon or (then with a reason) can be copied nowhere, for good or (the last argument) for now, and
        `ended` when it is through, however that came.
        """
        copying = self._postpone(pump, {one.record.offset: one for one in messages}, moved, stay, ended)
        task = asyncio.get_running_loop().create_task(copying)
        offsets = [message.record.offset for message in messages]
        pump.copying.update(dict.fromkeys(offsets, task))

        def done(task: asyncio.Task[None]) -> None:
            _report_failure(pump, task)
            for offset in offsets:
                if pump.copying.get(offset) is task:
                    del pump.copying[offset]

        task.add_done_callback(done)

    async def _postpone(
        self, pump: DispatchPump, left: dict[int, PostponedMessage], moved: Callable[[list[Record]], None],
        stay: Stay, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """Empties `left`, which holds what nobody was told of yet."""
        try:
            await self._postpone_all(pump, left, moved, stay)
        except Exception as error:
            stay(list(left.values()), f"it could not be copied: {error!r}", False)
            raise
        finally:
            if not pump.closed:
                _clear_failure(pump)
                ended()

    async def _postpone_all(
        self, pump: DispatchPump, left: dict[int, PostponedMessage], moved: Callable[[list[Record]], None],
        stay: Stay,
    ) -> None:  # fmt: skip
        topic = pump.runtime.workload.delayed_topic()

        async def send(message: PostponedMessage, level: int) -> None:
            record = message.record
            headers = postponed_headers(record.headers, message.origin, message.due_ms)
            await self._copies.send(topic, record.key, record.value, headers, level, pump.codec)

        def told(messages: list[PostponedMessage]) -> list[PostponedMessage]:
            for message in messages:
                del left[message.record.offset]
            return messages

        tries = 0

        async def not_taken(error: object) -> None:
            nonlocal tries
            tries += 1
            await self._not_taken(pump, topic, error)
            if tries == POSTPONE_TRIES:
                stay(told(list(left.values())), f"{topic} takes no copy: {error}", True)

        waited = False
        while left and not pump.closed:
            present_ms = now_ms()
            levels = [(one, level_of(one.due_ms - present_ms, self._levels or None)) for one in left.values()]
            if soon := [one for one, level in levels if level is None]:
                stay(told(soon), "", False)
            going = [(one, level) for one, level in levels if level is not None]
            if not going or (waited and pump.draining):
                return
            waited = True
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            try:
                if not self._levels:
                    self._levels = await self.make_delayed()
                    waited = False
                    continue  # there may be fewer of them
            except Exception as error:  # noqa: BLE001 - as below
                await not_taken(error)
                continue
            sent = await asyncio.gather(*(send(*one) for one in going), return_exceptions=True)
            if pump.closed:
                return
            answers = [(one, answer) for (one, _), answer in zip(going, sent, strict=True)]
            safe = [one for one, answer in answers if not isinstance(answer, BaseException)]
            moved([message.record for message in told(safe)])
            refused = [(one, answer) for one, answer in answers if isinstance(answer, NOT_AS_A_COPY)]
            for one, answer in refused:
                is_large = isinstance(answer, RecordTooLarge)
                stay(told([one]), "too large for a copy" if is_large else str(answer), False)
            if left:
                self._levels = 0  # whatever is wrong, the topic may be gone
                why = next(answer for one, answer in answers if one.record.offset in left)
                await not_taken(why)

    @staticmethod
    async def _not_taken(pump: DispatchPump, topic: str, error: object) -> None:
        pump.trouble = f"{NO_COPY} in {topic}: {error}"
        log.warning(
            "a copy was not taken and is tried again; the message stays unfinished",
            topic=topic, job=str(pump.job), error=repr(error),
        )  # fmt: skip
        await asyncio.sleep(PRODUCE_RETRY_S)

    @staticmethod
    def _run(pump: DispatchPump, offset: int, copying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(copying)
        pump.copying[offset] = task

        def ended(task: asyncio.Task[None]) -> None:
            if pump.copying.get(offset) is task:  # else another copy of it has begun
                del pump.copying[offset]
            _report_failure(pump, task)

        task.add_done_callback(ended)

    async def _copy(
        self, pump: DispatchPump, topic: Callable[[], str | None],
        letter: Callable[[Lacks], tuple[bytes | None, bytes | None, list[Header]]],
        done: Callable[[], None], codec: int, stay: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """`letter` is told what the copy has to lack. None for `stay`: it goes without its value."""
        lacks, waited = Lacks.NOTHING, False
        while not pump.closed and not (waited and pump.draining):
            where = topic()
            waited = True
            if where is None:
                pump.trouble = (
                    f"{NO_COPY}: a message can go nowhere but to a DLQ, and there is none: enable dlq"
                )
                await asyncio.sleep(NO_DLQ_RETRY_S)
                continue
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            try:
                await self._copies.send(where, *letter(lacks), codec=codec)
            except NOT_AS_A_COPY as error:
                if stay is not None:
                    _clear_failure(pump)
                    if not pump.closed:
                        stay()
                    return
                if not isinstance(error, RecordTooLarge):
                    await self._not_taken(pump, where, error)
                    continue
                if lacks is Lacks.ALL:
                    pump.trouble = f"{NO_COPY} in {where}: {error}"
                    await asyncio.sleep(NO_DLQ_RETRY_S)
                    continue
                lacks, waited = Lacks(lacks + 1), False
                continue
            except Exception as error:  # noqa: BLE001 - whatever the producer raises, the message stays
                await self._not_taken(pump, where, error)
                continue
            _clear_failure(pump)
            if not pump.closed:
                done()
            return


def _clear_failure(pump: DispatchPump) -> None:
    """Copies are taken (again)."""
    if pump.trouble.startswith(NO_COPY):
        pump.trouble = ""


def _report_failure(pump: DispatchPump, task: asyncio.Task[None]) -> None:
    """A fault of ours: the message stays unfinished, and a next owner delivers it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        pump.trouble = f"a fault of Switchyard's own while copying, its traceback is in the log: {error!r}"
        log.error("copying failed in an unexpected way", job=str(pump.job), exc_info=error)
