"""Copies messages to a retry topic, the DLQ or the topic of delayed messages, then finishes them.

Invariant: a message is finished here only after all in-sync replicas have acknowledged its copy. A refused
copy is tried again while this worker owns the job and does not drain it. After that the message stays
unfinished, for the next owner. A message that only waits for its time stays in place once that time is near.

A copy is compressed like its source, so that a topic takes what another one took. A message that a retry
topic still refuses gets its attempts here. If a message is too large for the DLQ, its copy leaves out the
value, then key and headers too, and says where they are. A plain null value would tell the receiver to
delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from app.dispatch.model.delayed_delivery import level_of
from app.dispatch.model.retry_headers import (
    RAW_BATCH,
    Header,
    MessageOrigin,
    left_out_headers,
    moved_headers,
    postponed_headers,
)
from app.kafka.append.errors import RECORD_INVALID
from app.kafka.append.producer import RecordTooLarge
from app.kernel.clock import now_ms
from app.kernel.lease import Lease
from app.kernel.troubles import TroubleSource

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery, DeliveryPump, OnStay, PostponedMessage
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.records.record import Record

log = structlog.get_logger(__name__)

POSTPONE_TRIES = 3  # then the messages wait in place, and are copied later
PRODUCE_RETRY_S = 0.5
LEASE_RETRY_S = 0.05
NO_DLQ_RETRY_S = 1.0
TOO_LARGE = "too large for a copy, read it in its source topic"
NO_COPY = "no copy"  # begins the trouble while no topic takes copies


class LeftOut(IntEnum):
    """The parts that a copy leaves out, because the topic does not take it whole."""

    NOTHING = 0
    VALUE = 1
    ALL = 2  # the value, the key and the producer's headers


# No retry topic takes such a message, so it gets its attempts in place. A refused timestamp is not among
# these: the worker sets it, and the topic takes the copy once the clocks agree.
COPY_REFUSALS = (RecordTooLarge, *RECORD_INVALID)


class CopyProducer(Protocol):
    """Sends copies: `app.kafka.append.producer.Producer`."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header],
        partition: int | None = None, codec: int = 0,
    ) -> Awaitable[Any]: ...  # fmt: skip


