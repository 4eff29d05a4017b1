"""Opens a connection for gRPC: the server's name, sockets, a proxy, TLS.

    Address.parse("dns:///orders:50051")
        | resolve    one name has several IP addresses
        | connect    to the first that answers (RFC 8305), to a Unix socket, or to the proxy
        | CONNECT    if there is a proxy
        | TLS        if there is a context: checks the certificate's name, agrees on "h2" by ALPN
        v
    protocol.connection_made(transport)

Rules
1. `open_connection` returns a protocol that may send HTTP/2's first bytes, or it raises and leaves no socket
   open. A cancelled call leaves none either.
2. One time limit bounds all steps together.
3. The words of a server or proxy are untrusted: an error shows at most 200 characters, all printable.

Each step owns the socket that it works on: it closes the socket itself when it fails. The event loop owns the
socket from `create_connection` on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from app.grpc_client.address import Address, Proxy, ascii_host, check_host, plain_text
from app.grpc_client.tls import ALPN, CERTIFICATE_REMEDY, NO_TLS, TLS_REMEDY, handshake_words

CONNECT_TIMEOUT_S = 20.0  # gRPC's own limit
ATTEMPT_DELAY_S = 0.25  # before the next IP address is tried beside the former (RFC 8305, section 5)
UNIX_RETRY_INTERVAL_S = 0.05
TLS_CLOSE_TIMEOUT_S = 3.0  # a server that does not answer the end of TLS may not hold the socket for longer
MAX_PROXY_ANSWER_BYTES = 16 * 1024
MAX_SHOWN_ADDRESSES = 4
MAX_USER_TIMEOUT_MS = 2**31 - 1

NETWORK_REMEDY = "check the address, the network and its firewalls"
PROXY_REMEDY = "check that an HTTP proxy listens there"
ALPN_REMEDY = "check that it serves gRPC or HTTP/2 on this port"

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
SocketAddress = tuple[str, int] | tuple[str, int, int, int] | str  # as Python's `connect` takes it
Place = tuple[int, SocketAddress]  # address family, address

_HTTP_START = b"HTTP/1."
_HTTP_END = b"\r\n\r\n"
_ACCEPTED = re.compile(rb"HTTP/1\.[0-9] 2[0-9][0-9][ \r]")
_REMEDIES = {
    errno.ECONNREFUSED: "check that it runs and listens there",
    errno.ENOENT: "check the path; the server makes the socket when it starts",
    errno.EACCES: "check the permissions and the firewall",
    errno.EMFILE: "raise the limit of open files",
}


class ConnectError(OSError):
    """A connection could not be opened. The text names the address, what failed, and mostly a remedy."""


async def open_connection(
    address: Address,
    make_protocol: Callable[[], ProtocolT],
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    proxy: Proxy | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    tcp_user_timeout_s: float | None = None,
) -> ProtocolT:
    """Opens a connection and hands it to a new protocol (rule 1).

    Args:
        address: The server's. A proxy resolves its name, if there is a proxy.
        make_protocol: Called at the end, directly before its protocol's `connection_made`.
        tls: From `tls_context`; None: without TLS.
        server_name: The certificate must be valid for this name. Empty: for the host, or for "localhost" at a
            Unix socket.
        proxy: None for a Unix socket.
        timeout_s: Of all steps together.
        tcp_user_timeout_s: The system ends a connection whose peer, a server or a proxy, acknowledges nothing
            of what was sent for so long (TCP_USER_TIMEOUT). Without it that takes a quarter of an hour.
            None: the system's own. It has no effect at a Unix socket, or where the system has no such option.

    Raises:
        ConnectError: The connection could not be opened in time.
        ValueError: `server_name` is no host, or there is a proxy for a Unix socket.
    """
    if server_name:
        check_host("server_name", server_name)
    if proxy is not None and address.path:
        raise ValueError(f"proxy {proxy} leads to no Unix socket; give no proxy for {address}")
    opening = _Opening(address, proxy, timeout_s)
    sock = await opening.connect()
    if tcp_user_timeout_s is not None and sock.family != socket.AF_UNIX:
        _set_user_timeout(sock, tcp_user_timeout_s)
    transport, waiting = await opening.hand_over(sock)
    try:
        if tls is not None:
            transport = await opening.secure(transport, waiting, tls, server_name)
        if transport.is_closing():
            raise await opening.loss(waiting, is_secure=tls is not None)
        protocol = make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if waiting.received and not transport.is_closing():
            protocol.data_received(bytes(waiting.received))
    except BaseException:
        transport.abort()
        raise
    return protocol


class _Waiting(asyncio.Protocol):
    """Holds a connection until its protocol exists.

    `received` is what the server sends meanwhile, in one or two turns of the event loop. `lost` gets the
    error of a connection that ends meanwhile, or None if it ends without one.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)


