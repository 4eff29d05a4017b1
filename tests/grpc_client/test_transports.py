"""Calls over TLS, mutual TLS, Unix sockets, IPv6 and a proxy; servers that age, end gracefully, or die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from app.grpc_client.address import Address, Proxy
from app.grpc_client.calls import Loss, UnaryCall
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.metadata import wire_field
from app.grpc_client.status import StatusCode
from app.grpc_client.tls import tls_context
from tests.grpc_client import peers
from tests.grpc_client.peers.certificates import Certificates, make
from tests.grpc_client.servers import Wire, honest
from tests.grpc_client.test_interop import simple_request

METHOD = "/grpc.testing.TestService/UnaryCall"
TIMEOUT_S = 60.0
SLOW = [wire_field("x-test-sleep-ms", "200")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=peers.PARAMETERS)
def language(request: pytest.FixtureRequest) -> str:
    peers.require(request.param)
    return str(request.param)


@contextlib.asynccontextmanager
async def calling(address: str, options: ChannelOptions | None = None) -> AsyncIterator[Channel]:
    channel = Channel(Address.parse(address), options)
    try:
        yield channel
    finally:
        await channel.close()


def begin(
    channel: Channel, size: int = 0, metadata: list[tuple[bytes, bytes]] | None = None
) -> asyncio.Future[UnaryCall]:
    future: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
    request = simple_request(size).SerializeToString()
    channel.unary(channel.method(METHOD), request, metadata or [], TIMEOUT_S, future.set_result)
    return future


async def one(channel: Channel, size: int = 0) -> UnaryCall:
    return await asyncio.wait_for(begin(channel, size), TIMEOUT_S)


def trusting(certificates: Certificates) -> ChannelOptions:
    return ChannelOptions(tls=partial(tls_context, roots=certificates.authority.read_bytes()))


async def test_tls(language: str, certificates: Certificates) -> None:
    with peers.start(language, *certificates.server_options) as peer:
        async with calling(peer.address, trusting(certificates)) as channel:
            assert (await one(channel, 300_000)).code is StatusCode.OK
            calls = await asyncio.gather(*(begin(channel, number) for number in range(500)))
            assert {call.code for call in calls} == {StatusCode.OK}
        async with calling(peer.address, ChannelOptions(tls=tls_context)) as channel:
            stranger = await one(channel)
            assert (stranger.code, stranger.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)
            assert "certificate" in stranger.message
        async with calling(peer.address) as channel:
            assert (await one(channel)).code is StatusCode.UNAVAILABLE  # without TLS


async def test_mutual_tls(language: str, certificates: Certificates) -> None:
    with peers.start(language, *certificates.mutual_options) as peer:
        own = partial(
            tls_context,
            roots=certificates.authority.read_bytes(),
            certificate=certificates.client.read_bytes(),
            key=certificates.client_key.read_bytes(),
        )
        async with calling(peer.address, ChannelOptions(tls=own)) as channel:
            assert (await one(channel, 1_000)).code is StatusCode.OK
        async with calling(peer.address, trusting(certificates)) as channel:
            anonymous = await one(channel)
            assert (anonymous.code, anonymous.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)
            assert "give a valid one" in anonymous.message


async def test_a_unix_socket(language: str, tmp_path: Path) -> None:
    with peers.start(language, "--unix", str(tmp_path / "peer.sock")) as peer:
        async with calling(peer.address) as channel:
            assert (await one(channel, 100_000)).code is StatusCode.OK


async def test_ipv6() -> None:
    listener = await asyncio.start_server(lambda r, w: honest(Wire(r, w)), "::1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, calling(f"[::1]:{port}") as channel:
        assert (await one(channel)).code is StatusCode.OK
        listener.close()


async def test_an_authority_of_ones_own_is_what_the_server_sees() -> None:
    seen: list[bytes] = []

    async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read = reader.read

        async def reading(n: int = -1) -> bytes:
            seen.append(await read(n))
            return seen[-1]

        reader.read = reading  # type: ignore[method-assign]
        await honest(Wire(reader, writer))

    listener = await asyncio.start_server(watched, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    options = ChannelOptions(authority="orders.example")
    async with listener, calling(f"127.0.0.1:{port}", options) as channel:
        assert (await one(channel)).code is StatusCode.OK
        listener.close()
    assert b"orders.example" in b"".join(seen)


async def test_a_proxy_between(certificates: Certificates) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = asked[-1].split()[1].decode().rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65_536):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    listener = await asyncio.start_server(proxy, "127.0.0.1", 0)
    way = Proxy("127.0.0.1", listener.sockets[0].getsockname()[1])
    async with listener:
        for options, tls in [((), None), (certificates.server_options, trusting(certificates).tls)]:
            with peers.start("python", *options) as peer:
                async with calling(peer.address, ChannelOptions(tls=tls, proxy=way)) as channel:
                    assert (await one(channel, 100_000)).code is StatusCode.OK
                    assert asked[-1].startswith(f"CONNECT {peer.address} ".encode())
        listener.close()


class Flow:
    """Calls that go on, one after the other, in several lanes; counts how they ended."""

    def __init__(self, channel: Channel, lanes: int = 20) -> None:
        self.ended: list[UnaryCall] = []
        self._channel = channel
        self._is_over = False
        self._lanes = [asyncio.ensure_future(self._run()) for _ in range(lanes)]

    async def _run(self) -> None:
        while not self._is_over:
            self.ended.append(await begin(self._channel, 10, SLOW))

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.ended) < count:  # noqa: ASYNC110 - callbacks change it
                await asyncio.sleep(0.02)

    async def stop(self) -> list[UnaryCall]:
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*self._lanes), TIMEOUT_S)
        return self.ended


@pytest.mark.parametrize("age", [1_000])
async def test_a_servers_maximum_connection_age_costs_no_call(language: str, age: int) -> None:
    options = ("--max-connection-age-ms", str(age))
    with peers.start(language, *options) as peer:
        async with calling(peer.address) as channel:
            flow = Flow(channel)
            await flow.until_ended(300)
            calls = await flow.stop()
    assert {(call.code, call.loss) for call in calls} == {(StatusCode.OK, Loss.NONE)}


async def test_a_server_that_ends_gracefully_costs_no_call(language: str) -> None:
    with peers.start(language) as peer:
        async with calling(peer.address) as channel:
            flow = Flow(channel)
            await flow.until_ended(100)
            peer.terminate()
            code = await asyncio.to_thread(peer.wait)
            calls = await flow.stop()
    assert code == 0
    ended = {(call.code, call.loss) for call in calls}
    # Nobody listens any more: calls that came later were not begun, and none was lost.
    expected = {(StatusCode.OK, Loss.NONE), (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)}
    if language == "python":
        # The C core answers so to calls that it has read and not begun. They are planned ends if its GOAWAY
        # comes in the pause in which the client waits for it.
        expected |= {(StatusCode.CANCELLED, Loss.PLANNED), (StatusCode.CANCELLED, Loss.NONE)}
    assert ended <= expected


async def test_a_server_that_is_killed_loses_the_calls_it_had_and_no_more(language: str) -> None:
    with peers.start(language) as peer:
        async with calling(peer.address) as channel:
            assert (await one(channel)).code is StatusCode.OK
            begun = [begin(channel, 10, [wire_field("x-test-sleep-ms", "30000")]) for _ in range(50)]
            await asyncio.sleep(0.2)
            peer.kill()
            calls = await asyncio.wait_for(asyncio.gather(*begun), TIMEOUT_S)
            assert {(call.code, call.loss) for call in calls} == {(StatusCode.UNAVAILABLE, Loss.BROKEN)}
            later = await one(channel)
            assert (later.code, later.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)


async def test_a_servers_limit_of_streams_is_kept_by_more_connections(language: str) -> None:
    with peers.start(language, "--max-concurrent-streams", "3") as peer:
        async with calling(peer.address, ChannelOptions(max_connections=4)) as channel:
            begun = [begin(channel, 10, SLOW) for _ in range(48)]
            calls = await asyncio.wait_for(asyncio.gather(*begun), TIMEOUT_S)
    assert {call.code for call in calls} == {StatusCode.OK}


def test_options_show_no_secret() -> None:
    options = ChannelOptions(proxy=Proxy("proxy", 8_080, "Basic c2VjcmV0"))
    assert "c2VjcmV0" not in repr(options)
