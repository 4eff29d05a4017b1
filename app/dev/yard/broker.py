"""One broker of the yard: a KRaft broker and controller in one process, on loopback, in its own folder.

    <home>/<cluster>/server.properties   written at every start; its ports outlive stop and kill
    <home>/<cluster>/data                log and metadata
    <home>/<cluster>/broker.log          warnings and errors of Kafka
    <home>/<cluster>/wanted              exists while the broker should run; distinguishes "stopped" from
    "died"

Nothing here waits; `Yard` waits for many brokers at once. Processes are detached from the start (own
session, no pipe), so that they outlive the process that started them.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import uuid
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.dev.yard.errors import PortTakenError, YardError
from app.dev.yard.jars import JarSet
from app.dev.yard.java import Java
from app.dev.yard.processes import marks
from app.dev.yard.security import YardSecurity

HEAP_MB = 512  # four brokers of 300 MB resident fit a laptop
LOG_LIMIT_BYTES = 5_000_000
LOG_TAIL_LINES = 15
FORMAT_TIMEOUT_S = 60.0
# Below the range that Linux and macOS use for outgoing connections. A client that retries a killed broker
# could otherwise get the broker's own port, and the broker could not start again.
AUTOMATIC_PORTS = range(20_000, 32_000)
_chosen: deque[int] = deque(maxlen=500)

# Why each value differs from Kafka's default:
_PROPERTIES = """\
# one copy is all that one broker can keep
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# fifty partitions each would cost seconds and files at the first consumer
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=2
# tests wait for nothing
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# after kill -9 a broker is let in again only when its former session has ended
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# a topic has the partitions somebody chose, or is an error
auto.create.topics.enable=false
# records with made-up timestamps must not expire; a topic may set its own retention
log.retention.ms=-1
log.retention.check.interval.ms=5000
log.initial.task.delay.ms=1000
log.segment.delete.delay.ms=1000
log.segment.bytes=67108864
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=5000
# two cores are shared by four brokers
num.network.threads=2
num.io.threads=4
background.threads=2
"""


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that a broker starts with: a Java, Kafka's jars and the first snapshot of a metadata log.

    `classes` is Java's archive of the classes that a broker loads (JEP 350). With it a broker starts in
    two thirds of the time and takes 60 MB less. An empty file means that this Java makes no archive. A
    broker whose kit `records` writes the archive when it ends.
    """

    java: Java
    jars: JarSet
    snapshot: Path
    classes: Path
    records: bool = False

    @classmethod
    def prepare(cls, java: Java, jars: JarSet) -> Kit:
        """Fetches and formats the missing parts.

        Kafka's formatter needs a second and a Java of its own. Its output is the same for every cluster
        except for ids, so it runs once and is copied.
        """
        jars.ensure()
        name = zlib.crc32(str(java.executable.resolve()).encode())
        classes = jars.folder / f"classes-{java.version}-{name:08x}.jsa"
        kit = cls(java, jars, jars.folder / "bootstrap.checkpoint", classes)
        if not kit.snapshot.exists():
            kit.format()
        return kit

    def class_options(self) -> Sequence[str]:
        """Java's options for `classes`."""
        if self.records:
            return (f"-XX:ArchiveClassesAtExit={self.classes}",)
        has_some = self.classes.exists() and self.classes.stat().st_size
        return (f"-XX:SharedArchiveFile={self.classes}",) if has_some else ()

    def format(self) -> None:
        """Makes `snapshot`."""
        with tempfile.TemporaryDirectory(dir=self.jars.folder) as name:
            folder = Path(name)
            properties = folder / "server.properties"
            properties.write_text(_server_properties(folder / "data", (9092, 9093), "any"))
            command = [
                *_java_command(self, folder),
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                _new_id(),
                "--config",
                str(properties),
            ]  # fmt: skip - one option and its value a line
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=FORMAT_TIMEOUT_S
            )
            if done.returncode != 0:
                msg = f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}"
                raise YardError(msg)
            (folder / "data" / self.snapshot.name).replace(self.snapshot)


