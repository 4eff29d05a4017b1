"""The end of a worker's process is noticed at once; ambiguous signs do not count."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.controllog.codec import Heartbeat
from app.dev.demo.stage import free_port
from app.worker.members.membership import STRAY_HEARTBEAT_S, Members
from app.worker.members.sentinel import Sentinel

ENOUGH_S = 150.0
ANSWERS = """
import asyncio, sys
async def answer(reader, writer):
    try:
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            body = b'{"status":"live","worker":"%s"}' % sys.argv[2].encode()
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
            print("answered", flush=True)
            if len(sys.argv) > 3:
                writer.close()
    except (EOFError, OSError):
        pass
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]))
    print("listening", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def beat(worker: str, port: int) -> Heartbeat:
    return Heartbeat(
        worker=worker, at_ms=0, started_ms=0, url=f"http://127.0.0.1:{port}", state="running", term=0
    )


async def process(port: int, worker: str, *more: str) -> asyncio.subprocess.Process:
    """A process that answers with this worker's id at this port. `more`: it also ends each connection."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ANSWERS, str(port), worker, *more, stdout=asyncio.subprocess.PIPE
    )
    await says(made, "listening")
    return made


async def says(made: asyncio.subprocess.Process, word: str) -> None:
    """Waits until the process prints the word once more."""
    assert made.stdout is not None
    async with asyncio.timeout(ENOUGH_S):
        assert await made.stdout.readline() == f"{word}\n".encode()


async def kill(made: asyncio.subprocess.Process) -> None:
    made.kill()
    await made.wait()


class Watched:
    """A sentinel of the leader "me", with the deaths that it reported."""

    def __init__(self) -> None:
        self.members = Members(dead_after_s=1e9)
        self.reported = asyncio.Event()

    @property
    def live(self) -> set[str]:
        return set(self.members.live(time.monotonic()))


@asynccontextmanager
async def watching(*beats: Heartbeat, leader: str = "me") -> AsyncIterator[Watched]:
    watched = Watched()
    for one in beats:
        watched.members.observe(one, time.monotonic())
    sentinel = Sentinel("me", watched.members, lambda: leader, watched.reported.set)
    await sentinel.start()
    try:
        yield watched
    finally:
        await sentinel.stop()


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(ENOUGH_S):
        await event.wait()


async def test_a_killed_process_is_dead_at_once() -> None:
    port = free_port()
    other = await process(port, "other")
    async with watching(beat("me", 1), beat("other", port)) as watched:
        await says(other, "answered")
        assert watched.live == {"me", "other"}
        await kill(other)
        await soon(watched.reported)
        assert watched.live == {"me"}


async def test_another_worker_at_the_port_shows_that_the_former_ended() -> None:
    port = free_port()
    former = await process(port, "other", "ends")
    async with watching(beat("me", 1), beat("other", port)) as watched:
        await says(former, "answered")
        assert not watched.reported.is_set()
        await kill(former)
        latter = await process(port, "latter")
        await soon(watched.reported)
        await kill(latter)
        assert "other" not in watched.live


async def test_a_refusal_counts_only_after_the_worker_answered_there() -> None:
    port = free_port()
    stranger = await process(port, "stranger")  # for example this host's own worker, at another's loopback
    async with watching(beat("me", 1), beat("other", port), beat("never", free_port())) as watched:
        await says(stranger, "answered")
        await kill(stranger)
        await asyncio.sleep(3.0)
        assert watched.live == {"me", "other", "never"}
        assert not watched.reported.is_set()


async def test_ended_connections_do_not_count_while_the_port_answers() -> None:
    port = free_port()
    other = await process(port, "other", "ends")
    async with watching(beat("me", 1), beat("other", port)) as watched:
        for _ in range(30):
            await says(other, "answered")
        assert not watched.reported.is_set()
        await kill(other)
        await soon(watched.reported)


async def test_a_follower_watches_the_leader_and_the_next_in_line_watches_all() -> None:
    ports = [free_port(), free_port()]
    leader, third = [await process(port, name) for port, name in zip(ports, ("leader", "z"), strict=True)]
    beats = [beat("me", 1), beat("leader", ports[0]), beat("z", ports[1])]
    async with (
        watching(*beats, leader="leader") as next_in_line,
        watching(*beats, beat("a", 1), leader="leader") as follower,
    ):
        await says(third, "answered")
        for _ in range(2):  # both of them
            await says(leader, "answered")
        await kill(third)
        await soon(next_in_line.reported)
        assert not follower.reported.is_set()
        await kill(leader)
        await soon(follower.reported)
        assert follower.live == {"me", "a", "z"}


def test_continued_heartbeats_overrule_a_refusal_but_one_in_flight_does_not() -> None:
    members = Members(dead_after_s=3.0)
    members.observe(beat("w", 1), 0.0)
    members.refuse("w", 0.1)
    members.observe(beat("w", 1), 0.1 + STRAY_HEARTBEAT_S / 2)
    assert members.live(0.8) == {}
    members.observe(beat("w", 1), 0.2 + STRAY_HEARTBEAT_S)
    assert set(members.live(1.3)) == {"w"}
    members.refuse("stranger", 1.3)
    members.observe(beat("stranger", 1), 1.4)
    assert set(members.live(1.5)) == {"w", "stranger"}
