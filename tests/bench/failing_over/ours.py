"""A workload that is active in one of two regions, one of which is killed as a whole."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime

from app.controllog import codec
from app.controllog.events import Assignment, RolePut
from app.controllog.roles import ACTIVE
from app.controllog.topics import ControlTopics
from app.dev.demo.failover_report import Balance, Switch, active_passive
from app.dev.demo.failover_traffic import PASSIVE, MovingWorkloads, now_ms
from app.dev.demo.stage import Process
from app.dev.demo.traffic import read_all
from app.dev.demo.two_regions import TwoRegions
from app.dev.yard import Yard
from app.kernel.job import JobId, Kind
from tests.bench.failing_over.round import (
    AFTER_S,
    PARTITIONS,
    PER_SECOND,
    SETTLE_S,
    WARM_S,
    Round,
    until_steady,
)

FLOWS = re.compile(r"(\S+) .*job flows .*job=(\S+)")
KILLED, BACK = "killed", "failback"


def measure() -> tuple[Round, Round]:
    """A round: the region is lost, and later becomes active again in order. Raises StageError, YardError."""
    with Yard(regions=2) as yard:
        two = TwoRegions(yard, "orders", plain=True)
        try:
            return _measure(two)
        finally:
            two.close()


def _measure(two: TwoRegions) -> tuple[Round, Round]:
    two.start()
    moving = MovingWorkloads(two, "orders", active=False)
    moving.start()
    with ExitStack() as stack:
        writers = [stack.enter_context(writer) for writer in moving.writers(PER_SECOND).values()]
        moving.until_flows("east", now_ms())
        time.sleep(WARM_S)
        until_steady(moving.journals[PASSIVE]["east"])
        killed = Switch(KILLED, now_ms())
        two.lose("east")
        failover_round = _command(moving, "west", force=True)
        time.sleep(AFTER_S)
        two.bring_back("east")
        moving.until_role("west", ("east",))
        time.sleep(AFTER_S)
        failback = Switch(BACK, now_ms())
        failback_round = _command(moving, "east", force=False)
        time.sleep(AFTER_S)
    sent = {name for writer in writers for name in writer.sent}
    moving.until_delivered(sent, SETTLE_S)
    lines = {home: journal.read() for home, journal in moving.journals[PASSIVE].items()}
    balance = active_passive(sent, moving.records(), lines, [killed, failback])
    _fill(failover_round, balance, KILLED)
    _fill(failback_round, balance, BACK)
    return failover_round, failback_round


def _fill(one: Round, balance: Balance, switch: str) -> None:
    one.again, one.oldest_s = balance.again[switch].count, balance.again[switch].oldest_s
    one.lost, one.messages = len(balance.lost) + len(balance.stale), balance.messages


def _command(moving: MovingWorkloads, home: str, *, force: bool) -> Round:
    """Plans and executes, as an operator would; the measured command is `execute`."""
    planned_s = time.monotonic()
    plan = moving.plan(home, force=force)
    planned_s = time.monotonic() - planned_s
    began_ms = now_ms()
    moving.execute(home, plan["id"])
    executed_ms = now_ms()
    first = moving.until_flows(home, began_ms)
    moving.until_done(home, plan["id"])
    at_ms = {"execute answered": executed_ms, **_decided(moving, home, plan["id"])}
    at_ms["first delivery"] = min(first.values())
    phases = {name: (at - began_ms) / 1000 for name, at in at_ms.items()}
    first_s = [(first[partition] - began_ms) / 1000 for partition in range(PARTITIONS)]
    return Round(first_s, plan_s=planned_s, phases=phases)


def _decided(moving: MovingWorkloads, home: str, plan: str) -> Mapping[str, float]:
    """Three times of the failover, in ms, from the home's control log and its workers' logs.

    They are when the role became active there, when the last job had a worker, and when the last job sent its
    first fetch.
    """
    topic = ControlTopics(moving.two.names[home]).control.name
    records = asyncio.run(read_all(moving.two.bootstrap(home, "regional"), topic))
    events = [codec.control_event(record.value) for record in records if record.value]
    active = min(e.at_ms for e in events if isinstance(e, RolePut) and (e.plan, e.state) == (plan, ACTIVE))
    jobs = [str(JobId(Kind.DISPATCH, moving.key(), moving.topic, number)) for number in range(PARTITIONS)]
    assigned_ms = [e.at_ms for e in events if isinstance(e, Assignment) and e.job in jobs and e.worker]
    flows = [
        at_ms
        for worker in moving.two.running(home)
        for job, at_ms in _flowing(worker)
        if job in jobs and at_ms >= active
    ]
    return {
        "role active": active,
        "jobs given": max(at_ms for at_ms in assigned_ms if at_ms >= active),
        "jobs flow": max(flows),
    }


def _flowing(worker: Process) -> Iterator[tuple[str, float]]:
    for line in worker.log.read_text(errors="replace").splitlines():
        if found := FLOWS.match(line):
            at = datetime.fromisoformat(found[1])
            yield found[2], at.timestamp() * 1000
