"""The requests of one stream: built from the book's batches, within every limit.

Rules
1. A request holds as much as there is, up to `REQUEST_BYTES`, the credit, and the receiver's limit.
2. A message larger than `REQUEST_BYTES` or the credit left travels alone, when the credit suffices or nothing
   is in flight.
3. A message that is larger than the receiver takes, or cannot be encoded, is dropped with its reason and
   harms no other.
"""

from __future__ import annotations

from collections.abc import Callable

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.size_refusal import SizeRefusal
from app.dispatch.push.stream.book import InFlightBatches
from app.dispatch.push.stream.encoder import MessageNotEncodable, OutBatch, add_run, encode_alone
from app.dispatch.push.stream.results import too_large
from app.kernel.grpc_status import OK
from switchyard.v1.receiver_pb2 import DeliverRequest, Role

REQUEST_BYTES = 256 * 1024  # longer requests gain nothing, and delay the loop and the first answer
MAX_LARGE = 64  # lone messages that are remembered
DROPPED = b""

AnsweredRuns = list[tuple[OutBatch, int, int]]


class Outbox:
    """Builds one stream's requests.

    Attributes:
        canceled: Deliveries that the receiver may forget; the next request names them.
        role: The region's role, for the next request; None: nothing new.
        max_request: The largest request, in bytes, that the receiver takes.
        blocked_bytes: Size of a lone message that waits for credit; 0: none does.
    """

    def __init__(
        self, book: InFlightBatches[OutBatch], on_result: Callable[[AnsweredRuns, CallResult], None]
    ) -> None:
        self.book = book
        self.canceled: list[tuple[int, int]] = []
        self.role: Role | None = None
        self.max_request = 0
        self.blocked_bytes = 0
        self._on_result = on_result
        self._large: dict[int, tuple[OutBatch, int]] = {}  # lone messages in flight, by request size

    def next_request(self) -> bytes | None:
        """The next request; None: there is nothing to send now."""
        book = self.book
        if self._large and not book.in_flight:
            self._large.clear()  # they are answered, and have their batch's messages in memory
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
                        lone_request = self._lone_request(batch, start)
                        if lone_request == DROPPED:
                            continue
                        return lone_request
                    break
            except MessageNotEncodable as error:
                self._drop(batch, start, CallResult(OK, local_error=str(error)))
                continue
            budget -= size
            book.sent(count)
            self.blocked_bytes = 0  # the waiting message goes first
        data = request.SerializeToString()
        if request.batches:
            book.sent_bytes(len(data))
        return data or None

    def _lone_request(self, batch: OutBatch, index: int) -> bytes | None:
        """A request of one message that is too large for the budget; None: it must wait."""
        book = self.book
        if self.blocked_bytes and self.blocked_bytes > book.bytes_left and book.in_flight:
            return None
        self.blocked_bytes = 0
        data = encode_alone(batch, index, book.next_number)
        if len(data) > self.max_request:
            self._drop(batch, index, too_large(len(data), self.max_request))
            return DROPPED
        if len(data) > book.bytes_left and book.in_flight:
            self.blocked_bytes = len(data)
            return None
        book.sent(1)
        book.sent_bytes(len(data))
        self._large = {size: at for size, at in self._large.items() if book.is_open(*at)}
        self._large[len(data)] = (batch, index)
        if len(self._large) > MAX_LARGE:
            del self._large[next(iter(self._large))]
        return data

    def condemn(self, refusal: SizeRefusal) -> None:
        """Drops the message for whose size the receiver ended the stream.

        If the receiver named no size, it is the only lone message in flight. If there are several, none is
        dropped: they are tried again one at a time (`app.dispatch.model.crash_suspicion`).
        """
        size, limit = refusal
        if size is None:
            open_sizes = [
                size for size, (batch, index) in self._large.items() if self.book.is_open(batch, index)
            ]
            size = open_sizes[0] if len(open_sizes) == 1 else None
        refused = None if size is None else self._large.get(size)
        if refused is not None and size is not None:
            self._drop(*refused, too_large(size, limit))

    def _drop(self, batch: OutBatch, index: int, result: CallResult) -> None:
        runs, _ = self.book.cancel(batch, index, index + 1)
        self._on_result(runs, result)
