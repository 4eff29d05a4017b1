"""The transport of a workload's definition makes its clients."""

from __future__ import annotations

import pytest

from app.dispatch.push.grpc_transport import GrpcUnaryTarget
from app.dispatch.push.http2_transport import Http2UnaryTarget
from app.dispatch.push.transport import UnaryTarget
from app.dispatch.scheduler.clients import TargetClients
from switchyard.receiver import Message
from tests.dispatch.pump.rig import definition, dispatch_rig, numbers


@pytest.mark.parametrize(
    ("transport", "address", "kind"),
    [
        ("http2", "dns:///localhost:1", Http2UnaryTarget),
        ("http2", "ipv4:127.0.0.1:1,127.0.0.2:1", Http2UnaryTarget),
        ("http2", "dns://127.0.0.1/localhost:1", GrpcUnaryTarget),
        ("grpc", "dns:///localhost:1", GrpcUnaryTarget),
    ],
)
async def test_the_transport_makes_the_calls(transport: str, address: str, kind: type[UnaryTarget]) -> None:
    target = TargetClients("w").unary(definition(address, target={"transport": transport}), address)
    assert type(target) is kind
    await target.close()


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
