"""What goes out on one stream: requests made of the book's batches, within every limit.

Rules
1. As much as there is goes into one request, up to `REQUEST_BYTES`, the credit, and what the receiver takes.
2. A message that fits in none of these alone travels alone, when nothing is in flight or the credit suffices.
3. What can never be sent, because it is larger than the receiver takes or cannot be encoded, is dropped with
   its reason and harms no other.
"""

from __future__ import annotations

from collections.abc import Callable

from app.dispatch.push.size_refusal import SizeRefusal
from app.dispatch.push.stream.book import InFlightBatches
from app.dispatch.push.stream.encoder import MessageNotEncodable, OutBatch, add_run, alone
from app.dispatch.push.stream.results import StreamResult, too_large
from app.kernel.grpc_status import OK
from switchyard.v1.receiver_pb2 import DeliverRequest, Role

REQUEST_BYTES = 256 * 1024  # longer ones gain nothing, and hold the loop and the first message's answer up
MAX_LARGE = 64  # lone messages remembered
DROPPED = b""

AnsweredRuns = list[tuple[OutBatch, int, int]]


class Outbox:
    """See the module.

    Attributes:
        canceled: deliveries that the receiver may forget; the next request says so.
        role: what the receiver is to know of the region before anything that goes out; None: nothing new.
        max_request: bytes that the receiver takes at once.
        blocked_bytes: size of a lone message that waits for credit; 0: none does.
    """

    def __init__(
        self, book: InFlightBatches[OutBatch], on_result: Callable[[AnsweredRuns, StreamResult], None]
    ) -> None:
        self.book = book
        self.canceled: list[tuple[int, int]] = []
        self.role: Role | None = None
        self.max_request = 0
        self.blocked_bytes = 0
        self._on_result = on_result
        self._large: dict[int, tuple[OutBatch, int]] = {}  # lone messages in flight, by request size

    def next_request(self) -> bytes | None:
        """What there is to say; None: nothing, or not now."""
        book = self.book
        request = DeliverRequest()
        for start, end in self.canceled:
            request.canceled.add(start=start, end=end)
        self.canceled.clear()
        if self.role is not None:
            request.role.CopyFrom(self.role)
            self.role = None
        budget = min(REQUEST_BYTES, book.bytes_left, self.max_request)
        while (run := book.next_run()) is not None:
            batch, start, end = run
            try:
                count, size = add_run(request, batch, start, end, book.next_number, budget)
                if not count:
                    if not (request.batches or request.canceled or request.HasField("role")):
                        lone = self._lone(batch, start)
                        if lone == DROPPED:
                            continue
                        return lone
                    break
            except MessageNotEncodable as error:
                self._drop(batch, start, StreamResult(OK, local_error=str(error)))
                continue
            budget -= size
            book.sent(count)
            self.blocked_bytes = 0  # what waited is the first to go
        data = request.SerializeToString()
        if request.batches:
            book.sent_bytes(len(data))
        return data or None

    def _lone(self, batch: OutBatch, index: int) -> bytes | None:
        """A message too large for what is left, in a request of its own; None when it must wait."""
        book = self.book
        if self.blocked_bytes and self.blocked_bytes > book.bytes_left and book.in_flight:
            return None
        self.blocked_bytes = 0
        data = alone(batch, index, book.next_number)
        if len(data) > self.max_request:
            self._drop(batch, index, too_large(len(data), self.max_request))
            return DROPPED
        if len(data) > book.bytes_left and book.in_flight:
            self.blocked_bytes = len(data)
            return None
        book.sent(1)
        book.sent_bytes(len(data))
        self._large[len(data)] = (batch, index)
        if len(self._large) > MAX_LARGE:
            del self._large[next(iter(self._large))]
        return data

    def condemn(self, refusal: SizeRefusal) -> None:
        """The receiver ended the stream over a request that was too large: so is its message.

        Where the receiver does not tell the size, it is the only lone message in flight; of more than one
        none is condemned, and they are tried again one at a time (`app.dispatch.model.crash_suspicion`).
        """
        size, limit = refusal
        if size is None:
            open_sizes = [
                size for size, (batch, index) in self._large.items() if self.book.is_open(batch, index)
            ]
            size = open_sizes[0] if len(open_sizes) == 1 else None
        guilty = None if size is None else self._large.get(size)
        if guilty is not None and size is not None:
            self._drop(*guilty, too_large(size, limit))

    def _drop(self, batch: OutBatch, index: int, result: StreamResult) -> None:
        told, _ = self.book.cancel(batch, index, index + 1)
        self._on_result(told, result)
