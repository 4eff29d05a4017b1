"""A whole region is killed, the other one takes over, and the lost one returns and takes back.

Every message is counted, and one region acts at any time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from app.controllog import codec
from app.controllog.events import RolePut
from app.controllog.topics import ControlTopics
from app.dev.demo.failover_report import Again, Switch, active_active, active_passive
from app.dev.demo.failover_traffic import ACTIVE, PARTITIONS, PASSIVE, MovingWorkloads, now_ms
from app.dev.demo.stage import wait_until
from app.dev.demo.traffic import read_all
from app.dev.demo.two_regions import STEP_TIMEOUT_S, TwoRegions
from app.dev.yard import Yard

pytestmark = pytest.mark.system

PER_SECOND = {"east": 200.0, "west": 80.0}
LOST, BACK = "killed", "failback"
BARRIER_MS = 12_000  # offset syncs come every ten seconds
AGAIN_S = 5.0  # progress reaches the other region within a second, or later on a busy machine


@pytest.fixture
def two(killable_yard: Yard, topic_name: str) -> Iterator[TwoRegions]:
    killable_yard.up(regions=2)
    regions = TwoRegions(killable_yard, topic_name)
    try:
        yield regions
    finally:
        regions.close()


def failover_command(two: TwoRegions, home: str, *arguments: str) -> Any:
    """Runs a failover command against that home's worker and returns its JSON. It is a process, since writers
    in this one log to stdout."""
    command = [sys.executable, "-c", "from app.cli.main import switchyard; switchyard()", "failover"]
    env = {**os.environ, "SWITCHYARD_URL": two.workers[home].url}
    done = subprocess.run(
        [*command, *arguments, "-o", "json"],
        env=env,
        capture_output=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout.decode()}\n{done.stderr.decode()}"
    return json.loads(done.stdout)


def roles_put(two: TwoRegions, home: str) -> list[RolePut]:
    """The role records in a region's control log."""
    topic = ControlTopics(two.names[home]).control.name
    records = asyncio.run(read_all(two.bootstrap(home, "regional"), topic))
    events = [codec.control_event(record.value) for record in records if record.value]
    return [event for event in events if isinstance(event, RolePut)]


async def consumer_groups(two: TwoRegions, home: str) -> set[str]:
    """The groups that the home's aggregate cluster knows."""
    admin = AIOKafkaAdminClient(bootstrap_servers=two.bootstrap(home, "aggregate"))
    await admin.start()
    try:
        return {group for group, *_ in await admin.list_consumer_groups()}
    finally:
        await admin.close()


@pytest.mark.deep(minutes=3.0)
@pytest.mark.timeout(600)
def test_failover_and_failback_lose_no_message_and_never_let_two_regions_act(
    two: TwoRegions, topic_name: str
) -> None:
    topic = topic_name
    two.start({"west": 2})
    moving = MovingWorkloads(two, topic)
    moving.start()
    west = two.names["west"]
    with ExitStack() as stack:
        writers = [stack.enter_context(writer) for writer in moving.writers(PER_SECOND).values()]
        moving.until_flows("east", now_ms(), least=100)
        moving.until_flows("west", now_ms(), ACTIVE, least=100)
        assert not moving.journals[PASSIVE]["west"].read(), "it is active in the east only"

        # The west keeps the group in sync. A drill changes nothing.
        wait_until(
            lambda: PASSIVE in asyncio.run(consumer_groups(two, "west")),
            STEP_TIMEOUT_S,
            lambda: "no such group",
        )
        before = roles_put(two, "west"), asyncio.run(consumer_groups(two, "west"))
        drilled = failover_command(two, "west", "drill", "--to", west)
        assert len(drilled["partitions"]) == PARTITIONS
        assert (roles_put(two, "west"), asyncio.run(consumer_groups(two, "west"))) == before
        assert not moving.journals[PASSIVE]["west"].read()

        # The east is lost. The plan is made without it, and the leader is killed while it executes.
        killed = Switch(LOST, now_ms())
        two.lose("east")
        gone_ms = now_ms()
        plan = failover_command(two, "west", "plan", "--to", west, "--force")
        (rows,) = (one["partitions"] for one in plan["plan"]["workloads"] if one["workload"] == moving.key())
        assert [row["partition"] for row in rows] == list(range(PARTITIONS))
        assert all(row["next_offset"] is not None and row["again"] is not None for row in rows)
        leader = two.leader("west")
        assert leader is not None
        two.workers["west"] = next(worker for worker in two.running("west") if worker is not leader)
        since_ms = now_ms()
        leader.signal(signal.SIGSTOP)
        failover_command(two, "west", "execute", plan["id"], "--yes", "--no-wait")
        leader.kill()
        done = moving.until_done("west", plan["id"])
        moving.until_flows("west", since_ms, least=20)
        print_line(f"the leader was killed; done {(now_ms() - since_ms) / 1000:.1f} s after the command")
        assert done["forced"]
        taken = [role for role in roles_put(two, "west") if role.plan == plan["id"]]
        assert {(role.region, role.state) for role in taken} == {(west, "active")}

        # The east returns with its old control log, and does not act.
        two.bring_back("east")
        moving.until_role("west", ("east",))
        back_ms = now_ms()
        moving.until_flows("west", back_ms, least=20)
        acted = [line for line in moving.journals[PASSIVE]["east"].read() if line["at_ms"] > gone_ms]
        assert acted == []

        # The planned failback.
        failback = Switch(BACK, now_ms())
        plan = moving.failback("east")
        failover_command(two, "east", "execute", plan["id"], "--yes")
        moving.until_role("east")
        moving.until_flows("east", failback.at_ms, least=50)
        moving.until_flows("east", failback.at_ms, ACTIVE, least=50)

    sent = {name for writer in writers for name in writer.sent}
    assert [writer.failed for writer in writers] == [{}, {}]
    moving.until_delivered(sent, settle_s=2.0)
    records, switches = moving.records(), [killed, failback]
    lines = {
        group: {home: journal.read() for home, journal in homes.items()}
        for group, homes in moving.journals.items()
    }
    passive = active_passive(sent, records, lines[PASSIVE], switches)
    active = active_active(sent, records, lines[ACTIVE], switches)
    print_line(
        f"{passive.messages:,} messages, {passive.sent_twice} sent twice, delivered {passive.delivered}"
    )
    print_line(f"read again: {dict(passive.again)}, active in both: {dict(active.again)}")
    assert (passive.lost, active.lost) == ((), ())
    assert passive.stale == active.stale == ()
    assert [len(regions) for regions in passive.epochs.values()] == [1, 1, 1]
    assert all(len(regions) == 1 for regions in active.epochs.values())
    assert {line["region"] for line in lines[PASSIVE]["west"]} == {west}
    # The failback rereads only records copied behind the last offset sync of a lane that was killed.
    delivered_in_west = {line["id"] for line in lines[PASSIVE]["west"]}
    back = [line for line in lines[PASSIVE]["east"] if line["at_ms"] > failback.at_ms]
    again_ms = [line["timestamp_ms"] for line in back if line["id"] in delivered_in_west]
    assert len(again_ms) == passive.again[BACK].count
    assert all(killed.at_ms - BARRIER_MS <= at_ms <= gone_ms for at_ms in again_ms)
    # Progress just before the kill did not reach the west; older messages are not repeated.
    assert passive.again[LOST].oldest_s < AGAIN_S


