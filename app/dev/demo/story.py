"""The story: real brokers, and two workers that copy a topic and deliver it to a receiver that sometimes
fails. One worker is killed on the way.

With `--report DIR`, Spark's jobs run over the story's data and write their reports there
(`spark_reports`). `--story failover` plays another story, in which one of two regions is lost and returns
(`failover_story`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.dev.demo import MIN_MESSAGES, failover_story, spark_reports
from app.dev.demo.audit_summary import WINDOW, Audited, plan, until_counted
from app.dev.demo.background_thread import Background
from app.dev.demo.report import StoryReport, count
from app.dev.demo.stage import DemoStage, Process, StageError, route, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, messages, produce, read_all
from app.dev.yard import Yard, YardError

SOURCE, TARGET, ROUTE = "east-regional", "east-aggregate", "east-up"
GROUP, TOPIC, PARTITIONS = "billing", "orders", 4
RETRY = [{"delay": "1s", "attempts": 3}, {"delay": "5s", "attempts": 3}]
COPYING = PARTITIONS * 3  # copies, and audits of both clusters
JOBS = COPYING + PARTITIONS * (1 + len(RETRY))  # deliveries, and retries of each tier
AUDITED = ("regional", "aggregate", "consumer")  # tiers
EXIT_INTERRUPTED = 130
LAST_SHARE, LAST_PER_SECOND = MIN_MESSAGES, 100.0
MAX_IN_FLIGHT = 200
SETTLE_S, SHARED_S = 120.0, 30.0
# After kill -9 the messages in flight, and those acknowledged since the last snapshot, may be delivered
# again. A snapshot is due every 0.1 s; while the control cluster is slow, deliveries stop after 0.5 s.
SNAPSHOT_BOUND_S = 0.6

err = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `switchyard demo`.

    Attributes:
        story: "delivery" or "failover".
        report: The folder for Spark's reports; None for none.
    """

    story: str
    once: bool
    report: Path | None
    messages: int
    regions: int


def play(options: Options) -> int:
    """Plays the story; returns the exit code."""
    try:
        return failover_story.play(once=options.once) if options.story == "failover" else _play(options)
    except (StageError, YardError) as error:
        err.print(f"[red]the demo cannot go on:[/red] {error}", markup=True, highlight=False)
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED if options.once else 0  # without `once`, Ctrl-C is the normal end


class Last(Background):
    """Produces the last messages slowly: an audit's window ends only when later messages arrive."""

    def __init__(self, bootstrap: str, sent: list[SentMessage]) -> None:
        super().__init__()
        self._bootstrap, self._sent = bootstrap, sent

    def work(self) -> None:
        """Produces them."""
        asyncio.run(produce(self._bootstrap, TOPIC, self._sent, per_second=LAST_PER_SECOND))


