"""Runs a soak: traffic without a pause, incidents as the plan has them, then the balance.

    SoakRun(stage, seed, for_s, prefix).run() -> Outcome

The rate adapts to the machine: a workload with a backlog gets no new messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson
import psutil
from aiokafka import AIOKafkaProducer

from app.dev.demo.stage import DemoStage, Process, free_port, http, wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from tests.system.soak.account import Account, IncidentHit, balance
from tests.system.soak.book import Book, Dead, Sent
from tests.system.soak.plan import LOTS, Incident, Kind, Lot, incidents

CLUSTERS = ("east-aggregate", "east-regional")  # the data's and the control topics'
GROUP = "soak"
TICK_S = 0.1
RATE = 50.0  # a workload, messages a second
MAX_BACKLOG = 150  # of a workload
SETTLE_S = 90.0
QUIET_S = 1.0
STALL_MS = 1000.0
TERM_S = 30.0
SIGNALS = {
    Kind.AWAY: (signal.SIGUSR1, signal.SIGURG), Kind.OVERLOAD: (signal.SIGUSR2, signal.SIGURG),
    Kind.RECEIVER_PAUSE: (signal.SIGSTOP, signal.SIGCONT),
}  # fmt: skip
VICTIMS = {
    Kind.BROKER_PAUSE: "broker",
    Kind.WORKER_TERM: "worker",
    Kind.WORKER_KILL: "worker",
}  # else receivers


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a soak. `memory` has (seconds, megabytes) for each worker."""

    seed: int
    account: Account
    happened: tuple[IncidentHit, ...]
    stories: tuple[str, ...]  # of what does not balance
    lag: str  # offsets that are not committed
    troubles: tuple[str, ...]
    memory: dict[str, list[tuple[float, float]]]
    took_s: float


