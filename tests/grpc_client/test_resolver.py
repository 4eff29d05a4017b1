"""The resolver with the system's own look-ups: `/etc/hosts` is a file of the test's, for one process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.grpc_client.address import Address
from app.grpc_client.resolver import Target, resolve

ENOUGH_S = 30.0


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
    ("text", "words"),
    [
        ("billing", "it has no port"),
        ("one:1,", "it has no port"),
        ("one:1,,two:2", "it has no port"),
        ("ipv4:one:1", "it has no IP address"),
        ("ipv4:127.0.0.1:1,one:1", "it has no IP address"),
        ("dns://8.8.8.8/one:1", "names a DNS server"),
        ("one:1,user:password@two:2", "no user and no password"),
        (",".join(["one:1"] * 1_001), "at most 1000"),
    ],
)
def test_what_is_no_target_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        Target.parse(text)
    assert "password@" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [("127.0.0.1:1", True), ("[fe80::1%eth0]:1", True), ("unix:/a", True), ("one:1", False),
     ("127.0.0.1:1,one:1", False)],
)  # fmt: skip
def test_only_names_need_look_ups(text: str, is_fixed: bool) -> None:
    assert Target.parse(text).is_fixed is is_fixed


async def test_places_are_told_once_each() -> None:
    found = await resolve(Target.parse("127.0.0.1:1,localhost:1,127.0.0.1:1,127.0.0.1:2"))
    assert found.count(Address("127.0.0.1", 1)) == 1
    assert Address("127.0.0.1", 2) in found


async def test_a_name_without_an_answer_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        await resolve(Target.parse("no-such-host.invalid:1"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives one process a file of its own")
async def test_the_addresses_follow_the_name_and_stay_when_it_vanishes(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"

    def write(*addresses: str) -> None:
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{one} billing.test\n" for one in addresses))

    write("127.0.0.2", "127.0.0.1", "::1")
    process = await asyncio.create_subprocess_exec(
        "unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
        str(hosts), sys.executable, "-m", "tests.grpc_client.look_up", "billing.test:7",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None

    async def told() -> Any:
        assert process.stdout is not None
        async with asyncio.timeout(ENOUGH_S):
            return json.loads(await process.stdout.readline())

    try:
        assert await told() == ["127.0.0.1:7", "127.0.0.2:7", "[::1]:7"]
        write("127.0.0.2", "127.0.0.3")
        assert await told() == ["127.0.0.2:7", "127.0.0.3:7"]
        write()
        last = await told()
        assert last["addresses"] == 2
        assert "not resolved" in last["error"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