def _play(options: Options) -> int:
    err.print(
        f"[bold]1.[/bold] starting real Kafka: {2 * options.regions} brokers in {options.regions} region(s)"
    )
    with Yard(regions=options.regions) as yard, DemoStage(yard) as stage:
        stage.settings["worker"] = {"grace": "10s"}
        run = spark_reports.new_run(options.report) if options.report else None
        if run:
            _name_archive(stage, spark_reports.archive_of(run))
        source, bootstrap = yard.bootstrap(SOURCE), yard.bootstrap(TARGET)
        asyncio.run(create_topic(source, TOPIC, PARTITIONS))
        err.print("[bold]2.[/bold] starting a receiver and two workers (faust -A app worker)")
        receiver = stage.receiver(GROUP, TOPIC)
        first, second = (stage.worker(wait=False) for _ in range(2))
        for worker in (first, second):
            stage.wait_ready(worker)
            err.print(f"   {worker.name} is ready")
        err.print(f"   console: [link={first.url}]{first.url}[/link]", highlight=False)
        stage.deploy(first, plan(TOPIC, TOPIC))
        stage.deploy(first, route(ROUTE, SOURCE, TARGET, TOPIC))
        wait_until(lambda: first.jobs().total() == COPYING, SHARED_S, lambda: str(first.jobs()))
        err.print(f"   {TOPIC} is copied from {SOURCE} to {TARGET}, which made the topic there; "
                  "every record is counted in both, and once it is delivered")  # fmt: skip
        flow = {"max_inflight": MAX_IN_FLIGHT}
        stage.deploy(first, workload(GROUP, TOPIC, TARGET, receiver.address, retry=RETRY, flow=flow))

        def is_shared() -> bool:
            shares = first.jobs()
            return shares.total() == JOBS and set(shares) == {first.url, second.url}

        wait_until(is_shared, SHARED_S, lambda: str(first.jobs()))
        shares = first.jobs()
        err.print(
            f"   they share: {shares[first.url]} jobs on {first.name}, {shares[second.url]} on {second.name}"
        )
        err.print(f"[bold]3.[/bold] {options.messages:,} messages: 1 % poison, 2 % retryable, some slow; "
                  "a third of the way, one worker is killed with -9")  # fmt: skip
        sent = list(messages(options.messages))
        last = len(sent) // LAST_SHARE
        asyncio.run(produce(source, TOPIC, sent[:-last]))
        started_s = time.monotonic()
        with Last(source, sent[-last:]):
            rate, third = _until_settled(stage, sent, first, second)
        took_s = time.monotonic() - started_s
        dead = [
            orjson.loads(record.value)["id"]
            for record in asyncio.run(read_all(bootstrap, f"{TOPIC}__{GROUP}__dlq"))
        ]
        copies = asyncio.run(read_all(bootstrap, TOPIC))
        copied = [orjson.loads(record.value)["id"] for record in copies]
        report = count(sent, stage.deliveries(), dead)
        bound = round(MAX_IN_FLIGHT + rate * SNAPSHOT_BOUND_S)
        audited = until_counted(first, TOPIC, report.produced, AUDITED)
        sound = _print(report, copied, audited, took_s, bound)
        if run and options.report:
            times = spark_reports.middle([record.timestamp for record in copies])
            story = spark_reports.Story(TOPIC, SOURCE, TARGET, first.url, report.produced, *times)
            sound = _reported(yard, options.report, run, story) and sound
        for process in (first, third):
            code = process.terminate()
            sound = sound and code == 0
            err.print(f"   {process.name} drained and ended with {code}")
        if options.once:
            return 0 if sound else 1
        return _stay(stage, source, receiver)


