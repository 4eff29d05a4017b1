"""A channel: calls to one address, over as many connections as they need.

A call takes the first connection that has room. When all are full it waits, and another connection is
opened, up to a bound. A connection that cannot be made fails the calls that wait for it, and new ones fail at
once until the next attempt is due (gRPC's "fail fast"). Calls that a server has not begun go to another
connection by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from app.grpc_client.address import Address, Proxy, check_host
from app.grpc_client.calls import Call, Loss, StreamCall, UnaryCall
from app.grpc_client.connect import ConnectError, open_connection
from app.grpc_client.connection import Connection, ConnectionOptions
from app.grpc_client.deadlines import Deadlines
from app.grpc_client.header_encoder import Field, Fields
from app.grpc_client.messages import ACCEPTED_ENCODINGS
from app.grpc_client.status import StatusCode

USER_AGENT = b"switchyard-grpc-client"
CLOSED = "the channel was closed here"
MAX_MOVES = 5  # of a call that servers do not begin
JITTER = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How a channel connects. Times are seconds.

    Attributes:
        tls: Gives the context of each connection (`tls.tls_context`), so that certificates may be renewed;
            its errors fail the connection. None: plain HTTP/2 (h2c with prior knowledge).
        server_name: The name in the server's certificate, where it is not the address's host.
        authority: What `:authority` says; empty: the address's.
        proxy: An HTTP proxy on the way.
        max_connections: At once.
        connect_timeout_s: From the first packet to the server's settings.
        min_backoff_s: Between failed attempts; it doubles up to `max_backoff_s`.
        connection: Limits of each connection.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    server_name: str = ""
    authority: str = ""
    proxy: Proxy | None = None
    max_connections: int = 16
    connect_timeout_s: float = 20.0
    min_backoff_s: float = 0.1
    max_backoff_s: float = 1.0
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


class Channel:
    """To be made and used in one event loop. Nothing connects before the first call."""

    def __init__(self, address: Address, options: ChannelOptions | None = None) -> None:
        self.address = address
        self._options = options = options or ChannelOptions()
        if options.proxy is not None and address.path:
            raise ValueError(f"proxy {options.proxy} leads to no Unix socket; give no proxy for {address}")
        if options.server_name:
            check_host("server_name", options.server_name)
        self._loop = asyncio.get_running_loop()
        self._deadlines: Deadlines[Call] = Deadlines(self._loop, self._expire)
        self._connections: list[Connection] = []  # those that take calls
        self._aged: list[Connection] = []  # those of them that end when another one is there
        self._draining: set[Connection] = set()
        self._opening: asyncio.Task[None] | None = None
        self._waiting: OrderedDict[Call, None] = OrderedDict()  # in a dict, to take the first is a scan
        self._pausing: dict[Call, asyncio.TimerHandle] = {}  # those that a server refused, before they wait
        self._backoff_s = self._options.min_backoff_s
        self._next_attempt_s = 0.0
        self._why_not = ""  # why the last attempt failed
        self._retry: asyncio.TimerHandle | None = None  # while calls wait for room, and an attempt failed
        self._is_asked = False  # to connect, in the loop's next turn
        self._is_wanted = False  # a connection, by `connect`
        self._is_closed = False
        self._closed: asyncio.Future[None] | None = None  # until no connection drains

    @property
    def is_connected(self) -> bool:
        """Whether a call would find a connection."""
        return bool(self._connections)

    @property
    def load(self) -> int:
        """Calls that wait or are under way."""
        under_way = sum(len(connection.calls) for connection in (*self._connections, *self._draining))
        return len(self._waiting) + len(self._pausing) + under_way

    def connect(self) -> None:
        """Has a connection without waiting for a call, and tries again until there is one."""
        if not self._connections and not self._is_closed:
            self._is_wanted = True
            self._connect_soon()

    def renew(self) -> None:
        """Later calls get other connections, which a load balancer may lead to other servers. A connection
        takes calls until its successor is there; if none can be opened, it stays."""
        self._aged = [one for one in self._connections if one.calls] or self._connections[:1]
        for surplus in [one for one in self._connections if one not in self._aged]:
            surplus.drain()
        self._connect_soon()

    def method(self, path: str, metadata: Iterable[Field] = (), secret: Iterable[bytes] = ()) -> Fields:
        """The header fields that all calls of a method share.

        Args:
            path: "/package.Service/Method".
            metadata: As on the wire; `wire_field` makes it.
            secret: Names of metadata whose values no table keeps.
        """
        options = self._options
        return Fields(
            (
                (b":method", b"POST"),
                (b":scheme", b"https" if options.tls else b"http"),
                (b":path", path.encode()),
                (b":authority", (options.authority or self.address.authority).encode()),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                (b"user-agent", USER_AGENT),
                (b"grpc-accept-encoding", ACCEPTED_ENCODINGS),
                *metadata,
            ),
            secret,
        )

    def unary(
        self,
        fields: Fields,
        message: bytes,
        metadata: Sequence[Field],
        timeout_s: float | None,
        done: Callable[[UnaryCall], None],
    ) -> UnaryCall:
        """Sends a message. `done` comes once, later, whatever happens.

        Args:
            fields: What `method` made.
            message: The request's bytes, without gRPC's prefix.
            metadata: This call's own, as on the wire.
            timeout_s: After it the call ends with DEADLINE_EXCEEDED; None: never.
            done: Gets the call with its outcome.
        """
        call = UnaryCall(fields, metadata, self, message, done)
        self._begin(call, timeout_s)
        return call

    def stream(
        self,
        fields: Fields,
        metadata: Sequence[Field],
        timeout_s: float | None,
        receive: Callable[[StreamCall, bytes], None],
        done: Callable[[StreamCall], None],
        on_drained: Callable[[StreamCall], None] | None = None,
    ) -> StreamCall:
        """Opens a stream. `receive` gets each message of the server, and `done` comes once, as the last.

        `on_drained` comes when all that was sent has left, after some of it had to wait.
        """
        call = StreamCall(fields, metadata, self, receive, done, on_drained)
        self._begin(call, timeout_s)
        return call

    async def close(self, grace_s: float = 0.0) -> None:
        """Closes the connections. Calls under way have `grace_s` to end, then they end as CANCELLED."""
        self._is_closed, self._is_wanted = True, False
        for call in [*self._waiting, *self._pausing]:
            call.give_up(StatusCode.CANCELLED, CLOSED)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._when_closed(), grace_s)
        for connection in list(self._draining):
            for call in list(connection.calls.values()):
                call.give_up(StatusCode.CANCELLED, CLOSED)
            connection.close(CLOSED)
        if self._retry is not None:
            self._retry.cancel()
        await self._when_closed()  # soon: a server that does not let a connection go is not waited for
        self._deadlines.close()

    async def _when_closed(self) -> None:
        while self._draining:
            if self._closed is None or self._closed.done():
                self._closed = self._loop.create_future()
            await asyncio.shield(self._closed)  # two may close at once

    # What calls tell

    def ended(self, call: Call) -> None:
        if call.slot >= 0:
            self._deadlines.remove(call, call.slot)
        if self._waiting:
            self._waiting.pop(call, None)
        if self._pausing and (pause := self._pausing.pop(call, None)) is not None:
            pause.cancel()

    def _begin(self, call: Call, timeout_s: float | None) -> None:
        if timeout_s is not None:
            if not math.isfinite(timeout_s):
                raise ValueError(f"timeout_s: {timeout_s}; write seconds, or None for no deadline")
            call.deadline_s = self._loop.time() + timeout_s
            call.slot = self._deadlines.add(call, call.deadline_s)
        if self._is_closed:
            self._loop.call_soon(call.give_up, StatusCode.CANCELLED, CLOSED)
            return
        if not self._waiting:
            for connection in self._connections:
                if connection.has_room:
                    connection.start(call)
                    return
        self._waiting[call] = None
        self._connect_soon()

    def _expire(self, call: Call) -> None:
        if call.connection is not None or call.stream_id:  # the server has cancelled it a moment ago
            if call.connection is not None:
                call.connection.expired(call)
            call.give_up(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
            return
        why = f"; the last attempt: {self._why_not}" if self._why_not and not self._connections else ""
        # Servers whose connections stay full are too slow for the calls that they get, and a caller has to
        # see that as any other deadline. Without a connection no server has anything to do with it.
        call.finish(
            StatusCode.DEADLINE_EXCEEDED,
            f"the deadline has passed before a connection to {self.address} had room{why}",
            loss=Loss.NONE if self._connections else Loss.UNPROCESSED,
            is_local=True,
        )

    # What connections tell

    def on_room(self, connection: Connection) -> None:
        waiting = self._waiting
        while waiting and connection.has_room:
            connection.start(waiting.popitem(last=False)[0])

    def on_draining(self, connection: Connection) -> None:
        self._draining.add(connection)
        if connection in self._connections:
            self._connections.remove(connection)
        if connection in self._aged:
            self._aged.remove(connection)
        # A server that answers nothing must not be met again at once, and again.
        if not connection.is_fruitless:
            self._backoff_s = self._options.min_backoff_s
        elif connection.is_ready and (self._waiting or not (connection.is_planned or connection.is_left)):
            self._pause()
        self._connect_soon()

    def on_lost(self, connection: Connection) -> None:
        self._draining.discard(connection)
        if not self._draining and self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def move(self, call: Call, pause_s: float) -> bool:
        """Gives a call that its server has not begun to the next connection. False: it has moved enough."""
        if self._is_closed or call.moves >= MAX_MOVES or not call.begin_again():
            return False
        if pause_s:
            self._pausing[call] = self._loop.call_later(pause_s, self._go_on, call)
        else:
            self._go_on(call)
        return True

    def _go_on(self, call: Call) -> None:
        self._pausing.pop(call, None)
        self._waiting[call] = None
        self._waiting.move_to_end(call, last=False)
        self._connect_soon()

    # Connecting

    def _connect_soon(self) -> None:
        if (self._waiting or self._is_wanted or self._aged) and not self._is_asked:
            self._is_asked = True
            self._loop.call_soon(self._connect)

    def _connect(self) -> None:
        """Serves the calls that wait, by a new connection where none has room."""
        self._is_asked = False
        for connection in list(self._connections):
            self.on_room(connection)
        if self._connections:
            self._is_wanted = False
        if not self._needs_connection() or self._opening is not None or self._is_closed:
            return
        if self._loop.time() >= self._next_attempt_s:
            self._opening = self._loop.create_task(self._open())
            return
        if self._why_not and not self._connections:
            self._fail_waiting()
        if self._needs_connection() and self._retry is None:
            self._retry = self._loop.call_at(self._next_attempt_s, self._try_again)

    def _needs_connection(self) -> bool:
        if self._aged:
            return True
        # A window that is used up, or a network that is slow, is no reason for more connections.
        is_short = all(connection.is_full for connection in self._connections)
        is_wanted = bool(self._waiting) or self._is_wanted
        return is_wanted and is_short and len(self._connections) < self._options.max_connections

    def _try_again(self) -> None:
        self._retry = None
        self._connect_soon()

    async def _open(self) -> None:
        options = self._options
        connection: Connection | None = None
        deadline_s = self._loop.time() + options.connect_timeout_s
        try:
            connection = await open_connection(
                self.address,
                lambda: Connection(self, str(self.address), options.connection),
                tls=None if options.tls is None else options.tls(),
                server_name=options.server_name,
                proxy=options.proxy,
                timeout_s=options.connect_timeout_s,
                tcp_user_timeout_s=options.connection.keepalive.timeout_s,
            )
            async with asyncio.timeout_at(deadline_s):
                await connection.wait_ready()
        except TimeoutError:
            reason = f"no settings of HTTP/2 came within {options.connect_timeout_s:g} s"
            self._end_attempt(connection, f"{self.address}: {reason}")
        except ConnectError as error:
            self._end_attempt(connection, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, calls wait for this attempt
            self._end_attempt(connection, f"{self.address}: {error}")
        except asyncio.CancelledError:
            self._end_attempt(connection, CLOSED)
            raise
        else:
            self._end_attempt(connection, "")

    def _end_attempt(self, connection: Connection | None, why_not: str) -> None:
        self._opening = None
        if why_not:
            if connection is not None:
                connection.close(why_not)
            self._failed(why_not)
        elif connection is not None and not connection.is_draining:
            self._connections.append(connection)
            self._next_attempt_s, self._why_not = 0.0, ""
            if self._aged:
                self._aged[0].drain()
        elif connection is not None:  # the server ends it at once, and would end the next one, too
            self._aged.clear()
            self._pause()
        self._connect_soon()

    def _failed(self, why_not: str) -> None:
        self._why_not = why_not
        self._aged.clear()
        self._pause()
        if not self._connections and self._opening is None:
            self._fail_waiting()

    def _pause(self) -> None:
        """Puts the next attempt off."""
        jitter = random.uniform(*JITTER)  # noqa: S311 - nothing secret
        self._next_attempt_s = self._loop.time() + self._backoff_s * jitter
        self._backoff_s = min(2 * self._backoff_s, self._options.max_backoff_s)

    def _fail_waiting(self) -> None:
        for call in list(self._waiting):
            reason = f"no connection to {self._why_not}"
            call.finish(StatusCode.UNAVAILABLE, reason, loss=Loss.UNPROCESSED, is_local=True)