class _Opening:
    """The steps that open one connection, their common time limit, and their errors."""

    __slots__ = ("_address", "_deadline_s", "_loop", "_proxy", "_timeout_s")

    def __init__(self, address: Address, proxy: Proxy | None, timeout_s: float) -> None:
        self._address = address
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + timeout_s

    def error(self, why: str) -> ConnectError:
        way = f" by the proxy {self._proxy}" if self._proxy else ""
        return ConnectError(f"{self._address}{way}: {why}")

    @contextlib.asynccontextmanager
    async def step(self, name: str, remedy: str) -> AsyncIterator[None]:
        """Bounds a step; its errors become ConnectErrors that name it."""
        try:
            async with asyncio.timeout_at(self._deadline_s) as limit:
                yield
        except ConnectError:
            raise
        except OSError as error:
            if limit.expired():
                raise self.error(f"{name} got no answer within {self._timeout_s:g} s; {remedy}") from error
            remedy = _REMEDIES.get(error.errno or 0, remedy)
            raise self.error(f"{name} failed: {_words(error)}; {remedy}") from error

    async def connect(self) -> socket.socket:
        """A connected socket; the tunnel of a proxy begins with its next byte."""
        if self._address.path:
            async with self.step("connecting to the socket", "check that its server accepts connections"):
                return await _connected(socket.AF_UNIX, self._address.path)
        host, port = self._address.host, self._address.port
        peer = "the server"
        if self._proxy is not None:
            host, port = self._proxy.host, self._proxy.port
            peer = "the proxy"
        async with self.step(f"resolving the name {host!r}", "check the name and the DNS"):
            places = await _resolved(host, port)
        async with self.step(f"connecting to {peer}", NETWORK_REMEDY):
            sock = await self._first_connected(places)
        if self._proxy is not None:
            try:
                async with self.step("asking the proxy", PROXY_REMEDY):
                    await self._open_tunnel(self._proxy, sock)
            except BaseException:
                sock.close()
                raise
        return sock

    async def _first_connected(self, places: Sequence[Place]) -> socket.socket:
        """Connects to one of several addresses: the next is tried as soon as one fails or is slow."""
        untried = list(reversed(places))
        attempts: dict[asyncio.Task[socket.socket], SocketAddress] = {}
        failures: list[tuple[SocketAddress, OSError]] = []
        try:
            while untried or attempts:
                if untried:
                    family, address = untried.pop()
                    attempts[self._loop.create_task(_connected(family, address))] = address
                delay_s = ATTEMPT_DELAY_S if untried else None
                done, _ = await asyncio.wait(attempts, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    error = attempt.exception()
                    if error is None:
                        del attempts[attempt]
                        return attempt.result()
                    if not isinstance(error, OSError):
                        raise error
                    failures.append((attempts.pop(attempt), error))
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close_unused)
        if len({error.errno for _, error in failures}) == 1:
            raise failures[0][1]
        shown = [f"{address[0]}: {_words(error)}" for address, error in failures[:MAX_SHOWN_ADDRESSES]]
        raise self.error(f"no address accepts the connection ({', '.join(shown)}); {NETWORK_REMEDY}")

    async def _open_tunnel(self, proxy: Proxy, sock: socket.socket) -> None:
        """Asks for a tunnel, and reads the answer to its last byte."""
        target = self._address.authority
        request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
        if proxy.authorization:
            request += f"Proxy-Authorization: {proxy.authorization}\r\n"
        await self._loop.sock_sendall(sock, f"{request}\r\n".encode())
        answer = bytearray()
        while not answer.endswith(_HTTP_END):
            # One byte at a time, because a server may speak first and the protocol needs its bytes.
            received = await self._loop.sock_recv(sock, 1)
            answer += received
            if not received:
                raise self.error(
                    f"the proxy closed the connection after {_first_line(answer)!r}; {PROXY_REMEDY}"
                )
            if not answer.startswith(_HTTP_START[: len(answer)]):
                raise self.error(f"the proxy does not answer in HTTP; {PROXY_REMEDY}")
            if len(answer) >= MAX_PROXY_ANSWER_BYTES:
                raise self.error(f"the proxy's answer exceeds {MAX_PROXY_ANSWER_BYTES} bytes; {PROXY_REMEDY}")
        if not _ACCEPTED.match(answer):
            is_login = _first_line(answer)[9:12] == "407"
            remedy = "give its user and password" if is_login else "check which servers it allows"
            raise self.error(f"the proxy refuses with {_first_line(answer)!r}; {remedy}")

    async def hand_over(self, sock: socket.socket) -> tuple[asyncio.Transport, _Waiting]:
        """Gives the socket to the event loop, which closes it if this is cancelled."""
        async with self.step("connecting", NETWORK_REMEDY):
            return await self._loop.create_connection(_Waiting, sock=sock)

    async def secure(
        self, transport: asyncio.Transport, waiting: _Waiting, tls: ssl.SSLContext, server_name: str
    ) -> asyncio.Transport:
        """The transport inside TLS, once both sides have agreed on HTTP/2. The caller closes `transport`."""
        name = ascii_host(server_name or self._address.host or "localhost").removesuffix(".")
        if waiting.received:  # a server of TLS waits for the client
            raise self.error(NO_TLS)
        async with self.step("the TLS handshake", "check that the server speaks TLS on this port"):
            try:
                secured = await self._loop.start_tls(
                    transport,
                    waiting,
                    tls,
                    server_hostname=name,
                    ssl_handshake_timeout=2 * self._timeout_s,  # later than the step's, which says more
                    ssl_shutdown_timeout=TLS_CLOSE_TIMEOUT_S,
                )
            except ConnectionResetError as error:
                raise self.error(
                    f"the server closed the connection in the TLS handshake; {TLS_REMEDY}"
                ) from error
            except ssl.SSLError as error:
                raise self.error(handshake_words(error, name)) from error
        session = secured.get_extra_info("ssl_object") if secured is not None else None
        if secured is None or session is None:
            raise self.error(f"the connection ended in the TLS handshake; {TLS_REMEDY}")
        if session.selected_alpn_protocol() != ALPN:
            raise self.error(f"the server did not agree on {ALPN!r} by ALPN; {ALPN_REMEDY}")
        return secured

    async def loss(self, waiting: _Waiting, *, is_secure: bool) -> ConnectError:
        """Why a connection ended before its protocol existed."""
        async with self.step("connecting", NETWORK_REMEDY):
            error = await waiting.lost
        if isinstance(error, ssl.SSLError):
            return self.error(handshake_words(error, ""))
        also = f"; {CERTIFICATE_REMEDY}" if is_secure else ""
        return self.error(
            f"the server closed the connection at once; check that it speaks HTTP/2 on this port{also}"
        )


