"""The stream contract, seen from the receiver: requests in, verdicts gathered, credit given back.

Rules
1. A synchronous handler is called where the message is read: no task, no future a message. After `SLICE_S`
   the loop gets its turn, so that a slow handler holds up neither results nor health checks.
2. An asynchronous one runs in a task (for batch handlers, with a batch), as many at once as the gate lets in.
3. Results go out at most every `WRITE_PAUSE_S`, the credit of what is done with them.
4. Credit = what is done + the window. Of a request's bytes each of its deliveries gives back its part, so
   that one stuck message does not hold on to its neighbours' share.
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
from switchyard.receiver.outcomes import StreamOutcomes
from switchyard.receiver.unary_service import HandlerRoute
from switchyard.receiver.verdicts import Message, RegionRole, checked, spread
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse, Open

SURELY_ASYNC = 8  # so many awaitables in a row, and none else
WRITE_PAUSE_S = 0.001
BROKEN = (aio.AioRpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)
EOF: Any = aio.EOF  # type: ignore[attr-defined]


class _Handling(NamedTuple):
    """Deliveries [start, end), to be handled; `answer` is what their handler has returned already."""

    session: Session
    start: int
    end: int
    share: int
    argument: Any
    answer: Any

    async def run(self) -> None:
        """See `admission.PendingWork`."""
        await self.session.handle(self.start, self.end, self.share, self.argument, self.answer)


class Session:
    """One stream."""

    def __init__(
        self, context: Any, route: HandlerRoute, opened: Open, window: AdmissionWindow, gate: TaskGate
    ) -> None:
        self._context = context
        self._route = route
        self._opened = opened
        self._window = window
        self._gate = gate
        self._outcomes = StreamOutcomes()
        self._role: RegionRole | None = None
        self._next = 0  # number of the next delivery
        self._open = 0  # deliveries that are not done
        self._released = 0  # bytes given back
        self._tasks: dict[int, tuple[int, asyncio.Future[Any] | None]] = {}  # by first number: end, task
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False

    async def run(self, first: DeliverRequest, size: int, stopping: asyncio.Event) -> None:
        """Serves until the sender ends the stream or drains it, or the receiver stops.

        Raises:
            Violation: see there.
        """
        response = DeliverResponse()
        response.accept.max_request_bytes = self._window.max_request_bytes
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
                return  # nobody is there to be told
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
                raise Violation(f"this is no DeliverRequest: {error}") from error

    async def _accept(self, request: DeliverRequest, size: int) -> None:
        count = sum(len(batch.messages) for batch in request.batches)
        if self._open + count > self._window.deliveries:
            raise Violation(f"{count} deliveries sent beyond the credit")
        self._idle.clear()
        self._open += count
        share = size // count if count else 0
        self._settle(0, size - share * count)
        for batch in request.batches:
            start = self._next
            if batch.first_delivery != start:
                raise Violation(f"delivery {batch.first_delivery} comes where {start} is next")
            messages = read_batch(batch, self._opened, self._role)
            self._next += len(messages)
            if self._route.batch:
                self._enter_batch(start, messages, share)
            elif self._route.tasks:
                self._enter_all(start, messages, share)
            else:
                await self._inline(start, messages, share)

    async def _inline(self, start: int, messages: list[Message], share: int) -> None:
        """Rule 1."""
        handler = self._route.handler
        awaited = 0
        said = number = start  # outcomes are told of all below `said`
        until_s = perf_counter() + SLICE_S
        for message in messages:
            try:
                verdict = handler(message)
                if verdict is not None and inspect.isawaitable(verdict):
                    self._outcomes.acknowledge(said, number)
                    self._settle(number - said, share * (number - said))
                    said = number + 1
                    awaited += 1
                    self._enter(number, said, share, message, verdict)
                elif verdict is not None:
                    self._outcomes.acknowledge(said, number)
                    self._outcomes.add(number, checked(verdict))
                    self._settle(number + 1 - said, share * (number + 1 - said))
                    said = number + 1
            except Exception as error:  # noqa: BLE001 - the handler's
                self._outcomes.acknowledge(said, number)
                self._outcomes.fail(number, number + 1, error)
                self._settle(number + 1 - said, share * (number + 1 - said))
                said = number + 1
            number += 1
            if perf_counter() > until_s:
                self._outcomes.acknowledge(said, number)
                self._settle(number - said, share * (number - said))
                said = number
                await asyncio.sleep(0)
                until_s = perf_counter() + SLICE_S
        self._outcomes.acknowledge(said, number)
        self._settle(number - said, share * (number - said))
        # One that always awaits is not called before there is room for its task.
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
        """Calls the handler, or awaits what it has returned; tells the outcome unless it was canceled."""
        task = asyncio.current_task()
        try:
            if start in self._tasks:
                self._tasks[start] = (end, task)
                await self._judged(start, end, argument, answer)
        except asyncio.CancelledError:
            if task is not None and task.cancelling() and start in self._tasks:
                raise  # the task itself is to end
        finally:
            canceled = self._tasks.pop(start, None) is None
            if canceled and task is not None and task.cancelling():
                task.uncancel()  # the delivery is, and not the task that worked on it
            self._settle(end - start, share * (end - start))

    async def _judged(self, start: int, end: int, argument: Any, answer: Any) -> None:
        try:
            if answer is None:
                answer = self._route.handler(argument)
            if type(answer) is CoroutineType or inspect.isawaitable(answer):
                answer = await answer
            if start in self._tasks:
                self._judge(start, end, answer)
        except (Exception, asyncio.CancelledError) as error:
            if start in self._tasks:
                self._outcomes.fail(start, end, error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _judge(self, start: int, end: int, answer: Any) -> None:
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
        """What is canceled whole is stopped; of the rest the sender ignores the results."""
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

    async def _flush(self) -> None:
        """Ends when all is said, or nobody listens any more."""
        with contextlib.suppress(*BROKEN):
            while not (self._ending and not self._outcomes.count):
                await self._wake.wait()
                self._wake.clear()
                response = DeliverResponse()
                self._outcomes.take_into(response)
                self._credit(response)
                await self._context.write(response.SerializeToString())
                if self._outcomes.count:
                    self._wake.set()
                await asyncio.sleep(WRITE_PAUSE_S)