class RetryPublisher:
    """Copies one workload's messages. `make_delayed` creates the delayed topic; returns its partitions."""

    def __init__(
        self,
        copies: CopyProducer,
        lease: Lease,
        make_delayed: Callable[[], Awaitable[int]],
        clock: Callable[[], float],
    ) -> None:
        self._make_delayed = make_delayed
        self._levels = 0
        self._copies = copies
        self._lease = lease
        self._clock = clock

    def start(
        self, delivery: Delivery, topic: str, tier: int | None, reason: str, code: str,
        finished: Callable[[], None], on_stay: Callable[[], None] | None = None, due_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Starts to copy a message to the topic of `tier` (None: the DLQ), to wait there until `due_ms`.

        Unless the pump is closed, `finished` is called once the message is finished here. `on_stay` is called
        instead if the retry topic refuses the copy, for its size or by the topic's settings.
        """
        pump, record = delivery.pump, delivery.record
        origin = delivery.message_origin()
        failed = replace(
            origin, attempt=origin.attempt + delivery.attempts,
            tier_attempt=origin.tier_attempt + (delivery.attempts > 0),  # else it only changed topics
            timeouts=origin.timeouts + delivery.timeouts,
        )  # fmt: skip

        def letter(left_out: LeftOut) -> tuple[bytes | None, bytes | None, list[Header]]:
            words = f"{TOO_LARGE}; {reason}" if left_out else reason
            headers = moved_headers(
                () if left_out is LeftOut.ALL else record.headers, failed, tier=tier, reason=words, code=code,
                moved_at_ms=now_ms(), due_ms=due_ms,
            )  # fmt: skip
            if not left_out:
                return record.key, record.value, headers
            key = record.key if left_out is LeftOut.ALL else None
            headers += left_out_headers(
                record.value, pump.job.topic, pump.job.partition, record.offset, pump.topic_id, key
            )
            return None if left_out is LeftOut.ALL else record.key, None, headers

        def done() -> None:
            pump.finished(record, acknowledged=False, dead=tier is None)
            finished()

        copying = self._copy(pump, lambda: topic, letter, done, pump.codec, None if tier is None else on_stay)
        self._run(pump, record.offset, copying)

    def start_raw(
        self, pump: DeliveryPump, error: UndecodableBatch, dlq_topic: Callable[[], str | None],
        finished: Callable[[], None],
    ) -> None:  # fmt: skip
        """Starts to copy the bytes of a batch that cannot be decoded to the DLQ; then calls `finished`."""
        log.error(
            "a record batch cannot be decoded; its bytes go to the DLQ", job=str(pump.job), error=str(error)
        )
        origin = MessageOrigin(pump.job.topic, pump.job.partition, error.start, -1)

        def letter(left_out: LeftOut) -> tuple[bytes | None, bytes | None, list[Header]]:
            words = f"{TOO_LARGE}; {error}" if left_out else str(error)
            headers = moved_headers(
                [], origin, tier=None, reason=words, code="UNDECODABLE", moved_at_ms=now_ms()
            )
            headers.append((RAW_BATCH, f"{error.start}-{error.end}".encode()))
            if not left_out:
                return None, error.raw, headers
            headers += left_out_headers(
                error.raw, pump.job.topic, pump.job.partition, error.start, pump.topic_id
            )
            return None, None, headers

        self._run(pump, error.start, self._copy(pump, dlq_topic, letter, finished, 0, None))

    def postpone(
        self, pump: DeliveryPump, messages: Sequence[PostponedMessage],
        on_moved: Callable[[list[Record]], None], on_stay: OnStay, on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        """Starts to copy messages to where they wait for their time (`app.dispatch.model.delayed_delivery`).

        Unless the pump is closed or drained, each message is passed to one of these:
        - `on_moved`: its copy is safe.
        - `on_stay`: it stays in place, for this reason ("": it is due too soon), and perhaps only for now.

        `on_end` is called last, after failures too, unless the pump is closed.
        """
        copying = self._postpone(
            pump, {message.record.offset: message for message in messages}, on_moved, on_stay, on_end
        )
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
        self, pump: DeliveryPump, remaining: dict[int, PostponedMessage],
        on_moved: Callable[[list[Record]], None], on_stay: OnStay, on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        """Empties `remaining`, which holds the messages that no callback has got yet."""
        try:
            await self._postpone_all(pump, remaining, on_moved, on_stay)
        except Exception as error:
            on_stay(list(remaining.values()), f"it could not be copied: {error!r}", False)
            raise
        finally:
            if not pump.closed:
                _clear_failure(pump)
                on_end()

    async def _postpone_all(
        self, pump: DeliveryPump, remaining: dict[int, PostponedMessage],
        on_moved: Callable[[list[Record]], None], on_stay: OnStay,
    ) -> None:  # fmt: skip
        topic = pump.runtime.settings.delayed_topic

        async def send(message: PostponedMessage, level: int) -> None:
            record = message.record
            headers = postponed_headers(record.headers, message.origin, message.due_ms)
            await self._copies.send(topic, record.key, record.value, headers, level, pump.codec)

        def take(messages: list[PostponedMessage]) -> list[PostponedMessage]:
            for message in messages:
                del remaining[message.record.offset]
            return messages

        tries = 0

        async def on_refusal(error: object) -> None:
            nonlocal tries
            tries += 1
            await self._report_refusal(pump, topic, error)
            if tries == POSTPONE_TRIES:
                on_stay(take(list(remaining.values())), f"{topic} takes no copy: {error}", True)

        waited = False
        while remaining and not pump.closed:
            present_ms = now_ms()
            levels = [
                (message, level_of(message.due_ms - present_ms, self._levels or None))
                for message in remaining.values()
            ]
            if due_soon := [message for message, level in levels if level is None]:
                on_stay(take(due_soon), "", False)
            to_send = [(message, level) for message, level in levels if level is not None]
            if not to_send or (waited and pump.draining):
                return
            waited = True
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            try:
                if not self._levels:
                    self._levels = await self._make_delayed()
                    waited = False
                    continue  # the topic may have fewer levels
            except Exception as error:  # noqa: BLE001 - whatever it raises, the messages stay
                await on_refusal(error)
                continue
            sent = await asyncio.gather(*(send(*message) for message in to_send), return_exceptions=True)
            if pump.closed:
                return
            answers = [(message, answer) for (message, _), answer in zip(to_send, sent, strict=True)]
            safe = [message for message, answer in answers if not isinstance(answer, BaseException)]
            on_moved([message.record for message in take(safe)])
            refused = [(message, answer) for message, answer in answers if isinstance(answer, COPY_REFUSALS)]
            for message, answer in refused:
                is_large = isinstance(answer, RecordTooLarge)
                on_stay(take([message]), "too large for a copy" if is_large else str(answer), False)
            if remaining:
                self._levels = 0  # the topic may have been deleted
                why = next(answer for message, answer in answers if message.record.offset in remaining)
                await on_refusal(why)

    @staticmethod
    async def _report_refusal(pump: DeliveryPump, topic: str, error: object) -> None:
        pump.troubles.show(TroubleSource.COPY, f"{NO_COPY} in {topic}: {error}")
        log.warning(
            "a copy was not taken and is tried again; the message stays unfinished",
            topic=topic, job=str(pump.job), error=repr(error),
        )  # fmt: skip
        await asyncio.sleep(PRODUCE_RETRY_S)

    @staticmethod
    def _run(pump: DeliveryPump, offset: int, copying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(copying)
        pump.copying[offset] = task

        def on_end(task: asyncio.Task[None]) -> None:
            if pump.copying.get(offset) is task:  # else another copy of the message has started
                del pump.copying[offset]
            _report_failure(pump, task)

        task.add_done_callback(on_end)

    async def _copy(
        self, pump: DeliveryPump, topic: Callable[[], str | None],
        letter: Callable[[LeftOut], tuple[bytes | None, bytes | None, list[Header]]],
        done: Callable[[], None], codec: int, on_stay: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """Copies until the topic takes it; without `on_stay`, a copy that is too large leaves parts out."""
        left_out, waited = LeftOut.NOTHING, False
        while not pump.closed and not (waited and pump.draining):
            where = topic()
            waited = True
            if where is None:
                why = "a message must go to the DLQ, but the definition has none: enable dlq"
                pump.troubles.show(TroubleSource.COPY, f"{NO_COPY}: {why}")
                await asyncio.sleep(NO_DLQ_RETRY_S)
                continue
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            try:
                await self._copies.send(where, *letter(left_out), codec=codec)
            except COPY_REFUSALS as error:
                if on_stay is not None:
                    _clear_failure(pump)
                    if not pump.closed:
                        on_stay()
                    return
                if not isinstance(error, RecordTooLarge):
                    await self._report_refusal(pump, where, error)
                    continue
                if left_out is LeftOut.ALL:
                    pump.troubles.show(TroubleSource.COPY, f"{NO_COPY} in {where}: {error}")
                    await asyncio.sleep(NO_DLQ_RETRY_S)
                    continue
                left_out, waited = LeftOut(left_out + 1), False
                continue
            except Exception as error:  # noqa: BLE001 - whatever the producer raises, the message stays
                await self._report_refusal(pump, where, error)
                continue
            _clear_failure(pump)
            if not pump.closed:
                done()
            return


def _clear_failure(pump: DeliveryPump) -> None:
    """Withdraws the trouble once copies are taken again."""
    pump.troubles.show(TroubleSource.COPY, "")


def _report_failure(pump: DeliveryPump, task: asyncio.Task[None]) -> None:
    """Reports a fault of Switchyard's own; the message stays unfinished, and the next owner delivers it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        words = "copying failed by a fault of Switchyard's own; the worker's log has the traceback"
        pump.troubles.show(TroubleSource.FAULT, f"{words}: {error!r}")
        log.error(
            "copying a message failed by a fault of Switchyard's own; it stays unfinished",
            job=str(pump.job),
            exc_info=error,
        )
