"""The failover story: two regions with real brokers, traffic into both, and a workload that is active in
one. A whole region is killed, the other one takes over, and the lost one returns and takes the workload
back. Then every message is counted.

switchyard demo --story failover [--once]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack

import structlog
from rich.console import Console
from rich.table import Table

from app.dev.demo.audit_summary import WINDOW, Audited, plan, until_counted
from app.dev.demo.failover_report import Balance, Switch, active_active, active_passive
from app.dev.demo.failover_traffic import ACTIVE, PASSIVE, MovingWorkloads, now_ms
from app.dev.demo.two_regions import TwoRegions
from app.dev.yard import Yard
from app.kernel.json_types import JsonMapping

TOPIC = "orders"
PER_SECOND = {"east": 300.0, "west": 100.0}
WARM_S, BETWEEN_S, SETTLE_S = 8.0, 6.0, 2.0
TIERS = (
    "regional",
    "aggregate",
)  # finished messages are shared between the regions, so the consumers' tier is not compared
LOST, BACK = "east was killed", "failback to east"

err = Console(stderr=True)


def play(*, once: bool) -> int:
    """Plays the story; returns the exit code. Raises StageError, YardError."""
    _hush()
    _print_step(1, "starting real Kafka: 4 brokers in 2 regions, east and west")
    with Yard(regions=2) as yard:
        two = TwoRegions(yard, TOPIC, plain=True)
        try:
            return _play(two, once=once)
        finally:
            two.close()


def _play(two: TwoRegions, *, once: bool) -> int:
    _print_step(2, "starting a worker and receivers in each region")
    two.start()
    for home, worker in two.workers.items():
        err.print(f"   {home}: {worker.url}", highlight=False)
    moving = MovingWorkloads(two, TOPIC)
    moving.start()
    err.print(
        f"   {PASSIVE}/{TOPIC} is active in east only, {ACTIVE}/{TOPIC} in both; the definitions are the same"
    )
    regional = [f"{name}-regional" for name in two.names.values()]
    for home, name in two.names.items():
        counted = plan(TOPIC, TOPIC, tiers=list(TIERS), clusters=[*regional, f"{name}-aggregate"])
        two.stages[home].deploy(two.workers[home], counted)
    with ExitStack() as stack:
        writers = [stack.enter_context(writer) for writer in moving.writers(PER_SECOND).values()]
        _print_step(
            3, f"messages are written in both regions, {sum(PER_SECOND.values()):.0f}/s; each has all of them"
        )
        moving.until_flows("east", now_ms())
        time.sleep(WARM_S)
        switches = [_lose(two, moving)]
        moving.until_flows("west", now_ms())
        time.sleep(BETWEEN_S)
        _return(two, moving)
        switches.append(_fail_back(moving))
        time.sleep(BETWEEN_S)
    _print_step(7, "no more is written; every message is counted")
    sent = {name for writer in writers for name in writer.sent}
    unknown = sum(len(writer.failed) for writer in writers)
    moving.until_delivered(sent, SETTLE_S)
    records = moving.records()
    lines = {
        group: {home: journal.read() for home, journal in homes.items()}
        for group, homes in moving.journals.items()
    }
    balances = {
        f"{PASSIVE}, active-passive": active_passive(sent, records, lines[PASSIVE], switches),
        f"{ACTIVE}, active-active": active_active(sent, records, lines[ACTIVE], switches),
    }
    many = records.total()
    audited = {home: until_counted(two.workers[home], TOPIC, many, TIERS) for home in two.workers}
    sound = report(balances, unknown)
    sound = print_audit(audited, many) and sound
    Console().print("[green]sound[/green]" if sound else "[red]NOT sound[/red]")
    if not once:
        _stay(two)
    return 0 if sound else 1


def _lose(two: TwoRegions, moving: MovingWorkloads) -> Switch:
    _print_step(4, "kill -9 of all of east: both brokers, the worker, the receivers")
    killed_ms = now_ms()
    two.lose("east")
    began_ms = now_ms()
    err.print(f"   [bold]switchyard failover plan --to {two.names['west']} --force[/bold]   (asked in west)")
    plan = moving.plan("west", force=True)
    _print_plan(plan)
    err.print(f"   [bold]switchyard failover execute {plan['id']}[/bold]")
    moving.execute("west", plan["id"])
    first = moving.until_flows("west", began_ms)
    took_s = (max(first.values()) - began_ms) / 1000
    moving.until_done("west", plan["id"])
    err.print(f"   every partition had its first message in west {took_s:.1f} s after the first command")
    return Switch(LOST, killed_ms)


def _return(two: TwoRegions, moving: MovingWorkloads) -> None:
    _print_step(5, "east comes back: its brokers with the logs they had, a worker, its receivers")
    two.bring_back("east")
    waited_s = moving.until_role("west", ("east",))
    err.print(
        f"   {waited_s:.1f} s after its worker was ready it knows that west acts for {PASSIVE}/{TOPIC}; "
        "until then it does nothing by what it knew"
    )
    moving.until_flows("east", now_ms(), ACTIVE)


def _fail_back(moving: MovingWorkloads) -> Switch:
    _print_step(6, "back to east, in order: west lets go, its last positions come over, then east goes on")
    began_ms = now_ms()
    err.print("   [bold]switchyard failover failback[/bold]   (asked in east)")
    plan = moving.failback("east")
    _print_plan(plan)
    err.print(f"   [bold]switchyard failover execute {plan['id']}[/bold]")
    moving.execute("east", plan["id"])
    done = moving.until_done("east", plan["id"])
    err.print(f"   done: {done['result']}", highlight=False)
    first = moving.until_flows("east", began_ms)
    took_s = (max(first.values()) - began_ms) / 1000
    err.print(f"   every partition had its first message in east {took_s:.1f} s after the first command")
    return Switch(BACK, began_ms)


def _print_plan(run: JsonMapping) -> None:
    columns = ("partition", "goes on at", "again", "passed over", "not here yet, at least", "lag")
    keys = ("partition", "next_offset", "again", "passed_over", "not_replicated", "lag")
    table = Table(*columns, title=f"{run['id']}: {PASSIVE}/{TOPIC}", title_justify="left")
    for one in run["plan"]["workloads"]:
        if one["workload"].startswith(f"{PASSIVE}/"):
            for row in one["partitions"]:
                table.add_row(*("unknown" if row[key] is None else f"{row[key]:,}" for key in keys))
    err.print(table)


def report(balances: Mapping[str, Balance], unknown: int) -> bool:
    """Prints the report to stdout; returns whether every figure is right."""
    table = Table("what", *balances, "must be", title="Switchyard: a region was lost", title_justify="left")

    def row(name: str, figures: list[int], must: str = "") -> None:
        table.add_row(name, *(f"{figure:,}" for figure in figures), must)

    every = list(balances.values())
    row("messages", [one.messages for one in every])
    row("sent twice", [one.sent_twice for one in every])
    for home in every[0].delivered:
        row(f"delivered in {home}", [one.delivered[home] for one in every])
    row("lost", [len(one.lost) for one in every], "0")
    row("by a replaced role", [len(one.stale) for one in every], "0")
    row("regions of an epoch", [max(map(len, one.epochs.values()), default=0) for one in every], "1")
    row("read again", [one.read_again for one in every])
    for switch in every[0].again:
        row(f"  {switch}", [one.again[switch].count for one in every])
    Console().print(table)
    for name, one in balances.items():
        for switch, again in one.again.items():
            if again.count:
                Console().print(
                    f"{name}: {again.count:,} read again after {switch}; the oldest had been delivered "
                    f"{again.oldest_s:.2f} s before.", highlight=False, soft_wrap=True,
                )  # fmt: skip
    if unknown:
        Console().print(
            f"{unknown:,} messages were never acknowledged to their producer; they may be anywhere."
        )
    return all(one.sound for one in every)


def print_audit(audited: Mapping[str, Audited], records: int) -> bool:
    """Prints the audit of each region; returns whether all records are in each."""
    for home, found in audited.items():
        counted = min(found.tiers.get(tier, 0) for tier in TIERS)
        Console().print(
            f"audited in {home}: {counted:,} of {records:,} records of both regions, lost {found.missing:,}. "
            f"Compared in windows of {WINDOW}, regional clusters with {home}'s aggregate: {found.describe}.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    return all(found.is_all(records, TIERS) for found in audited.values())


def _hush() -> None:
    """Silences the producers' Kafka client, whose messages about missing brokers would bury the story."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for name in ("aiokafka", "asyncio", "switchyard.producer"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _print_step(number: int, text: str) -> None:
    err.print(f"[bold]{number}.[/bold] {text}", highlight=False)


def _stay(two: TwoRegions) -> None:
    urls = " and ".join(worker.url for worker in two.workers.values())
    err.print(f"   the consoles are at {urls} until Ctrl-C", highlight=False)
    while all(worker.running for worker in two.workers.values()):
        time.sleep(0.5)
