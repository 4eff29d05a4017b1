"""`target.metadata` and `target.compat`, as a gRPC server sees them, by both transports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from hpack import Decoder, NeverIndexedHeaderTuple

from app.dispatch.definition import Workload
from app.dispatch.push.endpoint import Place
from app.dispatch.push.health import METHOD as HEALTH
from app.dispatch.push.http2_transport import MethodFields, Server
from app.dispatch.push.metadata import SharedMetadata
from app.dispatch.push.stream.client import METHOD as STREAM
from app.dispatch.scheduler.clients import TargetClients
from app.grpc_client.credentials import Credentials
from app.grpc_client.header_encoder import HeaderEncoder
from app.grpc_client.tokens import TokenFile, Tokens
from tests.dispatch.pump.rig import GROUP, TOPIC, definition, dispatch_rig, numbers

UNARY = f"/kafka.consumerproxy.{GROUP}/{TOPIC}"
SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()
METADATA = {
    "x-zone": "header:zone", "x-env": "production", "authorization": "Bearer secret:billing",
    "x-raw-bin": "header:raw",
}  # fmt: skip


@pytest.fixture(params=["http2", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Witness(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers unary calls, ends streams, and keeps the metadata of all, by method.

    The first `fails` unary calls get "Retry".
    """

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.seen: dict[str, list[dict[str, Any]]] = {}

    def service(self, details: Any) -> Any:
        self.seen.setdefault(details.method, []).append(dict(details.invocation_metadata))
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        answer = SERVING if details.method == HEALTH else b""

        async def take(_: bytes, context: Any) -> bytes:
            if details.method == UNARY and self.fails:
                self.fails -= 1
                context.set_trailing_metadata([("kafka-action", "Retry")])
                await context.abort(grpc.StatusCode.INTERNAL, "later")
            return answer

        return grpc.unary_unary_rpc_method_handler(take)

    async def _refuse(self, _: Any, context: Any) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        yield b""


@contextlib.asynccontextmanager
async def witness(fails: int = 0) -> AsyncIterator[tuple[str, Witness]]:
    server, handler = aio.server(), Witness(fails)
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", handler
    finally:
        await server.stop(0)


def token(tmp_path: Path) -> tuple[Path, Credentials]:
    file = tmp_path / "token"
    file.write_text("first\n")
    credentials = Credentials(tokens=Tokens({"billing": TokenFile(str(file), (GROUP,))}))
    credentials.load()
    return file, credentials


def pushing(address: str, transport: str, contract: str = "unary", **target: Any) -> dict[str, Any]:
    return {"address": address, "transport": transport, "contract": contract, **target}


async def test_unary_calls_carry_headers_texts_and_the_token_as_it_is_now(
    transport: str, tmp_path: Path
) -> None:
    file, credentials = token(tmp_path)
    async with (
        witness() as (address, server),
        dispatch_rig(
            lambda _: None, credentials=credentials, target=pushing(address, transport, metadata=METADATA)
        ) as rig,
    ):
        pump = rig.pump()
        rig.feed(pump, numbers(1), headers=[("zone", b"a"), ("raw", b"\x00\xff")])
        await rig.idle()
        await rig.until(lambda: HEALTH in server.seen)
        file.write_text("second")
        credentials.load()
        rig.feed(pump, numbers(1), headers=[("zone", b"\xff")])
        await rig.idle()
        await rig.until(lambda: server.seen[HEALTH][-1]["authorization"] == "Bearer second")
    first, second = server.seen[UNARY]
    assert (first["x-zone"], first["x-env"], first["x-raw-bin"]) == ("a", "production", b"\x00\xff")
    assert (first["authorization"], second["authorization"]) == ("Bearer first", "Bearer second")
    assert second["x-env"] == "production"
    assert {"x-zone", "x-raw-bin"}.isdisjoint(second)
    assert second["kafka-header-zone-bin"] == b"\xff"
    assert server.seen[HEALTH][0]["authorization"] == "Bearer first"


async def test_streams_carry_texts_and_tokens_when_they_open(transport: str, tmp_path: Path) -> None:
    file, credentials = token(tmp_path)
    named = {name: value for name, value in METADATA.items() if "header:" not in value}
    async with (
        witness() as (address, server),
        dispatch_rig(
            lambda _: None, credentials=credentials,
            target=pushing(address, transport, "stream", metadata=named),
        ) as rig,
    ):  # fmt: skip
        rig.feed(rig.pump(), numbers(1))
        await rig.until(lambda: STREAM in server.seen)
        file.write_text("second")
        credentials.load()
        await rig.until(lambda: server.seen[STREAM][-1]["authorization"] == "Bearer second")
    opened = server.seen[STREAM][0]
    assert (opened["authorization"], opened["x-env"]) == ("Bearer first", "production")


