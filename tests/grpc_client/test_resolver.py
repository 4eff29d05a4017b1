"""The resolver with the system's own look-ups: a process has files in `/etc`, and a DNS server, of its own.

A process in a network of its own may listen on port 53, where the system's resolver looks for a DNS server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.grpc_client.address import Address
from app.grpc_client.resolver import SLOTS, THREADS, _in_thread, resolve
from app.grpc_client.target import Target

ENOUGH_S = 30.0
ONLY_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives one process files and a network of its own"
)
SERVICE = "srv:///_grpc._tcp.billing.test"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("billing:50051", ["billing:50051"]),
        ("dns:///billing:50051", ["billing:50051"]),
        ("dns:billing:50051", ["billing:50051"]),
        ("[::1]:50051", ["[::1]:50051"]),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", ["127.0.0.1:1", "127.0.0.2:2"]),
        ("ipv6:[::1]:1,[::2]:2", ["[::1]:1", "[::2]:2"]),
        ("one:1,127.0.0.1:2,[::1]:3", ["one:1", "127.0.0.1:2", "[::1]:3"]),
        ("dns:///one:1,two:2", ["one:1", "two:2"]),
        ("unix:/run/a,b", ["unix:///run/a,b"]),
    ],
)
def test_a_target_has_one_place_or_a_list(text: str, places: list[str]) -> None:
    assert [str(place) for place in Target.parse(text).places] == places


@pytest.mark.parametrize(
    ("text", "service", "authority"),
    [
        ("srv:///_grpc._tcp.billing.test", "_grpc._tcp.billing.test", "_grpc._tcp.billing.test"),
        ("SRV:///_grpc._tcp.billing.test.", "_grpc._tcp.billing.test.", "_grpc._tcp.billing.test"),
        ("srv:///b\u00fccher.test", "xn--bcher-kva.test", "xn--bcher-kva.test"),
    ],
)
def test_a_service_is_a_name_without_a_port(text: str, service: str, authority: str) -> None:
    target = Target.parse(text)
    assert (target.places, target.service, target.authority) == ((), service, authority)


def test_a_host_may_have_the_name_of_a_scheme() -> None:
    assert [str(place) for place in Target.parse("srv:1").places] == ["srv:1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("billing", "it has no port"),
        ("one:1,", "it has no port"),
        ("one:1,,two:2", "it has no port"),
        ("ipv4:one:1", "it has no IP address"),
        ("ipv4:127.0.0.1:1,one:1", "it has no IP address"),
        ("dns://8.8.8.8/one:1", "names a DNS server"),
        ("one:1,user:password@two:2", "no user and no password"),
        ("user:password,@two:2", "no user and no password"),
        ("user:password,%40two:2", "no user and no password"),
        ("srv:///user:password@billing", "no user and no password"),
        ("srv:///", "it is empty"),
        ("srv:///.", "no name of a host"),
        ("srv:///billing:1", "write srv:///name"),
        ("srv:///one,two", "write srv:///name"),
        ("srv:///one/two", "no name of a host"),
        ("srv://8.8.8.8/billing", "names a DNS server; write srv:///name"),
        ("srv:billing", "write a number from 1 to 65535"),
        (",".join(["one:1"] * 1_001), "at most 1000"),
    ],
)
def test_what_is_no_target_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        Target.parse(text)
    assert not re.search("password[@,%]", str(refusal.value))


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [("127.0.0.1:1", True), ("[fe80::1%eth0]:1", True), ("unix:/a", True), ("one:1", False),
     ("127.0.0.1:1,one:1", False), ("srv:///one", False)],
)  # fmt: skip
def test_only_names_need_look_ups(text: str, is_fixed: bool) -> None:
    assert Target.parse(text).is_fixed is is_fixed


async def test_each_place_is_found_once() -> None:
    answer = await resolve(Target.parse("127.0.0.1:1,localhost:1,127.0.0.1:1,127.0.0.1:2"))
    assert answer.addresses.count(Address("127.0.0.1", 1)) == 1
    assert Address("127.0.0.1", 2) in answer.addresses
    assert not answer.error


async def test_a_name_without_an_answer_is_an_error() -> None:
    answer = await resolve(Target.parse("no-such-host.invalid:1"))
    assert not answer.addresses
    assert answer.error.startswith("no-such-host.invalid:1 was not resolved: ")


async def test_a_name_without_an_answer_takes_nothing_from_others_in_its_list() -> None:
    answer = await resolve(Target.parse("no-such-host.invalid:1,127.0.0.1:1,none.invalid:2"))
    assert answer.addresses == (Address("127.0.0.1", 1),)
    assert answer.error.startswith("no-such-host.invalid:1 was not resolved: ")
    assert answer.error.endswith(" (and 1 more)")


@dataclass(frozen=True)
class Found:
    addresses: list[str]
    error: str


class LookUps:
    """The output of `tests.grpc_client.look_up` in a process with files of its own in `/etc`."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def next(self) -> Found:
        async with asyncio.timeout(ENOUGH_S):
            line = await self._lines.readline()
        assert line, "the program has ended"
        return Found(**json.loads(line))

    async def until(self, *addresses: str, error: str = "", always: str = "") -> None:
        """Waits for the addresses and for an error with these words; empty: for no error.

        A look-up that runs while records change may find some old and some new ones. So the results between
        are arbitrary, but each has the address `always`.
        """
        seen: list[Found] = []
        try:
            async with asyncio.timeout(ENOUGH_S):
                while True:
                    found = await self.next()
                    seen.append(found)
                    assert not always or always in found.addresses
                    if found.addresses == list(addresses) and (
                        error in found.error if error else not found.error
                    ):
                        return
        except TimeoutError:
            pytest.fail(f"waited for {addresses} with {error!r}, and saw {seen}")


