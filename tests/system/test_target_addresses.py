"""Every kind of address that a target may have leads workers to receivers, and every message is counted.

The receivers are reached by SRV records, an IPv6 address, a Unix socket, and a name that only an HTTP proxy
knows. The workers ask a DNS server of the test's, which only they see in `/etc/resolv.conf`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.background_thread import Background
from app.dev.demo.stage import Process, free_port, wait_until, workload
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from switchyard.receiver import Message
from tests.dispatch.push.load_balancer import LoadBalancer
from tests.full_disk import APART, need_namespaces
from tests.grpc_client.name_server import NameServer
from tests.system.conftest import ShortLivedStage
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, EACH = "east-aggregate", "billing", 2, 400
NAME_SERVER = "127.9.9.9"
ONLY_THE_PROXY_KNOWS = "receiver.behind-a-proxy.invalid"
READY_S, SETTLE_S = 30.0, 90.0


@dataclass
class ResolvingStage(ShortLivedStage):
    """A stage whose workers ask `NAME_SERVER`, and connect to names outside `test` through a proxy."""

    proxy_port: int = field(default_factory=free_port)

    def start(
        self, name: str, command: list[str], env: Mapping[str, str] | None = None, **fields: Any
    ) -> Process:
        """As `DemoStage.start`."""
        if name.startswith("worker"):
            settings = self.home / "resolv.conf"
            settings.write_text(f"nameserver {NAME_SERVER}\n")
            script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
            command = ["unshare", *APART, "sh", "-c", script, str(settings), *command]
            proxy = {"grpc_proxy": f"http://127.0.0.1:{self.proxy_port}"}
            env = {**(env or {}), **proxy, "no_grpc_proxy": "127.0.0.1,::1,test"}
        return super().start(name, command, env, **fields)


class Taker(ReceiverThread):
    """A receiver that notes what it gets."""

    def __init__(self, topic: str, host: str = "127.0.0.1") -> None:
        super().__init__(topic, GROUP, host=host, stream=True)
        self.taken: set[bytes] = set()

    def handle(self, message: Message) -> None:
        self.taken.add(message.value)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


class Ways(Background):
    """The DNS server, the proxy and the Unix socket. `proxied`: the requests that the proxy got."""

    def __init__(self, zone: Path, socket: Path, proxy_port: int) -> None:
        super().__init__()
        self.proxied: list[str] = []
        self.behind_the_socket = self.behind_the_proxy = ""  # receivers as "host:port"
        self._zone, self._socket, self._proxy_port = zone, socket, proxy_port

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        behind_proxy = LoadBalancer(lambda: [self.behind_the_proxy])
        behind_socket = LoadBalancer(lambda: [self.behind_the_socket])

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            self.proxied.append(request.split(b"\r\n")[0].decode())
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await behind_proxy.lead(reader, writer)

        name_server = await NameServer.start(self._zone, NAME_SERVER)
        async with (
            await asyncio.start_unix_server(behind_socket.lead, self._socket),
            await asyncio.start_server(tunnel, "127.0.0.1", self._proxy_port),
        ):
            await asyncio.to_thread(self.ended.wait)
            name_server.close()
            await asyncio.sleep(0)  # its socket closes in the loop's next turn
            behind_proxy.close()
            behind_socket.close()


def values(first: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + EACH)]


def taken(takers: Iterable[Taker]) -> set[bytes]:
    return set().union(*(taker.taken for taker in takers))


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_messages_reach_receivers_by_every_kind_of_address(
    yard: Yard, topic_name: str, tmp_path: Path, contract: str
) -> None:
    need_namespaces()
    bootstrap = yard.bootstrap(CLUSTER)
    topics = {kind: f"{topic_name}-{kind}" for kind in ("srv", "ipv6", "unix", "proxy")}
    takers = {kind: [Taker(topic)] for kind, topic in topics.items()}
    takers["ipv6"] = [Taker(topics["ipv6"], "::1")]
    takers["srv"].append(Taker(topics["srv"]))
    zone, socket = tmp_path / "zone", tmp_path / "receiver.sock"
    with ExitStack() as stack:
        stage = ResolvingStage(yard, region=f"r{topic_name}")
        stack.enter_context(stage)
        for taker in (one for of_kind in takers.values() for one in of_kind):
            stack.enter_context(taker.serving())
        zone.write_text(
            "".join(f"_grpc._tcp.billing 1 IN SRV 0 0 {taker.port} one.test.\n" for taker in takers["srv"])
            + "one 1 IN A 127.0.0.1\n"
        )
        ways = stack.enter_context(Ways(zone, socket, stage.proxy_port))
        ways.behind_the_socket = takers["unix"][0].address
        ways.behind_the_proxy = takers["proxy"][0].address
        workers = start_workers(stage, 2)
        addresses = {
            "srv": "srv:///_grpc._tcp.billing.test",
            "ipv6": f"[::1]:{takers['ipv6'][0].port}",
            "unix": f"unix:{socket}",
            "proxy": f"{ONLY_THE_PROXY_KNOWS}:443",
        }

        def lacking(first: int) -> dict[str, int]:
            """How many of the messages from `first` each kind of address still lacks."""
            wanted = set(values(first))
            counts = {kind: len(wanted - taken(of_kind)) for kind, of_kind in takers.items()}
            return {kind: count for kind, count in counts.items() if count}

        def wait_for(first: int) -> None:
            wait_until(lambda: not lacking(first), SETTLE_S, lambda: f"{lacking(first)}\n{workers[0].tail()}")

        for kind, topic in topics.items():
            asyncio.run(create_topic(bootstrap, topic, PARTITIONS))
            stage.deploy(
                workers[0], workload(GROUP, topic, CLUSTER, addresses[kind], target={"contract": contract})
            )
            send_records(bootstrap, topic, (NewRecord(value) for value in values(0)))
        wait_for(0)
        for topic in topics.values():
            send_records(bootstrap, topic, (NewRecord(value) for value in values(EACH)))
        workers[1].kill()
        wait_for(EACH)

    assert all(taker.taken for taker in takers["srv"])
    for of_kind in takers.values():
        assert taken(of_kind) == {*values(0), *values(EACH)}
    assert set(ways.proxied) == {f"CONNECT {ONLY_THE_PROXY_KNOWS}:443 HTTP/1.1"}
