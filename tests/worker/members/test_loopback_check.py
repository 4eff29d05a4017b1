"""A worker that has heard another host is refused a loopback address; a worker alone keeps it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.web_address import Web
from app.controllog.codec import Heartbeat
from app.worker.members import loopback_check
from app.worker.members.advertised_address import loopback_place, own_url
from app.worker.members.loopback_check import LoopbackCheck, NotReachable, apart
from app.worker.members.membership import DRAINING, Members

HERE, THERE = "here", "there"
LOOPBACK = "http://127.0.0.1:6066"


def beat(worker: str, place: str, state: str = "running", at_ms: int = 0) -> Heartbeat:
    return Heartbeat(worker=worker, at_ms=at_ms, started_ms=0, url=LOOPBACK, state=state, term=0, place=place)


@pytest.mark.parametrize("url", [LOOPBACK, "http://[::1]:1", "http://localhost:6066", "http://0.0.0.0:1"])
def test_a_loopback_address_does_not_reach_a_worker_on_another_host(url: str) -> None:
    assert apart(HERE, url, {"b": beat("b", THERE), "a": beat("a", HERE)}) == "b"


@given(st.dictionaries(st.text(max_size=3), st.sampled_from([HERE, ""])))
def test_workers_that_share_loopback_or_have_no_place_may_keep_it(places: dict[str, str]) -> None:
    assert apart(HERE, LOOPBACK, {w: beat(w, place) for w, place in places.items()}) == ""


def test_another_address_or_a_draining_neighbour_is_no_reason() -> None:
    beats = {"b": beat("b", THERE)}
    assert apart(HERE, "http://10.0.0.7:6066", beats) == ""
    assert apart(HERE, "http://[", beats) == ""
    assert apart("", LOOPBACK, beats) == ""
    assert apart(HERE, LOOPBACK, {"b": beat("b", THERE, DRAINING)}) == ""


def service(members: Members, reported: list[str]) -> LoopbackCheck:
    return LoopbackCheck(HERE, LOOPBACK, members, lambda kind, *_: reported.append(kind))


async def heartbeats_until(ended: Callable[[], object], members: Members, is_sealed: bool = True) -> None:
    """A worker of another host sends heartbeats until `ended()`."""
    async with asyncio.timeout(60):
        for at_ms in count(0, 500):
            if ended():
                return
            members.observe(beat("b", THERE, at_ms=at_ms), time.monotonic(), is_sealed=is_sealed)
            await asyncio.sleep(0.01)


def test_a_starting_worker_with_a_loopback_address_ends_with_the_remedy() -> None:
    async def run() -> None:
        members, reported = Members(1e9), list[str]()
        watching = service(members, reported)
        await watching.start()
        await heartbeats_until(lambda: watching.crashed, members)
        assert isinstance(watching.crash_reason, NotReachable)
        assert "web.advertise" in str(watching.crash_reason)
        with suppress(Exception):
            await watching.stop()

    asyncio.run(run())


def test_a_running_worker_with_a_loopback_address_continues_and_reports_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopback_check, "HEARTBEATS_GRACE_S", 0.0)
    monkeypatch.setattr(loopback_check, "LOOPBACK_POLL_INTERVAL_S", 0.01)

    async def run() -> None:
        members, reported = Members(1e9), list[str]()
        watching = service(members, reported)
        await watching.start()
        await heartbeats_until(lambda: reported, members)
        await asyncio.sleep(0.1)
        assert reported == ["loopback-address"]
        assert not watching.crashed
        await watching.stop()

    asyncio.run(run())


def test_one_heartbeat_of_another_host_which_may_be_forged_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopback_check, "LOOPBACK_POLL_INTERVAL_S", 0.01)

    async def run() -> None:
        members, reported = Members(1e9), list[str]()
        watching = service(members, reported)
        await watching.start()
        for _ in range(20):  # the same record, read again and again
            members.observe(beat("b", THERE, at_ms=1_000_000), time.monotonic())
            await asyncio.sleep(0.01)
        assert (watching.crashed, reported) == (False, [])
        await watching.stop()

    asyncio.run(run())


def test_heartbeats_without_a_seal_which_may_be_forged_stop_no_fleet_and_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a program that may write to the topic, and writes on, kept every worker from starting."""
    monkeypatch.setattr(loopback_check, "LOOPBACK_POLL_INTERVAL_S", 0.01)

    async def run() -> None:
        members, reported = Members(1e9), list[str]()
        watching = service(members, reported)
        await watching.start()
        await heartbeats_until(lambda: reported, members, is_sealed=False)
        assert (watching.crashed, reported) == (False, ["loopback-address"])
        await watching.stop()

    asyncio.run(run())


def test_processes_of_one_network_have_one_place() -> None:
    assert loopback_place() == loopback_place()
    assert len(loopback_place()) == 16


@pytest.mark.parametrize(
    ("broker", "listens", "url"),
    [("127.0.0.1", "0.0.0.0", "http://127.0.0.1:7000"), ("::1", "::", "http://[::1]:7000")],  # noqa: S104
)
def test_the_address_is_the_one_by_which_a_broker_is_reached(broker: str, listens: str, url: str) -> None:
    family = socket.AF_INET6 if ":" in broker else socket.AF_INET
    try:
        server = socket.create_server((broker, 0), family=family)
    except OSError:
        pytest.skip(f"there is no {broker} here")
    with server, socket.create_server(("127.0.0.1", 0)) as gone:
        closed = f"127.0.0.1:{gone.getsockname()[1]}"
        gone.close()
        bootstrap = [closed, f"[{broker}]:{server.getsockname()[1]}"]
        assert asyncio.run(own_url(Web(host=listens), 7000, bootstrap)) == url


def test_a_configured_address_needs_no_broker() -> None:
    everywhere = "0.0.0.0"  # noqa: S104
    assert asyncio.run(own_url(Web(host="10.0.0.7"), 7000, [])) == "http://10.0.0.7:7000"
    assert (
        asyncio.run(own_url(Web(host=everywhere, advertise="fd00::7"), 7000, [])) == "http://[fd00::7]:7000"
    )
    given = Web(host=everywhere, advertise="https://a.example")
    assert asyncio.run(own_url(given, 7000, [])) == "https://a.example"


def test_without_a_broker_of_the_right_family_the_error_names_the_setting() -> None:
    with pytest.raises(OSError, match=r"web\.advertise"):
        asyncio.run(own_url(Web(host="0.0.0.0"), 7000, ["[::1]:1"]))  # noqa: S104
