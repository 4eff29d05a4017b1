"""The yard: one or two regions of two clusters each, whose brokers start, stop and fail by name.

Every operation that changes the yard holds one lock and is bounded in time; brokers start and stop in
parallel. A failed start ends the brokers that it started, and raises with the end of the broker's log. The
running brokers are read from the process table each time, so a broker killed by someone else is simply down.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from app.dev.yard import progress
from app.dev.yard.broker import Broker, Kit, choose_ports, is_free
from app.dev.yard.errors import PortTakenError, UnknownClusterError, YardError, YardTimeoutError
from app.dev.yard.jars import JarSet, file_lock, switchyard_home
from app.dev.yard.java import find_java
from app.dev.yard.probe import answers
from app.dev.yard.processes import POLL_INTERVAL_S, own_module, running, send, wait_gone, wait_stopped
from app.dev.yard.security import YardSecurity

REGIONS = ("east", "west")
TIERS = ("regional", "aggregate")
START_TIMEOUT_S = 90.0  # six seconds on a quiet machine, more on a loaded one
STOP_TIMEOUT_S = 30.0  # then kill -9, because a broker may wait for another one that is down
KILL_TIMEOUT_S = 10.0
WARDEN_TIMEOUT_S = 20.0
PORTS_TIMEOUT_S = 5.0  # the kernel frees a killed broker's ports after a moment
START_ATTEMPTS = 3  # a port that was free may be taken before Kafka binds it


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """One cluster of the yard; `pid` is None while its broker does not run."""

    cluster: str
    region: str
    tier: str
    bootstrap: str
    pid: int | None
    data_dir: Path
    log: Path


class Yard:
    """Real Kafka brokers on this machine.

    `home` has data, logs and ports; without it the yard uses a temporary folder, which `down` removes.
    `regions` is 1 (two clusters) or 2 (four). With `port_base` brokers listen on port_base … +3 and
    controllers on +4 … +7, otherwise on free ports. `detached` brokers outlive this process; others end
    with it, even if it is killed. With `security` clients must log in. `settings` are for the brokers, and
    override the yard's own. `kit` is what brokers start with; None before the first start, unless it was set.
    """

    def __init__(
        self,
        home: Path | None = None,
        regions: int = 2,
        *,
        port_base: int | None = None,
        detached: bool = False,
        security: YardSecurity | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= regions <= len(REGIONS):
            msg = f"regions is {regions}; it must be 1 or 2"
            raise ValueError(msg)
        if port_base is not None and not 1024 <= port_base <= 65_000:
            msg = f"port_base is {port_base}; it must be between 1024 and 65000"
            raise ValueError(msg)
        if home is None:
            parent = switchyard_home() / "yards"
            parent.mkdir(parents=True, exist_ok=True)
        self._temporary = home is None
        self.home = (Path(tempfile.mkdtemp(dir=parent)) if home is None else home).resolve()
        self._regions = regions
        self._port_base = port_base
        self._detached = detached
        self._security = security
        self._settings = tuple((settings or {}).items())
        self.kit: Kit | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    # --- the whole yard

    def up(self, regions: int | None = None) -> list[ClusterInfo]:
        """Starts stopped brokers, resumes paused ones, and returns when all answer.

        `regions` may raise the number of regions of a running yard.
        """
        with self._lock:
            alive = running(self.home)
            in_use = {
                name.split("-")[0] for name in [*alive, *self.missing()]
            }  # an earlier run may have had more
            present = max((REGIONS.index(region) + 1 for region in in_use), default=0)
            self._regions = max(self._regions, regions or 0, present)
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            for process in alive.values():
                send(process, signal.SIGCONT)
            self._launch_and_wait(self._brokers())
            return self.clusters

    def down(self) -> None:
        """Stops every broker, those of an earlier run too, and ends the warden."""
        with self._lock:
            self._stop(running(self.home))
            for broker in self._brokers(len(REGIONS)):
                broker.wanted.unlink(missing_ok=True)
            self._end_warden()
            if self._temporary:
                shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def clusters(self) -> list[ClusterInfo]:
        """Every cluster that has been started, running or not."""
        alive = running(self.home)
        return [
            ClusterInfo(
                cluster=broker.cluster,
                region=broker.region,
                tier=broker.tier,
                bootstrap=broker.bootstrap,
                pid=alive[broker.cluster].pid if broker.cluster in alive else None,
                data_dir=broker.data_dir,
                log=broker.log,
            )
            for broker in self._brokers(len(REGIONS))
            if broker.ports() is not None
        ]

    def missing(self) -> list[str]:
        """Clusters that should run and do not: their broker died, or the machine was restarted."""
        alive = running(self.home)
        return [
            b.cluster for b in self._brokers(len(REGIONS)) if b.wanted.exists() and b.cluster not in alive
        ]

    # --- one cluster, by name

    def bootstrap(self, name: str) -> str:
        """The address "127.0.0.1:port" of a cluster; the same after stop, kill and start."""
        return self._broker(name).bootstrap

    @property
    def security(self) -> YardSecurity | None:
        """The users that may log in; None: no login."""
        return self._security

    def start(self, name: str) -> ClusterInfo:
        """Starts a stopped or killed broker on its port with its data, and waits until it answers."""
        with self._lock:
            self._launch_and_wait([self._broker(name)])
            return next(info for info in self.clusters if info.cluster == name)

    def stop(self, name: str) -> None:
        """Stops a broker with SIGTERM and waits until it has ended."""
        with self._lock:
            self._stop(self._running(name))
            self._broker(name).wanted.unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Kills a broker with SIGKILL and waits until it has ended; its data stays."""
        with self._lock:
            processes = self._running(name)
            for process in processes.values():
                send(process, signal.SIGKILL)
            self._ensure_gone(processes.values())

    def pause(self, name: str) -> None:
        """Suspends a broker with SIGSTOP: its connections stay open, and it answers no request once this
        returns."""
        with self._lock:
            for process in self._running(name).values():
                send(process, signal.SIGSTOP)
                wait_stopped(process, STOP_TIMEOUT_S)

    def resume(self, name: str) -> None:
        """Resumes a paused broker with SIGCONT, and waits until it answers again."""
        with self._lock:
            processes = self._running(name)
            for process in processes.values():
                send(process, signal.SIGCONT)
            self._wait_ready([self._broker(name)], processes)

    def tool(self, main_class: str, *arguments: str) -> list[str]:
        """The command line of one of Kafka's own tools, such as org.apache.kafka.tools.consumer.group…"""
        kit = self._prepared()
        flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [str(kit.java.executable), *flags, quiet, "-cp", kit.jars.classpath, main_class, *arguments]

    # --- inside

    def _brokers(self, regions: int | None = None) -> list[Broker]:
        return [
            Broker(self.home, f"{region}-{tier}", self._security, self._settings)
            for region in REGIONS[: regions or self._regions]
            for tier in TIERS
        ]

    def _broker(self, name: str) -> Broker:
        brokers = {broker.cluster: broker for broker in self._brokers()}
        if name not in brokers:
            msg = f"There is no cluster {name!r} in this yard; it has {', '.join(brokers)}."
            raise UnknownClusterError(msg)
        return brokers[name]

    def _running(self, name: str) -> dict[str, psutil.Process]:
        cluster = self._broker(name).cluster
        return {key: process for key, process in running(self.home).items() if key == cluster}

    def _prepared(self) -> Kit:
        if self.kit is None:
            self.kit = Kit.prepare(find_java(), JarSet.load())
            if not self.kit.classes.exists() and os.access(self.kit.jars.folder, os.W_OK):
                record_classes(self.kit)
        return self.kit

    def _launch_and_wait(self, brokers: list[Broker]) -> None:
        alive = running(self.home)
        down = [broker for broker in brokers if broker.cluster not in alive]
        if down:
            kit = self._prepared()
            self._start_warden()
        processes = dict(alive)
        try:
            for attempt in range(START_ATTEMPTS):
                for broker, ports in zip(down, self._ports(down), strict=True):
                    processes[broker.cluster] = psutil.Process(broker.launch(kit, ports))
                died = self._wait_ready(brokers, processes)
                if not died:
                    return
                in_use = all("Address already in use" in broker.log_tail() for broker in died)
                if not in_use or self._port_base is not None or attempt == START_ATTEMPTS - 1:
                    raise YardError(
                        "\n".join(
                            f"{broker.cluster} did not start. The end of {broker.log}:\n{broker.log_tail()}"
                            for broker in died
                        )
                    )
                down = died
        except BaseException:
            started = [broker.cluster for broker in brokers if broker.cluster not in alive]
            self._stop({name: p for name, p in running(self.home).items() if name in started}, grace_s=0.0)
            raise

    def _ports(self, brokers: list[Broker]) -> list[tuple[int, int]]:
        if self._port_base is not None:
            return [self._fixed_ports(broker) for broker in brokers]
        spare = iter(choose_ports(2 * len(brokers)))
        return [_former_ports(broker) or (next(spare), next(spare)) for broker in brokers]

    def _fixed_ports(self, broker: Broker) -> tuple[int, int]:
        place = [b.cluster for b in self._brokers(len(REGIONS))].index(broker.cluster)
        base = self._port_base or 0
        ports = (base + place, base + len(REGIONS) * len(TIERS) + place)
        taken = [str(port) for port in ports if not is_free(port)]
        if taken:
            msg = (
                f"{broker.cluster} cannot listen on port {' and '.join(taken)}: in use by another process.\n"
                "Choose another --port-base, or leave it out and free ports are taken."
            )
            raise PortTakenError(msg)
        return ports

    def _wait_ready(self, brokers: list[Broker], processes: Mapping[str, psutil.Process]) -> list[Broker]:
        """Waits until all answer; returns those whose process ended. Raises when the time is over."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(brokers)
        while waiting:
            login = self._security.login if self._security else None
            waiting = [broker for broker in waiting if not answers(broker.bootstrap, login=login)]
            known = {b.cluster: b for b in waiting if b.cluster in processes}
            left = wait_gone([processes[cluster] for cluster in known], 0.0)
            died = [broker for cluster, broker in known.items() if processes[cluster] not in left]
            if died:
                return died
            if waiting and time.monotonic() > deadline:
                names = ", ".join(broker.cluster for broker in waiting)
                msg = (
                    f"{names} did not answer within {START_TIMEOUT_S:.0f} s. "
                    f"The end of {waiting[0].log}:\n{waiting[0].log_tail()}"
                )
                raise YardTimeoutError(msg)
            if waiting:
                time.sleep(2 * POLL_INTERVAL_S)
        return []

    def _stop(self, processes: dict[str, psutil.Process], grace_s: float = STOP_TIMEOUT_S) -> None:
        for process in processes.values():
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # a paused process would never get the other signal
        left = wait_gone(processes.values(), grace_s)
        for process in left:
            send(process, signal.SIGKILL)
        self._ensure_gone(left)
        for name in processes:
            Broker(self.home, name).wanted.unlink(missing_ok=True)

    @staticmethod
    def _ensure_gone(processes: Iterable[psutil.Process]) -> None:
        left = wait_gone(processes, KILL_TIMEOUT_S)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            msg = f"Process {pids} is still there {KILL_TIMEOUT_S:.0f} s after kill -9: the kernel holds it."
            raise YardError(msg)

    def _start_warden(self) -> None:
        if self._detached or (self._warden is not None and self._warden.poll() is None):
            return
        command, environment = own_module(
            "app.dev.yard.warden", str(self.home), "remove" if self._temporary else "keep"
        )
        self._warden = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def _end_warden(self) -> None:
        warden, self._warden = self._warden, None
        if warden is None:
            return
        if warden.stdin is not None:
            warden.stdin.close()
        try:
            warden.wait(WARDEN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            warden.kill()
            warden.wait(KILL_TIMEOUT_S)


def _former_ports(broker: Broker) -> tuple[int, int] | None:
    """The ports of its last start, which clients know; None when it has none, or another process uses
    them."""
    ports = broker.ports()
    deadline = time.monotonic() + PORTS_TIMEOUT_S
    while ports is not None and not all(map(is_free, ports)):
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_INTERVAL_S)
    return ports


def record_classes(kit: Kit) -> None:
    """Runs a broker once, for `kit.classes`. Does nothing where they are there."""
    timeout_s = START_TIMEOUT_S + STOP_TIMEOUT_S + WARDEN_TIMEOUT_S
    with file_lock(kit.jars.folder / ".classes.lock", timeout_s, "another process prepares Kafka's classes"):
        if kit.classes.exists():
            return
        progress.say("Preparing Kafka's classes, once, so that brokers start in two thirds of the time.")
        partial = kit.classes.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        yard = Yard(regions=1)
        yard.kit = replace(kit, classes=partial, records=True)
        try:
            yard.start(f"{REGIONS[0]}-{TIERS[0]}")
        finally:
            yard.down()
        partial.touch()
        partial.replace(kit.classes)
