"""A gRPC server in Python, on gRPC's C core, for the tests of our client.

The options are those of all peers, see tests/grpc_client/peers/__init__.py. The file `interop.binpb` beside
this one describes the service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc import aio

INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
SERVICE = "grpc.testing.TestService"
CODES = {code.value[0]: code for code in grpc.StatusCode}
CALLS_END_S = 3600.0  # the stop waits for calls in progress

pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    Path(__file__).with_name("interop.binpb").read_bytes()
).file:
    pool.Add(_file)


def message(name: str) -> Any:
    """The class of a message of the service."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.testing.{name}"))


SimpleResponse, StreamingResponse = message("SimpleResponse"), message("StreamingOutputCallResponse")
EchoStatus, DetailedStatus = message("EchoStatus"), message("DetailedStatus")


class Call:
    """What the metadata of one call asks for."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._wishes: dict[str, str | bytes] = dict(context.invocation_metadata())
        self._trailing: list[tuple[str, str | bytes]] = []
        self._may_compress = False

    def number(self, key: str) -> int:
        """The number in the call's metadata, 0 without one."""
        return int(self._wishes.get(key, 0))

    async def begin(self, compresses: bool) -> None:
        """Sends the initial metadata, and sets the trailing metadata."""
        if TRAILING in self._wishes:
            self._trailing.append((TRAILING, self._wishes[TRAILING]))
        if letters := self.number("x-test-big-trailer"):
            self._trailing.append(("x-test-big", "x" * letters))
        self._context.set_trailing_metadata(tuple(self._trailing))
        if compresses:
            self._may_compress = True
            self._context.set_compression(grpc.Compression.Gzip)
        initial = [(INITIAL, self._wishes[INITIAL])] if INITIAL in self._wishes else []
        if initial or compresses:  # the compression does not count before this call
            await self._context.send_initial_metadata(tuple(initial))

    async def check(self, wanted: Any) -> None:
        """Ends the call if the status `wanted` says so."""
        if not wanted.code:
            return
        if self.number("x-test-details"):
            detail = {
                "type_url": "type.googleapis.com/grpc.testing.EchoStatus",
                "value": wanted.SerializeToString(),
            }
            status = DetailedStatus(code=wanted.code, message=wanted.message, details=[detail])
            self._trailing.append(("grpc-status-details-bin", status.SerializeToString()))
        code = CODES.get(wanted.code, grpc.StatusCode.UNKNOWN)
        await self._context.abort(code, wanted.message, tuple(self._trailing))

    async def answers(self, request: Any) -> AsyncIterator[Any]:
        """The responses that one request of a stream asks for."""
        for parameters in request.response_parameters:
            await asyncio.sleep(parameters.interval_us / 1e6)
            if self._may_compress and not parameters.compressed.value:
                self._context.disable_next_message_compression()
            yield StreamingResponse(payload={"body": bytes(parameters.size)})
        await self.check(request.response_status)


async def empty_call(request: Any, _context: Any) -> Any:
    return request


async def unary_call(request: Any, context: Any) -> Any:
    call = Call(context)
    await call.begin(request.response_compressed.value)
    await asyncio.sleep(call.number("x-test-sleep-ms") / 1000)
    await call.check(request.response_status)
    return SimpleResponse(payload={"body": bytes(request.response_size)})


async def streaming_output_call(request: Any, context: Any) -> AsyncIterator[Any]:
    call = Call(context)
    await call.begin(any(parameters.compressed.value for parameters in request.response_parameters))
    async for answer in call.answers(request):
        yield answer


async def full_duplex_call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """The first request decides whether responses can be compressed, because headers name the compression."""
    call: Call | None = None
    async for request in requests:
        if call is None:
            call = Call(context)
            await call.begin(any(parameters.compressed.value for parameters in request.response_parameters))
        async for answer in call.answers(request):
            yield answer


async def bench_call(_request: bytes, _context: Any) -> bytes:
    return b""


def test_service() -> grpc.GenericRpcHandler[Any, Any]:
    """The methods; gRPC answers UNIMPLEMENTED to all others."""
    codec = {
        name: {
            "request_deserializer": message(request).FromString,
            "response_serializer": message(response).SerializeToString,
        }
        for name, request, response in (
            ("empty", "Empty", "Empty"),
            ("unary", "SimpleRequest", "SimpleResponse"),
            ("stream", "StreamingOutputCallRequest", "StreamingOutputCallResponse"),
        )
    }
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "EmptyCall": grpc.unary_unary_rpc_method_handler(empty_call, **codec["empty"]),
            "UnaryCall": grpc.unary_unary_rpc_method_handler(unary_call, **codec["unary"]),
            "StreamingOutputCall": grpc.unary_stream_rpc_method_handler(
                streaming_output_call, **codec["stream"]
            ),
            "FullDuplexCall": grpc.stream_stream_rpc_method_handler(full_duplex_call, **codec["stream"]),
        },
    )


def bench_service() -> grpc.GenericRpcHandler[Any, Any]:
    """A service that reads no message."""
    return grpc.method_handlers_generic_handler(
        "switchyard.bench.Echo", {"Call": grpc.unary_unary_rpc_method_handler(bench_call)}
    )


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    for name in ("--unix", "--tls-cert", "--tls-key", "--client-ca"):
        parser.add_argument(name)
    for name in ("--max-concurrent-streams", "--max-connection-age-ms", "--max-connection-age-grace-ms"):
        parser.add_argument(name, type=int)
    parser.add_argument("--max-message", type=int, default=4 << 20)
    parser.add_argument("--until-stdin-ends", action="store_true")
    return parser.parse_args()


def channel_options(options: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The settings of gRPC's core; a wish without a value keeps its default."""
    wishes = {
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": options["max_message"],
        **{
            f"grpc.{name}": options[name]
            for name in ("max_concurrent_streams", "max_connection_age_ms", "max_connection_age_grace_ms")
        },
        # gRPC rejects bursts of more than 1,000 calls.
        "grpc.server.max_pending_requests": 1 << 20,
        "grpc.server.max_pending_requests_hard_limit": 1 << 20,
    }
    return [(name, value) for name, value in wishes.items() if value is not None]


def add_port(server: aio.Server, options: argparse.Namespace) -> int:
    """Binds the server; returns its port."""
    address = f"unix:{options.unix}" if options.unix else f"127.0.0.1:{options.port}"
    if not options.tls_cert:
        return server.add_insecure_port(address)
    pair = (Path(options.tls_key).read_bytes(), Path(options.tls_cert).read_bytes())
    authority = Path(options.client_ca).read_bytes() if options.client_ca else None
    credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
    return server.add_secure_port(address, credentials)


def end_with_stdin() -> None:
    """Ends this process when the standard input ends."""
    while os.read(sys.stdin.fileno(), 1024):  # sys.stdin.read holds a lock that Python's end needs
        pass
    os._exit(0)


async def main() -> None:
    options = parsed_options()
    server = aio.server(options=channel_options(vars(options)))
    server.add_generic_rpc_handlers((test_service(), bench_service()))
    port = add_port(server, options)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    if options.until_stdin_ends:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    sys.stdout.write(f"listening on {options.unix or port}\n")
    sys.stdout.flush()
    await stopped.wait()
    await server.stop(CALLS_END_S)


if __name__ == "__main__":
    asyncio.run(main())