def _until_settled(
    stage: DemoStage, sent: list[SentMessage], witness: Process, victim: Process
) -> tuple[float, Process]:
    """Waits until every id was delivered or stashed; kills `victim` on the way and starts another worker.

    Returns: deliveries per second just before the kill, and the new worker.
    """
    wanted = {message.id for message in sent}
    final: set[str] = set()
    deadline_s = time.monotonic() + SETTLE_S  # extended by each delivery
    replacement: Process | None = None
    moving = 0
    rate, began_s, killed_s = 0.0, 0.0, 0.0
    columns = (TextColumn("   delivered"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=len(wanted))
        while True:
            deliveries = stage.deliveries()
            known, final = len(final), {d["id"] for d in deliveries if d["outcome"] in {"ok", "poison"}}
            progress.update(task, completed=len(final & wanted))
            now_s = time.monotonic()
            if len(final) > known:
                deadline_s = now_s + SETTLE_S
            began_s = began_s or (now_s if deliveries else 0.0)
            if replacement is None and len(final) >= len(wanted) / 3:
                rate = len(deliveries) / max(0.1, now_s - began_s)
                moving = witness.jobs()[victim.url]
                victim.kill()
                killed_s = time.monotonic()
                err.print(f"   killed {victim.name} with -9 after {len(deliveries):,} deliveries")
                replacement = stage.worker(wait=False)
            if moving and not {"", victim.url} & set(witness.jobs()):
                took_s = time.monotonic() - killed_s
                err.print(f"   {took_s:.1f} s later other workers have its {moving} jobs")
                moving = 0
            if wanted <= final and replacement is not None:
                time.sleep(1.0)  # repeats arrive now, and must be counted
                return rate, replacement
            if now_s > deadline_s:
                missing = sorted(wanted - final)
                raise StageError(
                    f"for {SETTLE_S:.0f} s none came, and {len(missing)} are missing, such as {missing[:3]}"
                )
            time.sleep(0.2)


def _print(report: StoryReport, copied: list[str], audited: Audited, took_s: float, bound: int) -> bool:
    """Prints the report to stdout; returns whether every figure is right."""
    replicated, twice = len(set(copied)), len(copied) - len(set(copied))
    within = report.duplicates <= bound and replicated == report.produced and not twice
    is_audited = audited.is_all(report.produced, AUDITED)
    table = Table("what", "messages", "must be", title="Switchyard: the report", title_justify="left")
    rows: list[tuple[str, int, str]] = [
        ("produced", report.produced, ""),
        ("replicated", replicated, "all of them"),
        ("copied twice", twice, "0"),
        ("delivered", report.delivered, ""),
        ("retried", report.retried, ""),
        ("dead-lettered", report.dead_lettered, "the poison"),
        ("lost", len(report.lost), "0"),
        ("in the wrong place", len(report.unexpected), "0"),
        ("duplicates", report.duplicates, f"at most {bound}"),
        *((f"audited: {tier}", audited.tiers.get(tier, 0), "all of them") for tier in AUDITED),
        ("audited: lost", audited.missing, "0"),
        ("audited: too many", audited.extra, "0"),
    ]
    for name, figure, must in rows:
        table.add_row(name, f"{figure:,}", must)
    Console().print(table)
    Console().print(
        f"{report.produced:,} messages in {took_s:.1f} s. Duplicates are what the killed worker had in "
        "flight, and what was acknowledged to it since its last snapshot.", highlight=False, soft_wrap=True,
    )  # fmt: skip
    Console().print(
        f"audited: {min(audited.tiers.get(tier, 0) for tier in AUDITED):,} of {report.produced:,}, lost "
        f"{audited.missing:,}. Compared in windows of {WINDOW}, tier by tier: {audited.describe}.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    verdict = report.sound and within and is_audited
    Console().print("[green]sound[/green]" if verdict else "[red]NOT sound[/red]")
    return verdict


def _name_archive(stage: DemoStage, folder: Path) -> None:
    """Configures the workers with the future archive of the source cluster."""
    clusters = orjson.loads(stage.config().read_bytes())["clusters"]
    stage.settings["clusters"] = [
        {**one, "archive": str(folder)} if one["name"] == SOURCE else one for one in clusters
    ]


def _reported(yard: Yard, folder: Path, run: Path, story: spark_reports.Story) -> bool:
    """Runs Spark's jobs; returns whether all found the expected results."""
    err.print(f"   Spark's jobs read what the story has left; their reports come to {folder}",
              highlight=False, soft_wrap=True)  # fmt: skip
    names = [step.name for step in spark_reports.steps(yard, folder, run, story)]
    table = Table("report", "s", "what it says", title="Switchyard: Spark's reports", title_justify="left")
    sound, columns = True, (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task(names[0], total=len(names))
        for number, ended in enumerate(spark_reports.make(yard, folder, run, story), 1):
            progress.update(task, completed=number, description=(names[number:] or ["done"])[0])
            at = f"   {number} of {len(names)}: {ended.name}, {ended.took_s:.0f} s: {ended.says}"
            err.print(at, markup=False, highlight=False, soft_wrap=True)
            table.add_row(ended.name, f"{ended.took_s:.0f}", ended.says, style="" if ended.sound else "red")
            sound = sound and ended.sound
    Console().print(table)
    Console().print(f"read {folder / 'report.html'}; sizes: {folder / 'size.json'}; words: {folder}/*.log",
                    highlight=False, soft_wrap=True)  # fmt: skip
    return sound


def _stay(stage: DemoStage, bootstrap: str, receiver: Process) -> int:
    """Continues with light traffic until Ctrl-C."""
    worker = stage.worker()
    err.print(f"[bold]4.[/bold] the console is at {worker.url} ; light traffic goes on until Ctrl-C")
    err.print(f"   receiver at {receiver.address}, its journal is {stage.journal}")
    err.print(f"   what arrived, tier by tier: {worker.url}/audit/{TOPIC}", highlight=False)
    round_number = 0
    while worker.running:
        asyncio.run(produce(bootstrap, TOPIC, messages(100, prefix=f"live-{round_number}"), per_second=100))
        round_number += 1
        time.sleep(0.5)
    sys.stderr.write(worker.tail() + "\n")
    return 1