@asynccontextmanager
async def look_ups(files: dict[str, Path], *arguments: str, address: str = "") -> AsyncIterator[LookUps]:
    """`address`: the only one of its host, beside the loopback's."""
    adding = f"ip address add {address} dev lo && " if address else ""
    mounts = "".join(f"mount --bind {shlex.quote(str(own))} {name} && " for name, own in files.items())
    process = await asyncio.create_subprocess_exec(
        "unshare", "--map-root-user", "--mount", "--net",
        "sh", "-c", f'{mounts} ip link set lo up && {adding} exec "$@"', "sh",
        sys.executable, "-m", "tests.grpc_client.look_up", *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield LookUps(process.stdout)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@ONLY_LINUX
async def test_the_addresses_follow_the_name_and_stay_when_it_vanishes(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"

    def write(*addresses: str) -> None:
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{one} billing.test\n" for one in addresses))

    write("127.0.0.2", "127.0.0.1", "::1")
    async with look_ups({"/etc/hosts": hosts}, "billing.test:7") as found:
        await found.until("127.0.0.1:7", "127.0.0.2:7", "[::1]:7")
        write("127.0.0.2", "127.0.0.3")
        await found.until("127.0.0.2:7", "127.0.0.3:7")
        write()
        await found.until("127.0.0.2:7", "127.0.0.3:7", error="billing.test:7 was not resolved: ")


@ONLY_LINUX
@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("10.0.0.1/24", ["10.0.0.2:7", "[::1]:7"]),
        ("fd00::1/64", ["[::1]:7", "[fd00::2]:7"]),
        ("10.0.0.1/24 dev lo && ip address add fd00::1/64", ["10.0.0.2:7", "[::1]:7", "[fd00::2]:7"]),
    ],
)
async def test_addresses_without_a_route_are_left_out_of_both_families(
    own: str, found: list[str], tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("10.0.0.2 billing.test\nfd00::2 billing.test\n::1 billing.test\n")
    async with look_ups({"/etc/hosts": hosts}, "billing.test:7", address=own) as look_up:
        await look_up.until(*found)


class Zone:
    """The records that the process's own DNS server has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "zone"
        self.set()

    def set(self, *records: str) -> None:
        text = "".join(f"{record}\n" for record in ("$TTL 1", "@ SOA a b 1 1 1 1 1", *records))
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)  # at once: the server never reads half a file

    def look_ups(self, target: str) -> AbstractAsyncContextManager[LookUps]:
        settings = {
            "resolv.conf": "nameserver 127.0.0.1\nsearch test\noptions ndots:5\n",
            "nsswitch.conf": "hosts: files dns\n",
        }
        for name, text in settings.items():
            (self._folder / name).write_text(text)
        return look_ups({f"/etc/{name}": self._folder / name for name in settings}, target, str(self.file))


@pytest.fixture
def zone(tmp_path: Path) -> Zone:
    return Zone(tmp_path)


@ONLY_LINUX
async def test_the_servers_of_a_service_are_those_with_the_lowest_priority(zone: Zone) -> None:
    hosts = ("one A 127.0.0.1", "one AAAA ::1", "two A 127.0.0.2", "three A 127.0.0.3")
    service = "_grpc._tcp.billing SRV"
    zone.set(*hosts, f"{service} 20 0 9 three", f"{service} 10 0 7 one", f"{service} 10 100 8 two")
    async with zone.look_ups(SERVICE) as found:
        assert await found.next() == Found(["127.0.0.1:7", "127.0.0.2:8", "[::1]:7"], "")
        zone.set(*hosts, f"{service} 20 0 9 three", f"{service} 30 0 7 one")
        await found.until("127.0.0.3:9")
        zone.set(*hosts)
        await found.until("127.0.0.3:9", error="_grpc._tcp.billing.test was not resolved: ")
        zone.set(*hosts, f"{service} 0 0 7 two")
        await found.until("127.0.0.2:7")


@ONLY_LINUX
async def test_a_service_may_be_in_a_search_domain_but_its_servers_are_not(zone: Zone) -> None:
    zone.set("_grpc._tcp.billing SRV 0 0 7 one", "one A 127.0.0.1", "one.test A 127.0.0.9")
    async with zone.look_ups("srv:///_grpc._tcp.billing") as found:
        assert await found.next() == Found(["127.0.0.1:7"], "")


@ONLY_LINUX
async def test_the_next_priority_is_used_while_no_server_of_the_lowest_has_an_address(zone: Zone) -> None:
    service = "_grpc._tcp.billing SRV"
    records = (f"{service} 10 0 7 one", f"{service} 20 0 8 two", f"{service} 30 0 9 three",
               "two A 127.0.0.2", "three A 127.0.0.3")  # fmt: skip
    zone.set(*records)
    async with zone.look_ups(SERVICE) as found:
        await found.until("127.0.0.2:8", error="one.test.:7 was not resolved: ")
        zone.set(*records, "one A 127.0.0.1")
        await found.until("127.0.0.1:7")


@ONLY_LINUX
@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "_grpc._tcp.billing.test was not resolved: None of DNS query names exist"),
        (["_grpc._tcp.billing A 127.0.0.1"], "does not contain an answer"),
        (["_grpc._tcp.billing SRV 0 0 0 ."], "its SRV record is '.', which means that it has no servers"),
        (["_grpc._tcp.billing SRV 0 0 0 one"], "cannot be used: port 0: write a number"),
        (["_grpc._tcp.billing SRV 0 0 7 one"], "one.test.:7 was not resolved: "),
    ],
    ids=["no-name", "no-records", "no-service", "no-port", "no-host"],
)
async def test_a_service_without_servers_is_an_error(zone: Zone, records: list[str], words: str) -> None:
    zone.set(*records)
    async with zone.look_ups(SERVICE) as found:
        first = await found.next()
        assert not first.addresses
        assert words in first.error


@ONLY_LINUX
async def test_a_server_without_an_address_takes_nothing_from_others_of_its_service(zone: Zone) -> None:
    service = "_grpc._tcp.billing SRV"
    zone.set(f"{service} 0 0 7 one", f"{service} 0 0 8 two", f"{service} 0 0 0 three", "two A 127.0.0.2")
    async with zone.look_ups(SERVICE) as found:
        first = await found.next()
        assert first.addresses == ["127.0.0.2:8"]
        assert "port 0" in first.error
        assert first.error.endswith(" (and 1 more)")


@ONLY_LINUX
@pytest.mark.parametrize("target", [SERVICE, "one.test:7,two.test:8"], ids=["service", "list"])
async def test_a_name_that_vanishes_keeps_its_addresses_while_others_change(zone: Zone, target: str) -> None:
    services = ["_grpc._tcp.billing SRV 0 0 7 one", "_grpc._tcp.billing SRV 0 0 8 two"]
    zone.set(*services, "one A 127.0.0.1", "two A 127.0.0.2")
    async with zone.look_ups(target) as found:
        await found.until("127.0.0.1:7", "127.0.0.2:8")
        zone.set(*services, "one A 127.0.0.3")
        await found.until("127.0.0.2:8", "127.0.0.3:7", error="two.test", always="127.0.0.2:8")


@ONLY_LINUX
async def test_a_service_whose_new_servers_have_no_address_keeps_the_old_ones(zone: Zone) -> None:
    zone.set("_grpc._tcp.billing SRV 0 0 7 one", "one A 127.0.0.1")
    async with zone.look_ups(SERVICE) as found:
        await found.until("127.0.0.1:7")
        zone.set("_grpc._tcp.billing SRV 0 0 8 two")
        await found.until("127.0.0.1:7", error="two.test.:8 was not resolved: ", always="127.0.0.1:7")


async def test_names_without_an_answer_leave_threads_to_other_resolvers() -> None:
    slots, answer, begun = asyncio.Semaphore(SLOTS), threading.Event(), threading.Semaphore(0)

    def look_up() -> None:
        begun.release()
        answer.wait(ENOUGH_S)

    try:
        stuck = [asyncio.ensure_future(_in_thread(slots, look_up)) for _ in range(2 * THREADS)]
        async with asyncio.timeout(ENOUGH_S):
            for _ in range(SLOTS):
                await asyncio.to_thread(begun.acquire)
            assert await _in_thread(asyncio.Semaphore(SLOTS), str, 7) == "7"
        for one in stuck:
            one.cancel()
        await asyncio.wait(stuck)
        assert slots.locked(), "its threads are not free although nobody waits for them"
    finally:
        answer.set()
    async with asyncio.timeout(ENOUGH_S):
        await slots.acquire()
