"""One stream to a receiver: opens it when asked, sends from its book, and reports the results.

    down ──connect──▶ opening ──first response──▶ up ──drain──▶ draining ──▶ down
      ▲                  └───────────┴── whatever ends it ────────────────────┘

Rules
1. A stream has two tasks, a reader and a writer; messages have none. Batches that are queued during a write,
   or within `WRITE_PAUSE_S` after it, travel together.
2. However a stream ends, every message in its book gets its result once, and then `on_lost` is called, unless
   it was closed or drained. Only `connect` opens it again, after a backoff of `BACKOFF_MAX_S` at most.
3. A message larger than the receiver takes ends as too large and harms no other. The receiver names its limit
   in `Accept`. If its real limit is lower, the stream ends, and the limit is remembered.
4. The writer calls `may_send` before each request. While it is False, waiting messages are not written and
   end as `UNSENT`, before their timeout. So do messages that the caller takes back.
5. Each stream that is opened has a connection of its own, which a load balancer may lead to another receiver.
   A receiver that takes nothing of a request for some time ends it (`HUNG_S` of `http2_transport`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence

import structlog
from google.protobuf.message import DecodeError

from app.dispatch.model.crash_suspicion import NOT_SENT, Loss
from app.dispatch.push.answer_limits import (
    RANGES_AT_ONCE,
    AnswerTooLarge,
    check_renewals,
    ranges_in,
)
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.http_answer import why_no_receiver
from app.dispatch.push.size_refusal import size_refusal
from app.dispatch.push.stream.book import InFlightBatches
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.stream.outbox import AnsweredRuns, Outbox
from app.dispatch.push.stream.results import RENEW, UNSENT, read_results
from app.dispatch.push.transport import StreamCall, StreamChannel
from app.kernel.grpc_status import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    NOT_FOUND,
    OK,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse, Open, Renewal, Role

log = structlog.get_logger(__name__)

DEFAULT_MAX_REQUEST = 4 * 1024 * 1024  # gRPC's, when the receiver names none
WRITE_PAUSE_S = 0.0005  # between writes, so that small batches of many partitions travel together
MAX_WAITING = 4_096  # messages queued and not sent: a few requests
LATE_S, SECOND_LOOK_S = 0.25, 0.05
STREAM_OPEN_TIMEOUT_S = 5.0  # a receiver that does not accept the stream within this counts as absent
DRAIN_POLL_S = 0.01
RENEWAL_GRID_S = 0.1  # deadlines of renewals, so that thousands of different ones are few timers
RETIRE_S = 1.0  # for a receiver to end a stream that has been drained
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 1.0
REFUSED = {
    NOT_FOUND: UNIMPLEMENTED,
    PERMISSION_DENIED: PERMISSION_DENIED,
    UNAUTHENTICATED: UNAUTHENTICATED,
}  # means the same as for a unary call


class StreamLink:
    """One stream after another to a receiver.

    Args:
        open_channel: Makes the connection of one stream.
        on_room: Is called when the stream is up, and when `room` may have grown.

    Attributes:
        up: The receiver accepted the stream, and it has not ended.
        max_request: The limit over which the receiver ended a stream, in bytes; 0: it has not.
    """

    def __init__(
        self,
        open_channel: Callable[[], StreamChannel],
        open_message: Callable[[], Open],
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult, bool], None],
        role: Callable[[], Role | None] = lambda: None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._open_channel = open_channel
        self._role = role
        self._may_send = may_send
        self._open_message = open_message
        self._on_room = on_room
        self._on_lost = on_lost
        self.up = False
        self._may_renew = False
        self._start_book()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # also of former streams, whose connections close
        self._wake = asyncio.Event()
        self._draining = self._closed = False
        self.max_request = 0
        self._backoff_s = 0.0
        self._not_before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._was_late = False
        self._call: StreamCall | None = None

    # -- for the target --------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many messages may be queued and would be sent at once."""
        book = self._book
        if not self.up or self._draining or self._outbox.blocked_bytes or not book.bytes_left:
            return 0
        return max(0, min(book.credit - book.next_number, MAX_WAITING) - book.waiting)

    @property
    def is_used(self) -> bool:
        """Whether this stream has carried messages since it was opened."""
        return self._book.next_number > 0

    @property
    def load(self) -> tuple[int, int]:
        """Messages waiting, and messages in flight."""
        return self._book.waiting, self._book.in_flight

    def queue(self, batch: OutBatch, timeout_s: float, longest_s: float = 0.0) -> None:
        """Queues a batch for sending, and connects if need be. It may take up to `longest_s` if the receiver
        asks for more time."""
        now_s = time.monotonic()
        self._book.queue(batch, len(batch.records), now_s + timeout_s, now_s + longest_s)
        batch.deadline_s, batch.latest_s = now_s + timeout_s, now_s + longest_s
        self._arm()
        self._wake.set()
        self.connect()

    def cancel(self, batch: OutBatch, start: int, end: int) -> bool:
        """Gives up the indexes [start, end). Returns whether any of them was open here."""
        return self._cancel(batch, start, end, CallResult(CANCELLED, "cancelled"))

    def cancel_unsent(self, batch: OutBatch) -> bool:
        """Gives back the batch's unsent messages (rule 4). Returns whether the batch is in this book."""
        unsent = self._book.unsent_of(batch)
        if unsent is not None:
            self._cancel(batch, *unsent, UNSENT)
        return unsent is not None

    def _cancel(self, batch: OutBatch, start: int, end: int, result: CallResult) -> bool:
        runs, numbers = self._book.cancel(batch, start, end)
        self._forget(numbers)
        if runs:
            asyncio.get_running_loop().call_soon(self._pass_result, runs, result)
        return bool(runs)

    def _return_unsent(self) -> None:
        """Gives back everything that waits, if it may not be sent (rule 4)."""
        if self._book.waiting and not self._may_send():
            for batch, start, end in self._book.unsent():
                self._cancel(batch, start, end, UNSENT)

    def connect(self) -> None:
        """Opens the stream, as soon as the backoff allows."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)

    def learn(self, max_request: int) -> None:
        """Sends no larger request, in bytes, from now on."""
        self.max_request = max_request
        if self.up:
            self._outbox.max_request = min(self._outbox.max_request, max_request)

    def rest(self, pause_s: float) -> None:
        """Opens no stream for this time."""
        self._not_before_s = time.monotonic() + pause_s

    def announce_role(self) -> None:
        """Sends the region's role now, or before the next message."""
        self._outbox.role = self._role() or Role()  # an empty one: the workload runs in one region now
        self._wake.set()

    async def drain(self) -> None:
        """Sends nothing new, and returns when all messages in flight have a result."""
        self._draining = True
        for batch, start, end in self._book.unsent():
            self.cancel(batch, start, end)
        self._wake.set()
        if not self.up and self._task is not None:
            self._task.cancel()
        # Messages in flight end by an answer or their timeout. The stream's own end is not awaited.
        while self._task is not None and (self.up or self._book.in_flight):
            await asyncio.wait([self._task], timeout=DRAIN_POLL_S)
            if not self._book.in_flight:
                return

    async def retire(self) -> None:
        """Ends the stream when all its messages have their results. The caller queues no more."""
        while self._book.waiting or self._book.in_flight:  # noqa: ASYNC110 - no event tells of each answer
            await asyncio.sleep(DRAIN_POLL_S)
        await self.drain()
        if self._task is not None:  # the receiver ends the stream; if it does not, this side does
            await asyncio.wait([self._task], timeout=RETIRE_S)
        await self.close()

    async def close(self) -> None:
        """Ends the stream; messages without a result end as CANCELLED."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([*self._tasks])
        if self._timer is not None:
            self._timer.cancel()
        for runs in self._book.lose():
            self._pass_result(runs, CallResult(CANCELLED, "the target is closed"))

    def _start_book(self) -> None:
        """Starts a book and an outbox for the next stream, whose numbers begin at 0."""
        self._book: InFlightBatches[OutBatch] = InFlightBatches()
        self._outbox = Outbox(self._book, self._pass_result)
        self._outbox.role = self._role()

    # -- one stream ------------------------------------------------------------------------------

    async def _run(self) -> None:
        channel: StreamChannel | None = None
        writer: asyncio.Task[None] | None = None
        result = CallResult(CANCELLED, "cancelled")
        accepted = False
        try:
            if (wait_s := self._not_before_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            channel = self._open_channel()
            self._call = call = channel.open()
            async with asyncio.timeout(STREAM_OPEN_TIMEOUT_S):
                await call.write(DeliverRequest(open=self._open_message()).SerializeToString())
                data = await call.read()
            accepted = data is not None
            writer = asyncio.get_running_loop().create_task(self._write(call))
            while data is not None:
                await self._read(data)
                data = await call.read()
            result = call.result
            if result.code == OK:
                code = OK if self._draining else UNAVAILABLE
                result = CallResult(code, "the receiver ended the stream")
        except TimeoutError:
            result = CallResult(
                UNAVAILABLE, f"the stream was not accepted within {STREAM_OPEN_TIMEOUT_S:g} s"
            )
        except AnswerTooLarge as error:
            result = CallResult(UNAVAILABLE, str(error))
        except DecodeError as error:
            result = CallResult(UNAVAILABLE, f"the receiver's response cannot be read: {error}")
        finally:
            if writer is not None:
                writer.cancel()
            if self._call is not None:
                self._call.cancel()
            self._ended(result, accepted)
            if channel is not None:
                await channel.close()

    async def _read(self, data: bytes) -> None:
        """Raises DecodeError, AnswerTooLarge."""
        response = DeliverResponse.FromString(data)
        book = self._book
        is_new = not self.up
        if is_new:
            self.up = True
            self._backoff_s = 0.0
            limits = [response.accept.max_request_bytes or DEFAULT_MAX_REQUEST, self.max_request]
            self._outbox.max_request = min(limit for limit in limits if limit)
            self._may_renew = bool(response.accept.features & RENEW)
        if response.HasField("results"):
            unknown = book.unknown
            ranges_in(response.results)
            for number, (span, result) in enumerate(read_results(response.results), 1):
                if not number % RANGES_AT_ONCE:
                    await asyncio.sleep(0)
                self._pass_result(book.finish(span.start, span.end), result)
            if book.unknown != unknown:
                log.warning(
                    "a receiver sent results for deliveries that were never made", unknown=book.unknown
                )
        if self._may_renew and response.renewals:
            await self._renew(response.renewals)
        if response.HasField("credit"):
            book.credited(response.credit.deliveries, response.credit.bytes)
        if book.waiting:
            self._wake.set()
        if is_new or self.room:
            self._on_room()

    async def _renew(self, renewals: Sequence[Renewal]) -> None:
        """Raises AnswerTooLarge."""
        looks = paused_at = 0
        for renewal in renewals:
            wanted_s = time.monotonic() + renewal.for_ms / 1000
            span, until_s = renewal.deliveries, math.ceil(wanted_s / RENEWAL_GRID_S) * RENEWAL_GRID_S
            renewed, more = self._book.renew(span.start, span.end, until_s)
            for batch, index in renewed:
                batch.renewed = batch.renewed or set()
                batch.renewed.add(index)
            looks += more
            check_renewals(looks)
            if looks >= paused_at + RANGES_AT_ONCE:
                paused_at = looks
                await asyncio.sleep(0)

    async def _write(self, call: StreamCall) -> None:
        """Writes until the stream ends; the reader reports why it ended."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            wrote = False
            while (data := self._next_request()) is not None:
                if not await call.write(data):
                    return
                wrote = True
            if self._draining and not self._book.waiting:
                await call.write(DeliverRequest(drain=True).SerializeToString())
                call.end_writing()
                return
            if wrote:
                if self.room:
                    self._on_room()
                await asyncio.sleep(WRITE_PAUSE_S)

    def _next_request(self) -> bytes | None:
        self._return_unsent()
        return self._outbox.next_request()

    # -- results ---------------------------------------------------------------------------------

    def _pass_result(self, runs: AnsweredRuns, result: CallResult) -> None:
        for batch, start, end in runs:
            try:
                batch.on_results(start, end, result)
            except Exception as error:  # noqa: BLE001 - one job's fault must not end the stream of others
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "on_results raised", "exception": error}
                )

    def _forget(self, numbers: list[tuple[int, int]]) -> None:
        """Has the receiver forget these deliveries. The room that they leave may suit a waiting message."""
        if self.up:
            self._outbox.canceled += numbers
        self._outbox.blocked_bytes = 0
        self._wake.set()

    def _arm(self) -> None:
        """Sets one timer for all deadlines."""
        due_s = self._book.next_deadline_s()
        if due_s is None:
            return
        if self._timer is not None:
            if self._timer_at_s <= due_s:
                return
            self._timer.cancel()
        self._timer_at_s = due_s
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, due_s - time.monotonic()), self._on_timer
        )

    def _on_timer(self) -> None:
        self._timer = None
        self._return_unsent()
        now_s = time.monotonic()
        if now_s > self._timer_at_s + LATE_S and not self._was_late:
            # The event loop stood still: answers that came meanwhile are read before anything expires.
            self._was_late = True
            self._timer = asyncio.get_running_loop().call_later(SECOND_LOOK_S, self._on_timer)
            return
        self._was_late = False
        runs, numbers = self._book.expire(now_s)
        self._forget(numbers)
        self._pass_result(runs, CallResult(DEADLINE_EXCEEDED, "no result in time"))
        self._arm()

    def _ended(self, result: CallResult, accepted: bool) -> None:
        """Reports the stream's end (rule 2)."""
        self.up = False
        self._task = self._call = None
        self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_MIN_S, self._backoff_s * 2))
        self._not_before_s = time.monotonic() + self._backoff_s
        if refusal := size_refusal(result.code, result.details):
            self.max_request = refusal.limit_bytes or self.max_request
            self._outbox.condemn(refusal)
        book = self._book
        self._start_book()
        code = UNAVAILABLE if why_no_receiver(result.details) else result.code
        if code == OK or (accepted and code != CANCELLED):
            code = UNAVAILABLE
        elif code != CANCELLED:
            code = REFUSED.get(code, UNAVAILABLE)
        sent, unsent = book.lose()
        details = result.details or "the stream ended"
        self._pass_result(sent, CallResult(code, details, loss=result.loss))
        loss = Loss.PLANNED if result.is_planned_end else Loss.UNREACHED
        self._pass_result(unsent, CallResult(code, f"{NOT_SENT}: {details}", loss=loss))
        if not (self._closed or self._draining):
            if result.answer_too_large:  # the receiver's failure, though this side ended the stream
                result = CallResult(UNAVAILABLE, details)
                result.answer_too_large = True
            self._on_lost(result, accepted)