def test_the_balance_finds_lost_and_repeated_messages_and_deliveries_under_a_replaced_role() -> None:
    def line(name: str, at_ms: int, region: str, epoch: int, *, primary: bool = True) -> dict[str, Any]:
        return {"id": name, "at_ms": at_ms, "region": region, "epoch": epoch, "primary": primary,
                "outcome": "ok"}  # fmt: skip

    a, b, c = (line(name, at, "east", 0) for name, at in (("a", 1_000), ("b", 2_000), ("c", 3_000)))
    switches = [Switch("killed", 3_500)]
    journals = {"east": [a, b, c], "west": [line("c", 4_000, "west", 1), line("d", 4_100, "west", 1)]}
    found = active_passive("abcd", {"d": 1}, journals, switches)
    assert (found.messages, found.lost, found.stale, found.read_again) == (4, (), (), 1)
    assert found.again["killed"] == Again(1, 0.5)
    assert found.sound
    assert active_passive("abcd", {"c": 2}, journals, switches).read_again == 0, "two records of one message"
    assert active_passive("abcde", {}, journals, switches).lost == ("e",)
    journals["east"].append(late := line("e", 4_050, "east", 0))
    found = active_passive("abcde", {}, journals, switches)
    assert (found.stale, found.sound) == ((late,), False)
    finished = {
        "east": [a, line("b", 3_900, "east", 1, primary=False)],
        "west": [line("c", 4_000, "west", 1)],
    }
    assert active_passive("abc", {}, finished, []).sound, "it may finish its deliveries in flight"
    finished["east"][1]["at_ms"] = 4_001
    assert not active_passive("abc", {}, finished, []).sound, "only until the other region begins"
    twice = {"east": [line("a", 1, "east", 1)], "west": [line("b", 2, "west", 1)]}
    assert not active_passive("ab", {}, twice, []).sound, "one epoch, two regions"

    both = {
        "east": [line("a", 1, "east", 0), line("b", 20, "east", 64, primary=False)],
        "west": [line("a", 2, "west", 0, primary=False), line("b", 10, "west", 1)],
    }
    found = active_active("ab", {}, both, [])
    assert (found.lost, found.stale, found.read_again, found.sound) == ((), (), 0, True)
    both["east"].append(late := line("b", 30, "east", 0))
    found = active_active("ab", {}, both, [])
    assert (found.stale, found.again["before any"].count) == ((late,), 1)
    both["west"].pop()
    assert active_active("ab", {}, both, []).lost == ("b",)


def print_line(text: str) -> None:
    """Prints a line, which pytest shows when the test fails, or with -s."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
