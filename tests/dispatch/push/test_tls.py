"""Receivers with TLS, by both transports and contracts: what is checked, and what a failure says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from app.dispatch.push.endpoint import Place
from app.dispatch.push.health import ReceiverHealth
from app.dispatch.scheduler.clients import TargetClients
from app.grpc_client.credentials import Credentials, PemFiles
from switchyard.receiver import Receiver
from tests.dispatch.pump.rig import ENOUGH_S, definition, dispatch_rig, numbers
from tests.grpc_client.peers.certificates import Certificates, make

COUNT = 50


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of another authority."""
    return make(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(params=["http2", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["unary", "stream"])
def contract(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def server(certificates: Certificates, *, is_mutual: bool = True) -> grpc.ServerCredentials:
    pair = certificates.server_key.read_bytes(), certificates.server.read_bytes()
    authority = certificates.authority.read_bytes() if is_mutual else None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=is_mutual)


def worker(certificates: Certificates, own: Certificates | None) -> Credentials:
    """A worker that trusts `certificates`, and shows `own`; None: nothing."""
    shown = (None, None) if own is None else (str(own.client), str(own.client_key))
    credentials = Credentials({"billing": PemFiles(str(certificates.authority), *shown)})
    credentials.load()
    return credentials


def target(transport: str, contract: str, **tls: Any) -> dict[str, Any]:
    return {"transport": transport, "contract": contract, "tls": {"credentials": "billing", **tls}}


async def test_messages_go_over_mutual_tls_also_to_a_receiver_that_was_restarted(
    transport: str, contract: str, certificates: Certificates
) -> None:
    async with dispatch_rig(
        lambda _: None, limits={"credentials": server(certificates)},
        credentials=worker(certificates, certificates), target=target(transport, contract),
    ) as rig:  # fmt: skip
        rig.feed(rig.pump(), numbers(COUNT))
        await rig.idle()
        assert len(rig.seen) == COUNT
        await rig.receiver.stop(0)
        await rig.start_receiver()
        rig.feed(rig.pumps[0], numbers(COUNT))
        await rig.idle()
    assert len(rig.seen) == 2 * COUNT


WRONG = {  # and what operators read
    "plain": "the server does not speak TLS on this port",
    "anonymous": "give a valid one of an authority that it trusts",
    "unknown worker": "give a valid one of an authority that it trusts",
    "unknown receiver": "unknown authority",
    "other name": "not valid for 'orders.example'",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_nothing_goes_to_a_receiver_that_is_not_trusted_or_does_not_trust_the_worker(
    wrong: str, transport: str, contract: str, certificates: Certificates, strangers: Certificates
) -> None:
    is_secure = wrong != "plain"
    limits = {"credentials": server(certificates)} if is_secure else {}
    own = worker(
        strangers if wrong == "unknown receiver" else certificates,
        {"anonymous": None, "unknown worker": strangers}.get(wrong, certificates),
    )
    tls = {"server_name": "orders.example"} if wrong == "other name" else {}
    async with dispatch_rig(
        lambda _: None, limits=limits, credentials=own, target=target(transport, contract, **tls)
    ) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.until(lambda: rig.main.breaker_state == "open")
        assert (rig.seen, pump.tracker.base, rig.copied.records) == ([], 0, [])
        why = rig.main.status(time.monotonic(), 0).why_open
        assert (WRONG[wrong] if transport == "http2" else "the last failure: ") in why


async def test_a_plain_worker_sends_nothing_to_a_receiver_with_tls(
    transport: str, contract: str, certificates: Certificates
) -> None:
    async with dispatch_rig(
        lambda _: None, limits={"credentials": server(certificates, is_mutual=False)},
        target={"transport": transport, "contract": contract},
    ) as rig:  # fmt: skip
        rig.feed(rig.pump(), numbers(1))
        await rig.until(lambda: rig.main.breaker_state == "open")
        assert rig.seen == []


@pytest.mark.parametrize("is_known", [True, False])
async def test_health_checks_go_over_mutual_tls(
    is_known: bool, transport: str, certificates: Certificates, strangers: Certificates
) -> None:
    receiver = Receiver(credentials=server(certificates))
    address = f"127.0.0.1:{await receiver.start()}"
    workload = definition(address, target=target(transport, "unary"))
    clients = TargetClients("w1", "", worker(certificates, certificates if is_known else strangers))
    health = clients.health(workload, Place(address, address, total=1, is_local=False))
    try:
        found = await health.check(timeout_s=ENOUGH_S if is_known else 2.0)
    finally:
        await health.close()
        await receiver.stop(0)
    assert found is (ReceiverHealth.SERVING if is_known else ReceiverHealth.UNREACHABLE)


async def test_a_definition_that_turns_tls_on_makes_other_connections(
    transport: str, contract: str, certificates: Certificates
) -> None:
    async with dispatch_rig(
        lambda _: None, limits={"credentials": server(certificates)},
        credentials=worker(certificates, certificates), target={"transport": transport, "contract": contract},
    ) as rig:  # fmt: skip
        rig.feed(rig.pump(), numbers(COUNT))
        await rig.until(lambda: rig.main.breaker_state == "open")
        rig.runtime.change(definition(f"127.0.0.1:{rig.port}", target=target(transport, contract)), None)
        await rig.idle()
    assert len(rig.seen) == COUNT


async def test_a_renewed_authority_counts_for_the_next_connection(
    contract: str, tmp_path: Path, certificates: Certificates, strangers: Certificates
) -> None:
    """Both sides change to the other authority, while messages flow."""
    credentials = Credentials({"billing": PemFiles(*certificates.install(tmp_path))})
    credentials.load()
    async with dispatch_rig(
        lambda _: None, limits={"credentials": server(certificates)}, credentials=credentials,
        target=target("http2", contract),
    ) as rig:  # fmt: skip
        pump = rig.pump()
        rig.feed(pump, numbers(COUNT))
        await rig.idle()
        await rig.receiver.stop(0)
        rig.limit("credentials", server(strangers))
        await rig.start_receiver()
        rig.feed(pump, numbers(COUNT))
        await rig.until(lambda: rig.main.breaker_state == "open")
        strangers.install(tmp_path)
        credentials.load()
        await rig.idle()
    assert len(rig.seen) == 2 * COUNT
