"""The transport of a workload's definition makes its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.dispatch.push.endpoint import Place
from app.dispatch.push.grpc_transport import GrpcUnaryTarget
from app.dispatch.push.http2_transport import Http2UnaryTarget
from app.dispatch.push.transport import UnaryTarget
from app.dispatch.scheduler.clients import TargetClients
from app.grpc_client.credentials import Credentials
from switchyard.receiver import Message
from tests.dispatch.pump.rig import definition, dispatch_rig, numbers

ENOUGH_S = 30.0


@pytest.mark.parametrize(
    ("transport", "address", "kind"),
    [
        ("http2", "dns:///localhost:1", Http2UnaryTarget),
        ("http2", "127.0.0.1:1", Http2UnaryTarget),
        ("http2", "dns://127.0.0.1/localhost:1", GrpcUnaryTarget),
        ("http2", "localhost:1,127.0.0.1:2", Http2UnaryTarget),
        ("grpc", "dns:///localhost:1", GrpcUnaryTarget),
    ],
)
async def test_the_transport_makes_the_calls(transport: str, address: str, kind: type[UnaryTarget]) -> None:
    workload, clients = definition(address, target={"transport": transport}), TargetClients("w")
    names: list[Sequence[str]] = []
    resolver = clients.endpoints(
        workload, address, lambda found: names.append([place.name for place in found])
    )
    target = clients.unary(workload, Place(address, names[0][0] if names else "127.0.0.1:1", total=1))
    assert type(target) is kind
    await target.close()
    await resolver.close()


@pytest.mark.parametrize(
    ("exempt", "begins"), [("other.invalid", b"CONNECT 127.0.0.1:"), (".billing.invalid", b"PRI * HTTP/2.0")]
)
async def test_a_service_is_looked_up_here_and_its_name_decides_on_the_proxy(
    exempt: str, begins: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_bytes: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first_bytes.put_nowait(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("grpc_proxy", f"http://{host}:{port}")  # the receiver is there, too
        monkeypatch.setenv("no_grpc_proxy", exempt)
        address = "srv:///_grpc._tcp.billing.invalid"
        workload, clients = definition(address), TargetClients("w")
        names: list[Sequence[str]] = []
        resolver = clients.endpoints(
            workload, address, lambda found: names.append([place.name for place in found])
        )
        assert not names
        await resolver.close()
        health = clients.health(workload, Place(address, f"{host}:{port}", total=1))
        async with asyncio.timeout(ENOUGH_S):
            _, seen = await asyncio.gather(health.check("", ENOUGH_S), first_bytes.get())
        assert seen.startswith(begins)
        await health.close()


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_workload_changes_its_transport_under_way(contract: str) -> None:
    async def handle(_: Message) -> None:
        seen.append(None)

    seen: list[None] = []
    async with dispatch_rig(handle, target={"contract": contract}, flow={"max_inflight": 10}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1_000))
        for transport in ("grpc", "http2", "grpc"):
            before = len(seen)
            await rig.until(lambda before=before: len(seen) > before + 50)  # type: ignore[misc]
            changed = definition(rig.main.address, target={"contract": contract, "transport": transport})
            rig.runtime.change(changed, None)
        await rig.idle()
        assert rig.values() == {value: 1 for _, value in numbers(1_000)}


async def test_what_a_zone_finds_is_met_by_the_zone_s_own_name() -> None:
    zones = {"a": "10.0.0.1:1,10.0.0.2:1"}
    workload = definition("10.0.0.2:1,10.0.0.3:1,10.0.0.2:1", target={"zones": zones})
    found: list[Place] = []
    TargetClients("w", "a").endpoints(workload, workload.spec.target.address, found.extend)
    both = workload.spec.target.address
    last = {place.name: place for place in found}
    assert last == {
        "10.0.0.2:1": Place(both, "10.0.0.2:1", total=2, is_local=True),
        "10.0.0.3:1": Place(both, "10.0.0.3:1", total=2),
        "10.0.0.1:1": Place(zones["a"], "10.0.0.1:1", total=2, is_local=True),
    }


@pytest.mark.parametrize(
    ("count", "connections", "has_age"),
    [(1, 4, True), (2, 2, True), (3, 2, True), (4, 1, True), (5, 1, False)],
)
def test_few_endpoints_may_be_load_balancers(count: int, connections: int, has_age: bool) -> None:
    """A network load balancer has an address in each zone, and a service of both families has two."""
    workload = definition("billing:1", target={"max_connection_age": "90s"})
    server = TargetClients("w")._server(workload, Place("billing:1", "10.0.0.1:1", count))
    assert server is not None
    assert (server.connections, server.max_age_s) == (connections, 90 if has_age else 0)


async def test_a_zone_without_an_answer_keeps_only_what_the_address_of_all_has() -> None:
    workload = definition("10.0.0.2:1", target={"zones": {"a": "billing-a.invalid:1"}})
    told: list[list[Place]] = []
    names = TargetClients("w", "a").endpoints(workload, "10.0.0.2:1", told.append)
    try:
        names._found("billing-a.invalid:1", ["10.0.0.1:1", "10.0.0.2:1"])
        assert {place.name: place.is_local for place in told[-1]} == {"10.0.0.2:1": True, "10.0.0.1:1": True}
        async with asyncio.timeout(ENOUGH_S):
            while len(told) < 3:  # noqa: ASYNC110 - a look-up fails
                await asyncio.sleep(0.01)
        assert {place.name: place.is_local for place in told[-1]} == {"10.0.0.2:1": True}
        assert "billing-a.invalid:1 was not resolved" in names.error
    finally:
        await names.close()


@pytest.mark.parametrize(
    ("address", "endpoint", "name"),
    [
        ("billing:8443", "10.0.0.1:8443", "billing"),
        ("dns:///billing.example:8443", "[::1]:8443", "billing.example"),
        ("one:1,two:1", "10.0.0.2:1", "one"),
        ("10.0.0.1:1,two:1", "10.0.0.1:1", "two"),
        ("srv:///_grpc._tcp.billing.example.", "10.0.0.1:1", "_grpc._tcp.billing.example"),
        ("127.0.0.1:1", "127.0.0.1:1", ""),  # then it is the endpoint's own address
        ("ipv4:10.0.0.1:1,10.0.0.2:1", "10.0.0.2:1", ""),
        ("unix:/run/billing.sock", "unix:/run/billing.sock", ""),
    ],
)
def test_certificates_must_have_the_first_name_of_the_address_or_the_one_that_is_named(
    address: str, endpoint: str, name: str
) -> None:
    clients, place = TargetClients("w"), Place(address, endpoint, total=4)
    for tls, wanted in ({}, name), ({"server_name": "other.example"}, "other.example"):
        server = clients._server(definition(address, target={"tls": tls}), place)
        assert server is not None
        assert (server.tls is not None, server.server_name) == (True, wanted)
        zoned = definition(address, target={"tls": tls, "zones": {"a": "billing-a:1"}})
        found = clients._server(zoned, Place("billing-a:1", endpoint, total=4))
        assert (found and found.server_name) == wanted
    plain = clients._server(definition(address), place)
    assert plain is not None
    assert plain.tls is None


@pytest.mark.parametrize(
    ("address", "server_name", "name"),
    [
        ("billing:8443", None, ""),  # then grpcio takes the address's host
        ("unix-billing.example:8443", None, ""),
        ("unix:/run/billing.sock", None, "localhost"),
        ("UNIX:/run/billing.sock", None, "localhost"),
        ("unix-abstract:billing", None, "localhost"),
        ("billing:8443", "bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_grpcio_checks_the_same_names(address: str, server_name: str | None, name: str) -> None:
    target = {"transport": "grpc", "tls": {"server_name": server_name}}
    credentials = Credentials()
    credentials.load()
    clients, place = TargetClients("w", "", credentials), Place(address, address, total=1)
    found = clients._grpc_tls(definition(address, target=target), place)
    assert found is not None
    assert found.server_name == name
