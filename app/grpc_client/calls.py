"""Calls: one message and one answer, or messages both ways.

Nothing here waits. What comes in ends in a callback, from the event loop, never within the method that
started it. `done` comes once for each call, after its last message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from app.grpc_client.answers import Head
from app.grpc_client.frames import ErrorCode
from app.grpc_client.header_decoder import FieldList
from app.grpc_client.header_encoder import Field, Fields
from app.grpc_client.messages import PREFIX, PREFIX_BYTES, MessageFault, MessageReader, prefixed
from app.grpc_client.status import StatusCode

EMPTY_MESSAGE = bytes(5)  # as a DATA frame carries it


class Loss(Enum):
    """What is known of a call that got no answer from the server's own code."""

    # It got one, or the client ended it.
    NONE = "none"
    # The server has not begun it: it may go elsewhere, as if it had not been made. The same channel tries it
    # again only after a pause, because mostly it ends in the same way at once.
    UNPROCESSED = "unprocessed"
    # The server ended the connection on purpose while it may have been at work on the call, or cancelled it.
    PLANNED = "planned"
    # The connection broke, or the server reset the call.
    BROKEN = "broken"


class Owner(Protocol):
    """Whom a call tells."""

    def ended(self, call: Call) -> None:
        """It has its outcome; its caller hears of it next."""


class Link(Protocol):
    """The connection of a call."""

    def reset(self, call: Call, code: ErrorCode) -> None:
        """Tells the server that the call is given up."""

    def send_body(self, call: Call) -> None:
        """Sends what the call has, as far as it may go."""

    def acknowledge(self, call: Call) -> None:
        """Gives the server its window back for what came."""

    def expired(self, call: Call) -> None:
        """The call's deadline has passed."""