async def _resolved(host: str, port: int) -> list[Place]:
    """The addresses of a name, in the system's order, but with the families in turn (RFC 8305, section 4)."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places: list[Place] = [(family, (str(at[0]), int(at[1]), *at[2:])) for family, _, _, _, at in found]
    first = [place for place in places if place[0] == places[0][0]]
    other = [place for place in places if place[0] != places[0][0]]
    return [place for pair in itertools.zip_longest(first, other) for place in pair if place is not None]


async def _connected(family: int, address: SocketAddress) -> socket.socket:
    """A new socket, connected. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_UNIX:
            await _connect_unix(sock, address)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _connect_ip(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_unix(sock: socket.socket, address: SocketAddress) -> None:
    while True:
        try:
            sock.connect(address)
        except BlockingIOError:  # the server's queue is full, and nothing reports its end
            await asyncio.sleep(UNIX_RETRY_INTERVAL_S)
        else:
            return


async def _connect_ip(sock: socket.socket, address: SocketAddress) -> None:
    """Connects without the loop's `sock_connect`: that of uvloop resolves again, and forgets IPv6 zones."""
    with contextlib.suppress(BlockingIOError):
        sock.connect(address)
    loop = asyncio.get_running_loop()
    writable = loop.create_future()
    loop.add_writer(sock, lambda: None if writable.done() else writable.set_result(None))
    try:
        await writable
    finally:
        loop.remove_writer(sock)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
    if sock.getsockname() == sock.getpeername():
        # A client without a server may get the server's port itself, and TCP connects it to itself. The
        # server could not start while that lasts.
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _set_user_timeout(sock: socket.socket, timeout_s: float) -> None:
    """A system that refuses the option does without it, as one that has none."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        timeout_ms = min(max(1, round(timeout_s * 1_000)), MAX_USER_TIMEOUT_MS)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def _close_unused(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _words(error: OSError) -> str:
    """The system's words for an error, without the addresses that Python adds."""
    return plain_text(error.strerror or "the connection was closed")


def _first_line(answer: bytes | bytearray) -> str:
    return plain_text(answer.partition(b"\r\n")[0].decode("latin-1"))
