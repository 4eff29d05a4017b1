"""One stream to a receiver: opened when asked, fed from its book, told what comes back.

    down ──connect──▶ opening ──first response──▶ up ──drain──▶ draining ──▶ down
      ▲                  └───────────┴── whatever ends it ────────────────────┘

Rules
1. Two tasks a stream, none a message: one reads, one writes. What is queued while a write is under way, or
   within `WRITE_PAUSE_S` of the last, travels together.
2. A stream that ends, however it ends, tells everything in its book, once, and then `lost`. It is opened
   again by `connect` only, after a backoff of `BACKOFF_MAX_S` at most.
3. A message larger than the receiver takes is told as too large and harms no other: the receiver names
   its limit in `Accept`; one that has another limit after all ends the stream once, and is remembered.
4. What waits (for credit, or for the stream) is written only while it may be (`may_send`, asked before each
   request); it comes back as `UNSENT` otherwise, before its time runs out, and so does what is asked back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from app.dispatch.model.crash_suspicion import NOT_SENT
from app.dispatch.push.answer_limits import RANGES_AT_ONCE, AnswerTooLarge, ranges_in
from app.dispatch.push.size_refusal import size_refusal
from app.dispatch.push.stream.book import InFlightBatches
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.stream.outbox import AnsweredRuns, Outbox
from app.dispatch.push.stream.results import UNSENT, StreamResult, read_results
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
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse, Open, Role

log = structlog.get_logger(__name__)

DEFAULT_MAX_REQUEST = 4 * 1024 * 1024  # gRPC's, when the receiver names none
WRITE_PAUSE_S = 0.0005  # between writes: small batches of many partitions travel together
MAX_WAITING = 4_096  # messages queued and not sent: a few requests
LATE_S, SECOND_LOOK_S = 0.25, 0.05
STREAM_OPEN_TIMEOUT_S = 5.0  # a receiver that does not accept the stream this soon is taken for absent
DRAIN_POLL_S = 0.01
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 1.0
REFUSED = {
    NOT_FOUND: UNIMPLEMENTED,
    PERMISSION_DENIED: PERMISSION_DENIED,
    UNAUTHENTICATED: UNAUTHENTICATED,
}  # says of the receiver what it says of a unary call

BROKEN = (aio.AioRpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)
EOF: Any = aio.EOF  # type: ignore[attr-defined]


class StreamLink:
    """See the module. `method` makes the call; `timeout_s` is read anew for every batch.

    Attributes:
        up: the receiver accepted the stream, and it has not ended.
    """

    def __init__(
        self,
        method: Any,
        opening: Callable[[], Open],
        on_room: Callable[[], None],
        on_lost: Callable[[StreamResult, bool], None],
        role: Callable[[], Role | None] = lambda: None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._method = method
        self._role = role
        self._may_send = may_send
        self._opening = opening
        self._on_room = on_room
        self._on_lost = on_lost
        self.up = False
        self._renew()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._draining = self._closed = False
        self._learned_max = 0  # the receiver's limit, when it ended a stream over it
        self._backoff_s = 0.0
        self._not_before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._was_late = False
        self._call: Any = None

    # -- for the target --------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Messages that may be queued and are sent at once."""
        book = self._book
        if not self.up or self._draining or self._outbox.blocked_bytes or not book.bytes_left:
            return 0
        return max(0, min(book.credit - book.next_number, MAX_WAITING) - book.waiting)

    @property
    def load(self) -> tuple[int, int]:
        """Messages waiting, messages in flight."""
        return self._book.waiting, self._book.in_flight

    def queue(self, batch: OutBatch, timeout_s: float) -> None:
        """Sends when it can; connects when it must."""
        self._book.queue(batch, len(batch.records), time.monotonic() + timeout_s)
        self._arm()
        self._wake.set()
        self.connect()

    def cancel(self, batch: OutBatch, start: int, end: int) -> bool:
        """Gives indexes up; whether the batch was in this book."""
        return self._cancel(batch, start, end, StreamResult(CANCELLED, "cancelled"))

    def cancel_unsent(self, batch: OutBatch) -> bool:
        """Gives what of it was not sent back (rule 4); whether the batch was in this book."""
        unsent = self._book.unsent_of(batch)
        if unsent is not None:
            self._cancel(batch, *unsent, UNSENT)
        return unsent is not None

    def _cancel(self, batch: OutBatch, start: int, end: int, result: StreamResult) -> bool:
        told, numbers = self._book.cancel(batch, start, end)
        self._forget(numbers)
        if told:
            asyncio.get_running_loop().call_soon(self._pass_result, told, result)
        return bool(told)

    def _give_back(self) -> None:
        """Rule 4: all that waits, when it may not be sent."""
        if self._book.waiting and not self._may_send():
            for batch, start, end in self._book.unsent():
                self._cancel(batch, start, end, UNSENT)

    def connect(self) -> None:
        """Opens the stream, now or as soon as the backoff allows."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def announce_role(self) -> None:
        """The receiver learns now what it would have to know before the next message."""
        self._outbox.role = self._role() or Role()  # an empty one: of a single region from now on
        self._wake.set()

    async def drain(self) -> None:
        """Sends nothing new; returns when all in flight is told, answered or not."""
        self._draining = True
        for batch, start, end in self._book.unsent():
            self.cancel(batch, start, end)
        self._wake.set()
        if not self.up and self._task is not None:
            self._task.cancel()
        # A receiver that answers everything ends the stream; one that never answers is not waited for.
        while self._task is not None and (self.up or self._book.in_flight):
            await asyncio.wait([self._task], timeout=DRAIN_POLL_S)
            if not self._book.in_flight:
                return

    async def close(self) -> None:
        """Ends the stream; what has no result is told as canceled."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        if self._timer is not None:
            self._timer.cancel()
        for told in self._book.lose():
            self._pass_result(told, StreamResult(CANCELLED, "the target is closed"))

    def _renew(self) -> None:
        """Each stream counts from 0."""
        self._book: InFlightBatches[OutBatch] = InFlightBatches()
        self._outbox = Outbox(self._book, self._pass_result)
        self._outbox.role = self._role()

    # -- one stream ------------------------------------------------------------------------------

    async def _run(self) -> None:
        wait_s = self._not_before_s - time.monotonic()
        writer: asyncio.Task[None] | None = None
        result = StreamResult(CANCELLED, "cancelled")
        accepted = False
        try:
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._call = call = self._method()
            async with asyncio.timeout(STREAM_OPEN_TIMEOUT_S):
                await call.wait_for_connection()
                with contextlib.suppress(aio.InternalError):
                    await _send(call, DeliverRequest(open=self._opening()).SerializeToString())
                data = await call.read()
            accepted = data is not EOF
            writer = asyncio.get_running_loop().create_task(self._write(call))
            while data is not EOF:
                await self._read(data)
                data = await call.read()
            result = StreamResult(OK if self._draining else UNAVAILABLE, "the receiver ended the stream")
        except aio.AioRpcError as error:
            result = StreamResult(error.code().value[0], error.details() or "")
        except TimeoutError:
            result = StreamResult(
                UNAVAILABLE, f"the stream was not accepted within {STREAM_OPEN_TIMEOUT_S:g} s"
            )
        except AnswerTooLarge as error:
            result = StreamResult(UNAVAILABLE, str(error))
        except (DecodeError, aio.UsageError, asyncio.InvalidStateError) as error:
            result = await self._status(error)
        finally:
            if writer is not None:
                writer.cancel()
            if self._call is not None:
                self._call.cancel()
            self._ended(result, accepted)

    async def _status(self, error: Exception) -> StreamResult:
        """How the call ended, when gRPC raised something else than its status."""
        if self._call is None or not self._call.done():
            return StreamResult(UNAVAILABLE, f"the stream broke: {error!r}")
        status = await self._call.code()
        return StreamResult(status.value[0] or UNAVAILABLE, await self._call.details() or "")

    async def _read(self, data: bytes) -> None:
        """Raises: DecodeError, AnswerTooLarge."""
        response = DeliverResponse.FromString(data)
        book = self._book
        if not self.up:
            self.up = True
            self._backoff_s = 0.0
            limits = [response.accept.max_request_bytes or DEFAULT_MAX_REQUEST, self._learned_max]
            self._outbox.max_request = min(limit for limit in limits if limit)
        if response.HasField("results"):
            unknown = book.unknown
            ranges_in(response.results)
            for number, (span, result) in enumerate(read_results(response.results), 1):
                if not number % RANGES_AT_ONCE:
                    await asyncio.sleep(0)
                self._pass_result(book.finish(span.start, span.end), result)
            if book.unknown != unknown:
                log.warning("a receiver answers deliveries that were never made", unknown=book.unknown)
        if response.HasField("credit"):
            book.credited(response.credit.deliveries, response.credit.bytes)
        if book.waiting:
            self._wake.set()
        if self.room:
            self._on_room()

    async def _write(self, call: Any) -> None:
        """Ends quietly when the stream does: the reader knows why."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                wrote = False
                while (data := self._next_request()) is not None:
                    await _send(call, data)
                    wrote = True
                if self._draining and not self._book.waiting:
                    await _send(call, DeliverRequest(drain=True).SerializeToString())
                    await call.done_writing()
                    return
                if wrote:
                    if self.room:
                        self._on_room()
                    await asyncio.sleep(WRITE_PAUSE_S)
        except BROKEN:
            return

    def _next_request(self) -> bytes | None:
        self._give_back()
        return self._outbox.next_request()

    # -- telling ---------------------------------------------------------------------------------

    def _pass_result(self, told: AnsweredRuns, result: StreamResult) -> None:
        for batch, start, end in told:
            try:
                batch.on_results(start, end, result)
            except Exception as error:  # noqa: BLE001 - one job's fault must not end the others' stream
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "on_results raised", "exception": error}
                )

    def _forget(self, numbers: list[tuple[int, int]]) -> None:
        """The receiver is told that it may forget these; what waited behind what was given up may fit."""
        if self.up:
            self._outbox.canceled += numbers
        self._outbox.blocked_bytes = 0
        self._wake.set()

    def _arm(self) -> None:
        """One timer for all deadlines."""
        due_s = self._book.next_deadline_s()
        if due_s is None:
            return
        if self._timer is not None:
            if self._timer_at_s <= due_s:
                return
            self._timer.cancel()
        self._timer_at_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - time.monotonic()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._give_back()
        now_s = time.monotonic()
        if now_s > self._timer_at_s + LATE_S and not self._was_late:
            # The loop stood still: what was answered meanwhile is read before anything is given up.
            self._was_late = True
            self._timer = asyncio.get_running_loop().call_later(SECOND_LOOK_S, self._due)
            return
        self._was_late = False
        told, numbers = self._book.expire(now_s)
        self._forget(numbers)
        self._pass_result(told, StreamResult(DEADLINE_EXCEEDED, "no result in time"))
        self._arm()

    def _ended(self, result: StreamResult, accepted: bool) -> None:
        """Rule 2."""
        self.up = False
        self._task = self._call = None
        self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_MIN_S, self._backoff_s * 2))
        self._not_before_s = time.monotonic() + self._backoff_s
        if refusal := size_refusal(result.code, result.details):
            self._learned_max = refusal.limit_bytes or self._learned_max
            self._outbox.condemn(refusal)
        book = self._book
        self._renew()
        code = result.code
        if code == OK or (accepted and code != CANCELLED):
            code = UNAVAILABLE
        elif code != CANCELLED:
            code = REFUSED.get(code, UNAVAILABLE)
        sent, unsent = book.lose()
        details = result.details or "the stream ended"
        self._pass_result(sent, StreamResult(code, details))
        self._pass_result(unsent, StreamResult(code, f"{NOT_SENT}: {details}"))
        if not (self._closed or self._draining):
            if result.answer_too_large:  # the receiver's failure, whoever ended the stream
                result = StreamResult(UNAVAILABLE, details)
            self._on_lost(result, accepted)


async def _send(call: Any, data: bytes) -> None:
    """Not `call.write`: one that fails puts INTERNAL in the place of the status with which the receiver ended
    the call, which says whether it has the contract, or which message was too large for it.

    Raises:
        InternalError: the call has ended; reading tells how.
    """
    await call._cython_call.send_serialized_message(data)