class Call:
    """One call. Its outcome is read when `done` has come.

    Attributes:
        code: gRPC's status; None until the call has ended.
        message: The status message, or this client's reason.
        head: The answer's first header block; None: there was none.
        trailers: Fields of the last header block of a gRPC server's answer.
        loss: What is known of a call without an answer.
        is_planned: The connection of a call without an answer ended on purpose: the server said so by GOAWAY
            with NO_ERROR, or this client closed it. So it is with each `Loss.PLANNED`; with
            `Loss.UNPROCESSED` the server ended the connection before it began the call.
        is_local: This client made the status; no server sent it.
        is_too_large: A message or a header block of the answer exceeds the limit.
        is_metadata_too_large: The call was not sent, because the server takes no metadata of that size.
    """

    code: StatusCode | None = None
    message: str = ""
    head: Head | None = None
    trailers: FieldList = ()
    loss: Loss = Loss.NONE
    is_planned: bool = False
    is_local: bool = False
    is_too_large: bool = False
    is_metadata_too_large: bool = False

    # How far it is. These are the connection's and the channel's.
    connection: Link | None = None
    stream_id: int = 0
    deadline_s: float | None = None  # by the loop's clock
    slot: int = -1  # of the deadline
    moves: int = 0  # from connections that had not begun it
    send_window: int = 0
    unacknowledged: int = 0  # bytes of the answer whose window the server did not get back
    is_all_sent: bool = False
    has_waited: bool = False  # to send
    is_reading: bool = True

    _reader: MessageReader | None = None

    def __init__(self, fields: Fields, metadata: Sequence[Field], owner: Owner) -> None:
        self.fields = fields
        self.metadata = metadata
        self._owner = owner

    def cancel(self) -> None:
        """Gives the call up, unless it has ended. `done` comes with CANCELLED."""
        self.give_up(StatusCode.CANCELLED, "the call was cancelled here")

    def give_up(self, code: StatusCode, reason: str) -> None:
        """Ends the call from this side: the server is told to stop."""
        if self.code is not None:
            return
        if self.connection is not None:
            self.connection.reset(self, ErrorCode.CANCEL)
        self.finish(code, reason, is_local=True)

    def refuse_metadata(self, reason: str) -> None:
        """Ends a call that the server would not take, unless it has ended."""
        if self.code is None:
            self.is_metadata_too_large = True
            self.finish(StatusCode.RESOURCE_EXHAUSTED, reason, is_local=True)

    def refuse_answer(self, reason: str) -> None:
        """Ends a call whose answer exceeds a limit."""
        self.is_too_large = True
        self.finish(StatusCode.RESOURCE_EXHAUSTED, reason, is_local=True)

    def finish(
        self,
        code: StatusCode,
        message: str,
        trailers: FieldList = (),
        *,
        loss: Loss = Loss.NONE,
        is_planned: bool = False,
        is_local: bool = False,
    ) -> None:
        if self.code is not None:
            return
        self.code, self.message, self.trailers = code, message, trailers
        self.loss, self.is_planned, self.is_local = loss, is_planned, is_local
        self._owner.ended(self)
        try:
            self.tell_done()
        except Exception as error:  # noqa: BLE001 - a caller's defect must not end the calls of others
            context = {"message": "the callback of a gRPC call raised", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def begin_again(self) -> bool:
        """Makes a call that no server has begun as new. False: it cannot be sent again."""
        return False

    def tell_done(self) -> None:
        raise NotImplementedError

    def read(self, data: bytes, max_bytes: int) -> bool:
        """Takes a part of the answer. False: it is broken or too large, and the call has ended."""
        reader = self._reader
        try:
            if reader is None:
                if data == EMPTY_MESSAGE:
                    self.on_message(b"")
                    return self.code is None
                encoding = b"identity" if self.head is None else self.head.encoding
                reader = self._reader = MessageReader(max_bytes, encoding)
            for message in reader.feed(data):
                self.on_message(message)
                if self.code is not None:
                    return False
        except MessageFault as fault:
            self.is_too_large = fault.is_too_large
            self.give_up(fault.code, str(fault))
            return False
        return True

    def on_message(self, message: bytes) -> None:
        raise NotImplementedError

    def on_head(self) -> None:
        """The answer's first header block is there."""

    @property
    def missing(self) -> str:
        """Why an answer with the status OK is not whole; empty: it is."""
        if self._reader is not None and self._reader.is_amid_message:
            return "the answer ended within a message"
        return ""

    def tell_drained(self) -> None:
        """All that had to wait has left for the connection."""

    def take(self, max_bytes: int) -> bytes | memoryview:
        """The next bytes to send, at most so many."""
        raise NotImplementedError

    @property
    def has_unsent(self) -> bool:
        raise NotImplementedError

    @property
    def ends_after_unsent(self) -> bool:
        raise NotImplementedError


class UnaryCall(Call):
    """One message, one answer. `answer`: None until it came; OK without an answer cannot be."""

    answer: bytes | None = None
    _at: int = 0  # of the bytes to send, which begin with the prefix
    _size: int = 0

    def __init__(
        self,
        fields: Fields,
        metadata: Sequence[Field],
        owner: Owner,
        request: bytes,
        done: Callable[[UnaryCall], None],
    ) -> None:
        super().__init__(fields, metadata, owner)
        self.request = request
        self._done = done

    def begin_again(self) -> bool:
        self.moves += 1
        self.connection, self.stream_id = None, 0
        self.head, self.answer, self._reader = None, None, None
        self.unacknowledged = 0
        return True

    def tell_done(self) -> None:
        self._done(self)

    def on_message(self, message: bytes) -> None:
        if self.answer is not None:
            self.give_up(StatusCode.INTERNAL, "the answer has more than one message")
            return
        self.answer = message

    @property
    def missing(self) -> str:
        return super().missing or ("the answer has no message" if self.answer is None else "")

    def begin_sending(self) -> None:
        """The request goes out in parts. A call that moves to another connection begins again."""
        self._at, self._size = 0, PREFIX_BYTES + len(self.request)
        self.is_all_sent = False

    def take(self, max_bytes: int) -> bytes | memoryview:
        begin, end = self._at, min(self._at + max_bytes, self._size)
        self._at = end
        part = memoryview(self.request)[max(0, begin - PREFIX_BYTES) : max(0, end - PREFIX_BYTES)]
        if begin >= PREFIX_BYTES:
            return part
        return PREFIX.pack(0, len(self.request))[begin:end] + part

    @property
    def has_unsent(self) -> bool:
        return self._at < self._size

    @property
    def ends_after_unsent(self) -> bool:
        return True


class StreamCall(Call):
    """Messages both ways. `on_message` gets each of the server's, in order.

    `on_drained` comes when all that was sent has left for the connection, after some had to wait.
    """

    def __init__(
        self,
        fields: Fields,
        metadata: Sequence[Field],
        owner: Owner,
        receive: Callable[[StreamCall, bytes], None],
        done: Callable[[StreamCall], None],
        on_drained: Callable[[StreamCall], None] | None = None,
    ) -> None:
        super().__init__(fields, metadata, owner)
        self._receive = receive
        self._done = done
        self._on_drained = on_drained
        self._unsent: deque[bytes] = deque()
        self._at = 0
        self.unsent_bytes = 0  # those that wait for the connection, the server's window or the network
        self._is_closed = False

    def send(self, message: bytes) -> None:
        """Sends a message, or keeps it until it can go; see `unsent_bytes`. After the end it is dropped."""
        if self._is_closed:
            raise ValueError("this stream was closed for sending; open another one")
        if self.code is not None:
            return
        data = prefixed(message)
        self._unsent.append(data)
        self.unsent_bytes += len(data)
        if self.connection is None:
            self.has_waited = True
        else:
            self.connection.send_body(self)

    def close_sending(self) -> None:
        """No more messages will come. The server may still answer."""
        if self._is_closed or self.code is not None:
            return
        self._is_closed = True
        if self.connection is not None:
            self.connection.send_body(self)

    def pause_reading(self) -> None:
        """The server may send what the window has left, and no more until `resume_reading`."""
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        if self.connection is not None and self.code is None:
            self.connection.acknowledge(self)

    def on_message(self, message: bytes) -> None:
        try:
            self._receive(self, message)
        except Exception as error:  # noqa: BLE001 - see `finish`
            self._on_defect(error)

    def _on_defect(self, error: Exception) -> None:
        context = {"message": "the callback of a gRPC stream raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self.give_up(StatusCode.INTERNAL, "the stream's callback raised")

    def tell_done(self) -> None:
        self._done(self)

    def take(self, max_bytes: int) -> bytes | memoryview:
        first = self._unsent[0]
        if self._at == 0 and len(first) <= max_bytes:
            self._unsent.popleft()
            self.unsent_bytes -= len(first)
            return first
        part = memoryview(first)[self._at : self._at + max_bytes]
        self._at += len(part)
        self.unsent_bytes -= len(part)
        if self._at == len(first):
            self._unsent.popleft()
            self._at = 0
        return part

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def ends_after_unsent(self) -> bool:
        return self._is_closed

    def tell_drained(self) -> None:
        if self._on_drained is None or self.code is not None:
            return
        try:
            self._on_drained(self)
        except Exception as error:  # noqa: BLE001 - see `finish`
            self._on_defect(error)
