"""One stream of the stream contract: reads requests, collects verdicts, and returns credit.

Rules
1. A synchronous handler is called where the message is read, without a task or future for each message.
   Between two calls, after `SLICE_S`, other tasks run. So results and health checks wait for that and one
   call at most.
2. An asynchronous handler runs in a task for each message, or for each batch. The gate limits how many run at
   once.
3. Results are sent at most every `WRITE_PAUSE_S`, with the credit of the finished deliveries.
4. The credit is the finished deliveries plus the window. Each delivery returns its part of its request's
   bytes, so one stuck message does not hold the bytes of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from time import perf_counter
from types import CoroutineType
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from grpc import aio

from switchyard.receiver.admission import SLICE_S, AdmissionWindow, TaskGate, Violation, read_batch, read_role
from switchyard.receiver.delivery_time import StreamTime
from switchyard.receiver.outcomes import StreamOutcomes
from switchyard.receiver.python310 import is_being_cancelled, keep_running
from switchyard.receiver.unary_service import HandlerRoute
from switchyard.receiver.verdicts import Message, RegionRole, checked, spread
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse, Open, Range

SURELY_ASYNC = 8  # a handler that only returned awaitables for so large a batch counts as asynchronous
WRITE_PAUSE_S = 0.001
MOST_RENEWALS = 1_000  # in a response
RENEW = 1  # of `features`: the receiver may ask for more time
BROKEN = (aio.AioRpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)
EOF: Any = aio.EOF  # type: ignore[attr-defined]


class _Handling(NamedTuple):
    """Deliveries [start, end) to handle. `answer`: what their handler has returned already; None: not called
    yet."""

    session: Session
    start: int
    end: int
    share: int
    argument: Any
    answer: Any

    async def run(self) -> None:
        """Runs the handler (`admission.PendingWork`)."""
        await self.session.handle(self.start, self.end, self.share, self.argument, self.answer)


class Session:
    """Serves one stream."""

    def __init__(
        self, context: Any, route: HandlerRoute, opened: Open, window: AdmissionWindow, gate: TaskGate
    ) -> None:
        self._context = context
        self._route = route
        self._opened = opened
        self._window = window
        self._gate = gate
        self._may_renew = bool(opened.features & RENEW)
        self._outcomes = StreamOutcomes(may_renew=self._may_renew)
        self._role: RegionRole | None = None
        self._next = 0  # the number of the next delivery
        self._open = 0  # unfinished deliveries
        self._released = 0  # bytes of finished deliveries
        self._tasks: dict[int, tuple[int, asyncio.Future[Any] | None]] = {}  # by first number: end, task
        self._wake = asyncio.Event()
        self._renewals: dict[int, int] = {}  # milliseconds for deliveries that need more time
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False

    async def run(self, first: DeliverRequest, size: int, stopping: asyncio.Event) -> None:
        """Serves until the sender ends or drains the stream, or the receiver stops.

        Raises:
            Violation: The sender breaks the contract.
        """
        response = DeliverResponse()
        response.accept.max_request_bytes = self._window.max_request_bytes
        response.accept.features = RENEW
        self._credit(response)
        await self._context.write(response.SerializeToString())
        loop = asyncio.get_running_loop()
        flusher = loop.create_task(self._flush())
        reader = loop.create_task(self._read(first, size))
        stopper = loop.create_task(stopping.wait())
        try:
            await asyncio.wait([reader, stopper, flusher], return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
            if flusher.done():
                return  # the connection broke
            reader.cancel()
            await self._idle.wait()
            self._ending = True
            self._wake.set()
            await flusher
        finally:
            for task in (flusher, reader, stopper, *(task for _, task in self._tasks.values())):
                if task is not None:
                    task.cancel()
            self._tasks.clear()

    # -- in --------------------------------------------------------------------------------------

    async def _read(self, request: DeliverRequest, size: int) -> None:
        while True:
            if request.canceled:
                self._cancel(request)
            if request.HasField("role"):
                self._role = read_role(request.role)
            if request.batches:
                await self._accept(request, size)
            if request.drain:
                return
            data = await self._context.read()
            if data is EOF:
                return
            try:
                request, size = DeliverRequest.FromString(data), len(data)
            except DecodeError as error:
                raise Violation(f"the request is no DeliverRequest: {error}") from error

    async def _accept(self, request: DeliverRequest, size: int) -> None:
        count = sum(len(batch.messages) for batch in request.batches)
        if self._open + count > self._window.deliveries:
            raise Violation(f"the request has {count} deliveries, more than the credit")
        self._idle.clear()
        self._open += count
        share = size // count if count else 0
        self._settle(0, size - share * count)
        for batch in request.batches:
            start = self._next
            if batch.first_delivery != start:
                raise Violation(f"a batch begins with delivery {batch.first_delivery}, but {start} is next")
            timeout_ms = batch.timeout_ms or self._opened.timeout_ms
            time = StreamTime(timeout_ms / 1000, batch.longest_ms / 1000, self._ask)
            messages = read_batch(batch, self._opened, self._role, time)
            self._next += len(messages)
            if self._route.batch:
                self._enter_batch(start, messages, share)
            elif self._route.tasks:
                self._enter_all(start, messages, share)
            else:
                await self._inline(start, messages, share)

    async def _inline(self, start: int, messages: list[Message], share: int) -> None:
        """Calls a synchronous handler for the messages of a batch (rule 1)."""
        handler = self._route.handler
        awaited = 0
        recorded = number = start  # deliveries below `recorded` have an outcome
        until_s = perf_counter() + SLICE_S
        for message in messages:
            try:
                verdict = handler(message)
                if verdict is not None and inspect.isawaitable(verdict):
                    self._outcomes.acknowledge(recorded, number)
                    self._settle(number - recorded, share * (number - recorded))
                    recorded = number + 1
                    awaited += 1
                    self._enter(number, recorded, share, message, verdict)
                elif verdict is not None:
                    self._outcomes.acknowledge(recorded, number)
                    self._outcomes.add(number, checked(verdict))
                    self._settle(number + 1 - recorded, share * (number + 1 - recorded))
                    recorded = number + 1
            except Exception as error:  # noqa: BLE001 - the handler's
                self._outcomes.acknowledge(recorded, number)
                self._outcomes.fail(number, number + 1, error)
                self._settle(number + 1 - recorded, share * (number + 1 - recorded))
                recorded = number + 1
            number += 1
            if perf_counter() > until_s:
                self._outcomes.acknowledge(recorded, number)
                self._settle(number - recorded, share * (number - recorded))
                recorded = number
                await asyncio.sleep(0)
                until_s = perf_counter() + SLICE_S
        self._outcomes.acknowledge(recorded, number)
        self._settle(number - recorded, share * (number - recorded))
        # From now on a handler that always awaits is called only once the gate lets it in.
        self._route.tasks = awaited == len(messages) >= SURELY_ASYNC

    # -- tasks -----------------------------------------------------------------------------------

    def _enter_all(self, start: int, messages: list[Message], share: int) -> None:
        for number, message in enumerate(messages, start):
            self._enter(number, number + 1, share, message)

    def _enter_batch(self, start: int, messages: list[Message], share: int) -> None:
        if messages:
            self._enter(start, start + len(messages), share, messages)

    def _enter(self, start: int, end: int, share: int, argument: Any, answer: Any = None) -> None:
        self._tasks[start] = (end, None)
        self._gate.enter(_Handling(self, start, end, share, argument, answer))

    async def handle(self, start: int, end: int, share: int, argument: Any, answer: Any) -> None:
        """Calls the handler, or awaits its answer. Records the outcome unless the delivery was cancelled."""
        task = asyncio.current_task()
        try:
            if start in self._tasks:
                self._tasks[start] = (end, task)
                await self._call(start, end, argument, answer)
        except asyncio.CancelledError:
            if task is not None and is_being_cancelled(task) and start in self._tasks:
                raise  # the task itself is cancelled
        finally:
            canceled = self._tasks.pop(start, None) is None
            if canceled and task is not None and is_being_cancelled(task):
                keep_running(task)  # only its delivery was cancelled, so the task takes the next one
            self._settle(end - start, share * (end - start))

    async def _call(self, start: int, end: int, argument: Any, answer: Any) -> None:
        try:
            if answer is None:
                answer = self._route.handler(argument)
            if type(answer) is CoroutineType or inspect.isawaitable(answer):
                answer = await answer
            if start in self._tasks:
                self._record(start, end, answer)
        except (Exception, asyncio.CancelledError) as error:
            if start in self._tasks:
                self._outcomes.fail(start, end, error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _record(self, start: int, end: int, answer: Any) -> None:
        outcomes = self._outcomes
        if answer is None:
            if end == start + 1:
                outcomes.acknowledged.append(start)
            else:
                outcomes.acknowledge(start, end)
        elif self._route.batch:
            for number, verdict in enumerate(spread(answer, end - start), start):
                outcomes.add(number, verdict)
        else:
            outcomes.add(start, checked(answer))

    def _cancel(self, request: DeliverRequest) -> None:
        """Stops tasks whose deliveries are all cancelled. The sender ignores the results of the others."""
        for span in request.canceled:
            inside = range(span.start, min(span.end, self._next))
            numbers = inside if len(inside) <= len(self._tasks) else list(self._tasks)
            for number in numbers:
                end, task = self._tasks.get(number, (0, None))
                if span.start <= number < end <= span.end:
                    del self._tasks[number]
                    if task is not None:
                        task.cancel()

    # -- out -------------------------------------------------------------------------------------

    def _settle(self, count: int, size: int) -> None:
        self._open -= count
        self._released += size
        self._wake.set()
        if not self._open:
            self._idle.set()

    def _credit(self, response: DeliverResponse) -> None:
        response.credit.deliveries = self._next - self._open + self._window.deliveries
        response.credit.bytes = self._released + self._window.size

    def _ask(self, number: int, wanted_ms: int) -> bool:
        """Asks for more time (`delivery_time.StreamTime`), if the sender knows that and the handler runs. Any
        thread may call this."""
        if not self._may_renew:
            return False
        runs = number in self._tasks
        if self._route.batch:
            runs = any(start <= number < end for start, (end, _) in list(self._tasks.items()))
        if runs:
            self._loop.call_soon_threadsafe(self._add_renewal, number, wanted_ms)
        return runs

    def _add_renewal(self, number: int, wanted_ms: int) -> None:
        self._renewals[number] = wanted_ms
        self._wake.set()

    def _take_renewals_into(self, response: DeliverResponse) -> None:
        for number in list(self._renewals)[:MOST_RENEWALS]:
            wanted_ms = self._renewals.pop(number)
            response.renewals.add(deliveries=Range(start=number, end=number + 1), for_ms=wanted_ms)

    async def _flush(self) -> None:
        """Sends results until all are sent, or the connection breaks."""
        with contextlib.suppress(*BROKEN):
            while not (self._ending and not self._outcomes.count):
                await self._wake.wait()
                self._wake.clear()
                response = DeliverResponse()
                self._outcomes.take_into(response)
                self._take_renewals_into(response)
                self._credit(response)
                await self._context.write(response.SerializeToString())
                if self._outcomes.count or self._renewals:
                    self._wake.set()
                await asyncio.sleep(WRITE_PAUSE_S)
