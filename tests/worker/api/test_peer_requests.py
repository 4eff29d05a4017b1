"""A worker's request to another one gets that worker's answer, or a clear refusal."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from app.audit.jobs.region_query import NotKnown
from app.worker.members import peer_requests
from app.worker.members.peer_requests import INTENDED_WORKER_HEADER, PeerUnreachable, ask_peer
from tests.web.client import Console
from tests.web.runtime_fake import FakeRuntime, a_pump, assigned, beat, definition, flowing, job, put, serving

TRACKER = "/api/v1/workloads/billing/orders/partitions/0/tracker"


def of_another(console: Console, url: str, place: str = "") -> None:
    """Assigns partition 0 to worker-b, whose heartbeat has this `url`."""
    console.fed.apply(put(definition()), assigned(job(0), "worker-b"))
    heard = beat(flowing(job(0)), worker="worker-b", url=url)
    console.fed.observe(msgspec.structs.replace(heard, place=place))


def test_a_worker_whose_address_leads_back_to_the_caller_is_unreachable(
    console: Console,
) -> None:
    of_another(console, console.url)
    for method, path in (("GET", TRACKER), ("POST", f"{TRACKER}/skip")):
        answer = console.ask(method, path, {"ranges": [[1, 2]]} if method == "POST" else None)
        assert answer.status == 502, answer.text
        assert "worker-a answers" in answer.json["detail"]
        assert "web.advertise" in answer.json["detail"]
    (share_answer,) = asyncio.run(console.fed.alerts.auditor.ask("/api/v1/audit/share?topic=orders"))
    assert isinstance(share_answer, NotKnown)
    assert "web.advertise" in str(share_answer)


def test_a_third_worker_at_that_address_gives_no_answer_for_it(console: Console) -> None:
    third = FakeRuntime()
    third.worker = "worker-c"
    third.apply(put(definition()), assigned(job(0), "worker-c"))
    third.jobs.pumps[job(0)] = a_pump()
    with serving(third) as url:
        of_another(console, url)
        answer = console.ask("GET", TRACKER)
        assert answer.status == 502
        assert "worker-c answers" in answer.json["detail"]
        refused = Console(url, third).ask("GET", TRACKER, **{INTENDED_WORKER_HEADER: "worker-b"})
        assert (refused.status, refused.json["title"]) == (421, "Another worker")
        assert Console(url, third).ask("GET", TRACKER, **{INTENDED_WORKER_HEADER: "worker-c"}).status == 200


@contextmanager
def stranger() -> Iterator[str]:
    """The address of a program that is no worker and answers everything with 200."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_process_that_is_no_worker_gives_no_answer(console: Console) -> None:
    with stranger() as url:
        of_another(console, url, place="another host")
        answer = console.ask("GET", TRACKER)
        assert answer.status == 502
        assert "another process answers" in answer.json["detail"]


def test_the_answer_of_an_older_version_counts() -> None:
    with stranger() as url:
        assert asyncio.run(ask_peer(beat(worker="worker-b", url=url), "/", 10.0)) == (200, b"{}")


def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "MAX_ANSWER_BYTES", 1)
    with stranger() as url, pytest.raises(PeerUnreachable, match="more than 1 bytes"):
        asyncio.run(ask_peer(beat(worker="worker-b", url=url), "/", 10.0))


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://[", "http://127.0.0.1:99999", "ftp://a"])
def test_an_address_that_is_none_is_an_unreachable_worker(url: str) -> None:
    with pytest.raises(PeerUnreachable, match="does not answer"):
        asyncio.run(ask_peer(beat(worker="worker-b", url=url), "/", 10.0))


def test_a_request_names_the_host_that_its_worker_advertises() -> None:
    fed = FakeRuntime()
    with serving(fed, advertise="worker-1.switchyard") as url:
        console = Console(url, fed)
        assert console.ask("GET", "/api/v1/overview", Host="worker-1.switchyard:6066").status == 200
        assert console.ask("GET", "/api/v1/overview", Host="worker-2.switchyard:6066").status == 421