@dataclass(frozen=True, slots=True)
class Broker:
    """A cluster of one broker in the yard at `home`. With `security` clients must log in. `settings`
    override the yard's."""

    home: Path
    cluster: str
    security: YardSecurity | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def region(self) -> str:
        return self.cluster.split("-")[0]

    @property
    def tier(self) -> str:
        return self.cluster.split("-")[1]

    @property
    def folder(self) -> Path:
        return self.home / self.cluster

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def wanted(self) -> Path:
        return self.folder / "wanted"

    def ports(self) -> tuple[int, int] | None:
        """(broker, controller) ports of the last start, None when it never started."""
        try:
            lines = (self.folder / "server.properties").read_text().splitlines()
            (listeners,) = (line for line in lines if line.startswith("listeners="))
            broker, controller = (int(part.rpartition(":")[2]) for part in listeners.split(","))
        except (OSError, ValueError):
            return None
        return broker, controller

    @property
    def bootstrap(self) -> str:
        ports = self.ports()
        if ports is None:
            msg = f"{self.cluster} has not been started, so it has no address yet."
            raise YardError(msg)
        return f"127.0.0.1:{ports[0]}"

    def launch(self, kit: Kit, ports: tuple[int, int]) -> int:
        """Starts the process and returns its pid at once."""
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.touch(mode=0o600)  # it has passwords if the cluster is secured
        own = "".join(f"{name}={value}\n" for name, value in self.settings)
        properties.write_text(_server_properties(self.data_dir, ports, self.region, self.security) + own)
        self._format(kit.snapshot)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        command = [
            *_java_command(kit, self.folder),
            *marks(self.home, self.cluster),
            "kafka.Kafka",
            str(properties),
        ]
        self.wanted.touch()
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            command[0],
            command,
            {**os.environ, "LC_ALL": "C.UTF-8"},  # otherwise Java cannot open a path with an umlaut
            setsigmask=(),  # signals that the parent's thread has blocked must still stop it
            setsid=True,  # a Ctrl-C for the parent does not reach the broker
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )

    def _format(self, snapshot: Path) -> None:
        meta = self.data_dir / "meta.properties"
        if meta.exists():
            return
        shutil.rmtree(self.data_dir, ignore_errors=True)  # formatted in part: the broker has never run
        self.data_dir.mkdir(parents=True)
        shutil.copy(snapshot, self.data_dir)
        text = f"version=1\ncluster.id={_new_id()}\nnode.id=1\ndirectory.id={_new_id()}\n"
        partial = meta.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(meta)

    def log_tail(self) -> str:
        """The last lines of its log, for an error message."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:]) or "    (its log is empty)"


def choose_ports(count: int) -> list[int]:
    """Free ports below those for outgoing connections.

    Ports that were chosen lately are left out, because a process may be about to listen on them.
    """
    chance = random.Random()  # noqa: S311 - tests set back the one that all share: the same would come again
    shuffled = chance.sample(AUTOMATIC_PORTS, len(AUTOMATIC_PORTS))
    others = (port for port in shuffled if port not in _chosen)
    found = list(itertools.islice(filter(is_free, others), count))
    _chosen.extend(found)
    if len(found) < count:
        msg = f"No {count} free ports between {AUTOMATIC_PORTS.start} and {AUTOMATIC_PORTS.stop}."
        raise PortTakenError(msg)
    return found


def is_free(port: int) -> bool:
    with socket.socket() as attempt:
        # As Kafka binds: waiting connections of an earlier broker do not count.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _new_id() -> str:
    """A Kafka uuid: 22 characters, without a leading dash, which a command line would read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()).startswith("-"):
        pass
    return text


def _java_command(kit: Kit, folder: Path) -> Sequence[str]:
    return (
        str(kit.java.executable),
        *kit.class_options(),
        f"-Xmx{HEAP_MB}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # four brokers start in 6 s instead of 14 s on two cores
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",  # nothing is left in /tmp
        f"-Djava.io.tmpdir={folder}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        "-cp",
        kit.jars.classpath,
    )


def _server_properties(
    data_dir: Path, ports: tuple[int, int], region: str, security: YardSecurity | None = None
) -> str:
    broker, controller = ports
    protocol = "PLAINTEXT" if security is None else "SASL_PLAINTEXT"
    text = (
        "# Written at every start of this broker; changes made here are lost.\n"
        "process.roles=broker,controller\n"
        "node.id=1\n"
        f"broker.rack={region}\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=BROKER://127.0.0.1:{broker}\n"
        f"listener.security.protocol.map=BROKER:{protocol},CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=BROKER\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={data_dir}\n"
        f"{_PROPERTIES}{security.properties() if security else ''}"
    )
    return "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in text)  # Java reads Latin-1