async def test_a_changed_definition_changes_the_metadata(transport: str) -> None:
    async with (
        witness() as (address, server),
        dispatch_rig(lambda _: None, target=pushing(address, transport, metadata={"x-env": "a"})) as rig,
    ):
        pump = rig.pump()
        rig.feed(pump, [(None, b"value")])
        await rig.idle()
        for metadata, compat in ({"x-env": "b", "x-zone": "header:zone"}, "uforwarder"), ({}, None):
            target = pushing(address, transport, metadata=metadata, compat=compat)
            changed = definition(address, target=target, headers={"deny": ["zone"]})
            rig.runtime.change(changed, None)
            rig.feed(pump, [(None, b"value")], headers=[("zone", b"east")])
            await rig.idle()
    assert [call.get("x-env") for call in server.seen[UNARY]] == ["a", "b", None]
    assert [call.get("x-zone") for call in server.seen[UNARY]] == [None, "east", None]
    assert not any("kafka-header-zone-bin" in call for call in server.seen[UNARY])
    assert [call.get("kafka-key-bin") for call in server.seen[UNARY]] == [None, b"", None]


async def test_only_messages_of_other_topics_have_a_place_by_uforwarder(transport: str) -> None:
    """In order of a partition, retries stay in the main topic, and uForwarder sends the place of none."""
    async with (
        witness(fails=2) as (address, server),
        dispatch_rig(
            lambda _: None, target=pushing(address, transport, compat="uforwarder"), ordering="partition",
            retry=[{"delay": "0s"}],
        ) as rig,
    ):  # fmt: skip
        rig.feed(rig.pump(), numbers(2))
        await rig.idle()
    calls = server.seen[UNARY]
    assert [call["kafka-offset"] for call in calls] == ["0", "0", "0", "1"]
    assert not any("kafka-tracing-info" in call for call in calls)


@pytest.mark.parametrize("compat", [None, "uforwarder"])
async def test_with_compat_a_retried_message_names_its_place_as_uforwarder_does(
    compat: str | None, transport: str
) -> None:
    async with (
        witness() as (address, server),
        dispatch_rig(
            lambda _: None, target=pushing(address, transport, compat=compat),
            retry=[{"delay": "0s"}],
        ) as rig,
    ):  # fmt: skip
        rig.feed(rig.pump(), [(b"key", b"value"), (None, b"value")])
        tier = rig.pump(tier=0)
        origin = [("switchyard-origin-topic", TOPIC.encode()), ("switchyard-origin-partition", b"3"),
                  ("switchyard-origin-offset", b"7")]  # fmt: skip
        rig.feed(tier, [(b"key", b"value")], headers=origin)
        await rig.idle()
    calls = server.seen[UNARY]
    retried = [call for call in calls if call["kafka-offset"] == "7"]
    place = f"physical-topic={TOPIC}__{GROUP}__retry_1,physical-partition=0,physical-offset=0"
    assert [call.get("kafka-tracing-info") for call in retried] == [place if compat else None]
    fresh = [call for call in calls if call not in retried]
    assert not any("kafka-tracing-info" in call for call in fresh)
    keys = {call.get("kafka-key-bin") for call in fresh}
    assert all(call.get("kafka-record-ts") == (call["kafka-timestamp"] if compat else None) for call in calls)
    assert keys == ({b"key", b""} if compat else {b"key", None})


@pytest.mark.parametrize("value", ["Basic dXNlcjpwYXNz", "header:x-user"])
async def test_no_table_keeps_what_mostly_is_a_secret(value: str) -> None:
    """However the definition has it: as a text, or from a record header."""
    workload = definition("127.0.0.1:1", target={"metadata": {"authorization": value, "x-env": "a"}})
    server = TargetClients("w")._server(workload, Place("127.0.0.1:1", "127.0.0.1:1", total=1))
    assert isinstance(server, Server)
    channel = server.channel(1)
    fields = MethodFields(server.metadata, UNARY).of(SharedMetadata(()), lambda: channel)
    encoder, decoder = HeaderEncoder(), Decoder()
    for _ in range(2):  # the second time, what may be indexed is
        block = decoder.decode(encoder.encode(fields, [(b"authorization", b"x")]), raw=True)
        never = {bytes(field[0]) for field in block if isinstance(field, NeverIndexedHeaderTuple)}
        assert never == {b"authorization"}
    await channel.close()


async def test_health_checks_and_calls_use_the_same_fields_until_a_token_is_renewed(tmp_path: Path) -> None:
    """A connection remembers how it sends fields, by their identity. No table of HTTP/2 keeps a token."""
    file, credentials = token(tmp_path)
    workload: Workload = definition("127.0.0.1:1", target={"metadata": METADATA})
    place = Place("127.0.0.1:1", "127.0.0.1:1", total=1)
    server = TargetClients("w", "", credentials)._server(workload, place)
    assert isinstance(server, Server)
    channel = server.channel(1)
    shared, fields = SharedMetadata(()), MethodFields(server.metadata, UNARY)
    first = fields.of(shared, lambda: channel)
    credentials.load()
    assert fields.of(shared, lambda: channel) is first
    assert b"authorization" in first.secret
    assert (b"authorization", b"Bearer first") in first.fields
    file.write_text("second")
    credentials.load()
    second = fields.of(shared, lambda: channel)
    assert b"authorization" in second.secret
    assert (b"authorization", b"Bearer second") in second.fields
    await channel.close()