@dataclass
class SoakRun:
    """One soak on a stage."""

    stage: DemoStage
    seed: int
    for_s: float
    prefix: str
    say: Callable[[str], None] = lambda text: None
    book: Book = field(default_factory=Book)
    happened: list[IncidentHit] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    receivers: list[Process] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bootstrap = self.stage.yard.bootstrap(CLUSTERS[0])
        self._journal_at = 0
        self._count = itertools.count(1)
        self._backlog = {lot.name: 0 for lot in LOTS}
        self._began_ms = 0.0
        self._killed: list[tuple[int, float]] = []
        self._locks: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)

    def run(self) -> Outcome:
        """Runs everything and returns the outcome."""
        began_s = time.monotonic()
        self.stage.journal.touch()
        self.receivers = [self._receiver(which, free_port()) for which in range(2)]
        self.workers = [self.stage.worker(f"worker-{next(self._count)}", wait=False) for _ in range(2)]
        asyncio.run(self._topics())
        for worker in self.workers:
            self.stage.wait_ready(worker)
        for receiver in self.receivers:
            self._wait_listening(receiver)
        for lot in LOTS:
            self.stage.deploy(self.workers[0], self._definition(lot))
        self.say(f"seed {self.seed}: {self.for_s:.0f} s of traffic and trouble")
        self._began_ms = _now_ms()
        asyncio.run(self._soak())
        self._settle()
        lag = self._wait_committed()
        if lag:
            self.troubles.append(self._describe_workers())
        time.sleep(QUIET_S)  # what is delivered twice, or moved twice, comes now
        self._read_journal()
        for pid, at_ms in self._killed:
            self.book.died(pid, at_ms)
        dead = [one for lot in LOTS for one in self._dead(lot)]
        account = balance(self.book, dead, self.happened, LOTS)
        return Outcome(
            self.seed, account, tuple(self.happened), tuple(self._stories(account)), lag,
            tuple(self.troubles), self.memory, time.monotonic() - began_s,
        )  # fmt: skip

    # -- the stage -------------------------------------------------------------------------------

    def topic(self, lot: Lot) -> str:
        """The topic of a workload."""
        return f"{self.prefix}-{lot.name}"

    async def _topics(self) -> None:
        for lot in LOTS:
            await create_topic(self.bootstrap, self.topic(lot), lot.partitions)

    def _definition(self, lot: Lot) -> dict[str, object]:
        spec = dict(lot.spec)
        target = {"timeout": f"{lot.timeout_s:g}s", **spec.pop("target", {})}
        address = self.receivers[lot.receiver].address
        return workload(GROUP, self.topic(lot), CLUSTERS[0], address, target=target, **spec)

    def _receiver(self, which: int, port: int) -> Process:
        command = [sys.executable, "-m", "tests.system.soak.receiver", "--seed", str(self.seed),
                   "--journal", str(self.stage.journal), "--group", GROUP, "--port", str(port)]  # fmt: skip
        command += [part for lot in LOTS if lot.receiver == which for part in ("--topic", self.topic(lot))]
        return self.stage.start(f"receiver-{which}-{next(self._count)}", command, port=port)

    @staticmethod
    def _wait_listening(process: Process) -> None:
        def listening() -> bool:
            lines = process.log.read_text(errors="replace").splitlines()
            addresses = [json.loads(line)["address"] for line in lines if line.startswith("{")]
            process.address = addresses[-1] if addresses else ""
            return bool(addresses)

        wait_until(listening, 120.0, lambda: f"{process.name} does not listen:\n{process.tail()}")

    # -- traffic ---------------------------------------------------------------------------------

    async def _soak(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        planned = [loop.create_task(self._hit(one, began_s)) for one in incidents(self.seed, self.for_s)]
        watching = loop.create_task(self._watch())
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True, linger_ms=5
        ) as producer:
            sending = [loop.create_task(self._send(producer, lot, began_s)) for lot in LOTS]
            await asyncio.gather(*sending, *planned)
        watching.cancel()

    async def _send(self, producer: AIOKafkaProducer, lot: Lot, began_s: float) -> None:
        loop, topic = asyncio.get_running_loop(), self.topic(lot)
        messages = lot.messages(self.seed)
        waiting: list[asyncio.Task[None]] = []
        while loop.time() < began_s + self.for_s:
            if self._backlog[lot.name] < MAX_BACKLOG:
                for name, key in itertools.islice(messages, round(RATE * TICK_S)):
                    self._backlog[lot.name] += 1
                    sent = await producer.send(topic, name.encode(), key=key)
                    waiting.append(loop.create_task(self._note(sent, lot, name, key.decode())))
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*waiting)

    async def _note(self, sent: asyncio.Future[object], lot: Lot, name: str, key: str) -> None:
        where = await sent
        self.book.sent[name] = Sent(name, lot.name, key, where.partition, where.offset)  # type: ignore[attr-defined]

    async def _watch(self) -> None:
        """Reads the journal for the backlog, samples memory, and checks that every worker answers."""
        pinged: set[int] = set()
        pings: list[asyncio.Task[None]] = []
        while True:
            self._read_journal()
            self._backlog = {lot.name: 0 for lot in LOTS}
            ended = self.book.ended | self.book.stashed
            for sent in self.book.sent.values():
                self._backlog[sent.lot] += sent.id not in ended
            for worker in self.workers:
                if worker.port not in pinged:
                    pinged.add(worker.port)
                    pings.append(asyncio.create_task(self._ping(worker)))
                try:
                    resident = psutil.Process(worker.popen.pid).memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue
                self.memory.setdefault(worker.name, []).append(((_now_ms() - self._began_ms) / 1e3, resident))
            await asyncio.sleep(10 * TICK_S)

    async def _ping(self, worker: Process) -> None:
        """Notes each time when the worker answers too late, while it runs."""
        while worker.running:
            from_ms = _now_ms()
            with contextlib.suppress(OSError):
                await asyncio.to_thread(http, "GET", f"{worker.url}/health/live")
                if _now_ms() - from_ms > STALL_MS:
                    self.happened.append(IncidentHit(Kind.WORKER_STALL, from_ms, _now_ms()))
            await asyncio.sleep(TICK_S)

    def _read_journal(self) -> None:
        with self.stage.journal.open("rb") as file:
            file.seek(self._journal_at)
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        self._journal_at += len(whole) + bool(whole)
        self.book.feed(orjson.loads(line) for line in whole.split(b"\n") if line)

    # -- incidents -------------------------------------------------------------------------------

    async def _hit(self, incident: Incident, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + incident.at_s - asyncio.get_running_loop().time()))
        victim_kind = VICTIMS.get(incident.kind, "receiver")
        # A slow machine starts a successor longer than the plan has until the next incident of its place.
        async with self._locks[victim_kind, incident.which]:
            self.say(f"{incident.at_s:5.1f} s  {incident.kind} {incident.which} for {incident.for_s:.1f} s")
            from_ms = _now_ms()
            to_ms = await self._strike(incident)
        receiver = incident.which if victim_kind == "receiver" else None
        self.happened.append(IncidentHit(incident.kind, from_ms, to_ms, receiver))

    async def _strike(self, incident: Incident) -> float:
        """Carries out the incident; returns when it was over."""
        # Processes are started by the main thread: they die with the thread that started them.
        which, kind = incident.which, incident.kind
        match kind:
            case Kind.BROKER_PAUSE:
                self.stage.yard.pause(CLUSTERS[which])
                await asyncio.sleep(incident.for_s)
                await asyncio.to_thread(self.stage.yard.resume, CLUSTERS[which])
            case Kind.WORKER_KILL | Kind.WORKER_TERM:
                return await self._replace(which, kind)
            case Kind.RECEIVER_KILL:
                receiver = self.receivers[which]
                receiver.kill()
                self._killed.append((receiver.popen.pid, _now_ms()))
                await asyncio.sleep(incident.for_s)
                self.receivers[which] = self._receiver(which, receiver.port)
                await asyncio.to_thread(self._wait_listening, self.receivers[which])
            case _:
                first, then = SIGNALS[kind]
                self.receivers[which].signal(first)
                await asyncio.sleep(incident.for_s)
                self.receivers[which].signal(then)
        return _now_ms()

    async def _replace(self, which: int, kind: Kind) -> float:
        victim = self.workers[which]
        if kind is Kind.WORKER_KILL:
            victim.kill()
        gone_ms = _now_ms()
        self.workers[which] = successor = self.stage.worker(f"worker-{next(self._count)}", wait=False)
        if kind is Kind.WORKER_TERM:
            try:
                code = await asyncio.to_thread(victim.terminate, TERM_S)
            except subprocess.TimeoutExpired:
                self.troubles.append(f"{victim.name} still runs {TERM_S} s after SIGTERM:\n{victim.tail(40)}")
                victim.kill()
            else:
                if code:
                    self.troubles.append(f"{victim.name} ended with {code} on SIGTERM:\n{victim.tail(40)}")
        await asyncio.to_thread(self.stage.wait_ready, successor)
        return gone_ms

    # -- the end ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Waits until every message has an end, or until `SETTLE_S` have passed."""
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            self._read_journal()
            open_ids = self.book.sent.keys() - self.book.ended
            if not open_ids - {one.id for lot in LOTS for one in self._dead(lot)}:
                return
            time.sleep(1.0)

    def _dead(self, lot: Lot) -> Iterator[Dead]:
        for record in asyncio.run(read_all(self.bootstrap, f"{self.topic(lot)}__{GROUP}__dlq")):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            yield Dead(
                record.value.decode(), headers.get("switchyard-code", ""),
                headers.get("switchyard-reason", ""), float(headers.get("switchyard-moved-at", "inf")),
            )  # fmt: skip

    def _wait_committed(self) -> str:
        """Waits until the group has committed the end of every log that it reads; returns the lag that is
        left.
        """
        lag = ""
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            lag = asyncio.run(self._lag())
            if not lag:
                break
            time.sleep(0.5)
        return lag

    async def _lag(self) -> str:
        client = ClusterClient(ClusterSpec("soak", (self.bootstrap,)))
        await client.start()
        try:
            topics = await client.topics()
            logs = [self.topic(lot) for lot in LOTS]
            logs += [t for t in topics for lot in LOTS if t.startswith(f"{self.topic(lot)}__{GROUP}__retry_")]
            at = [(topic, partition) for topic in logs for partition in range(topics[topic])]
            done = await OffsetCommitter(client).committed(GROUP, at)
            ends = await client.end_offsets(at)
            missing = [one for one in at if ends[one] and done[one] != ends[one]]
            return ", ".join(f"{t}/{p}: {done[t, p]} of {ends[t, p]}" for t, p in missing)
        finally:
            await client.stop()

    def _describe_workers(self) -> str:
        """The workers' jobs and the ends of their logs, for people."""
        words = []
        for worker in self.workers:
            _, jobs = http("GET", f"{worker.url}/api/v1/assignments?limit=1000")
            words += [f"{worker.name}: {item}" for item in jobs["items"]]
            words.append(worker.tail(40))
        return "\n".join(words)

    def _stories(self, account: Account) -> Iterator[str]:
        for what, names in (("lost", account.lost), ("unexplained", account.unexplained)):
            for name in names[:20]:
                yield f"{what} {self.book.story(name, self._began_ms)}"
                yield from self._copies(name)

    def _copies(self, name: str) -> Iterator[str]:
        """The copies of a message in retry topics and the DLQ."""
        lot = next(lot for lot in LOTS if lot.name == self.book.sent[name].lot)
        tiers = [f"retry_{number + 1}" for number in range(len(lot.spec.get("retry", ())))]
        for stem in [*tiers, "dlq"]:
            for record in asyncio.run(read_all(self.bootstrap, f"{self.topic(lot)}__{GROUP}__{stem}")):
                if record.value == name.encode():
                    headers = {key: value.decode() for key, value in record.headers}
                    at_s = (record.timestamp - self._began_ms) / 1e3
                    yield f"    in {stem} at {record.partition}/{record.offset}, {at_s:.2f} s: {headers}"


def _now_ms() -> float:
    return time.time_ns() / 1e6
