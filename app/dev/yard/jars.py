"""Kafka's jars: the list, the cache, their checks, and how they are fetched.

`kafka.lock.json` in this folder lists every jar with coordinate, size and SHA-256, as `python -m
app.dev.yard.lock_file` wrote it for this version. Rules:
- A jar is good when its bytes match the list. All are hashed at every start (46 MB, a tenth of a second).
  So no manifest can be stale, and jars copied there by hand count, too.
- Only missing or bad jars are fetched. A jar appears under its name whole or not at all.
- One process fetches; others wait for it. The file lock is inherited by the child that fetches, which may
  outlive its parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from app.dev.yard import maven, progress
from app.dev.yard.errors import FetchError, YardTimeoutError

HOME_VARIABLE = "SWITCHYARD_HOME"
LOCK_FILE = Path(__file__).with_name("kafka.lock.json")
LOCK_TIMEOUT_S = maven.FETCH_TIMEOUT_S + 60.0  # its holder fetches, which has a timeout of its own
LOCK_POLL_INTERVAL_S = 0.2
ATTEMPTS = 2  # a lost connection, or wrong bytes, may be chance


def switchyard_home() -> Path:
    """Switchyard's folder on this machine: `SWITCHYARD_HOME`, otherwise in the user's cache folder."""
    chosen = os.environ.get(HOME_VARIABLE)
    return Path(chosen).expanduser().resolve() if chosen else Path(platformdirs.user_cache_dir("switchyard"))


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar: its Maven coordinate "group:artifact:version", its size and its SHA-256 in hex."""

    coordinate: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    def is_good(self, folder: Path) -> bool:
        path = folder / self.file_name
        try:
            if path.stat().st_size != self.size_bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class JarSet:
    """The jars of one lock file, and the folder of the cache that holds them."""

    name: str
    folder: Path
    jars: tuple[Jar, ...]

    @classmethod
    def load(cls, lock_file: Path = LOCK_FILE, home: Path | None = None) -> JarSet:
        content: dict[str, Any] = json.loads(lock_file.read_text())
        jars = tuple(Jar(j["coordinate"], j["size_bytes"], j["sha256"]) for j in content["jars"])
        return cls(content["name"], (home or switchyard_home()) / content["name"], jars)

    def bad(self) -> list[Jar]:
        """The jars that are missing, cut off or altered."""
        return [jar for jar in self.jars if not jar.is_good(self.folder)]

    @property
    def classpath(self) -> str:
        return os.pathsep.join(str(self.folder / jar.file_name) for jar in self.jars)

    def ensure(self) -> None:
        """Makes every jar present and good. Raises `FetchError` with the remedy."""
        if not self.bad():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(self.folder / ".lock", LOCK_TIMEOUT_S, "another process is fetching Kafka") as lock:
            bad = self.bad()  # another process may have fetched them meanwhile
            if bad:
                self._fetch(bad, lock)

    def _fetch(self, bad: list[Jar], lock: int) -> None:
        present = [jar.file_name for jar in bad if (self.folder / jar.file_name).exists()]
        if present:
            progress.say(f"Damaged in {self.folder}, to be replaced: {', '.join(present)}")
        size_mb = sum(jar.size_bytes for jar in bad) / 1e6
        progress.say(
            f"Fetching {self.name} from {maven.source()}: {_files(len(bad))}, {size_mb:.1f} MB,"
            f" into {self.folder}"
        )
        started = time.monotonic()
        arriving = self.folder / ".arriving"
        for _ in range(ATTEMPTS):
            self._keep(bad, arriving)  # jars that arrived before a process was killed
            reason = self._attempt(self.bad(), arriving, lock)
            bad = self.bad()
            if not bad:
                progress.say(f"Fetched and verified in {time.monotonic() - started:.0f} s.")
                return
            reason = reason or f"{bad[0].file_name} came with another SHA-256 than expected"
        raise FetchError(self._by_hand(bad, reason))

    def _attempt(self, bad: list[Jar], arriving: Path, lock: int) -> str:
        """Fetches `bad` and moves good jars into place; returns the reason of a failure, or ""."""
        try:
            with progress.steps(f"Fetching {self.name}", len(bad)) as step:
                maven.download([jar.coordinate for jar in bad], arriving, on_step=step, keep_open=(lock,))
        except FetchError as failure:
            return str(failure)
        finally:
            self._keep(bad, arriving)
        return ""

    def _keep(self, jars: list[Jar], arriving: Path) -> None:
        """Moves good jars into place, and removes the rest, which may be incomplete."""
        for jar in jars:
            arrived = maven.path_in(arriving, jar.coordinate)
            if jar.is_good(arrived.parent):
                arrived.replace(self.folder / jar.file_name)
        shutil.rmtree(arriving, ignore_errors=True)

    def _by_hand(self, bad: list[Jar], reason: str) -> str:
        names = "\n".join(f"    {jar.coordinate}" for jar in bad)
        return (
            f"{self.name} could not be fetched from {maven.source()}: {reason}\n"
            f"{len(bad)} of {len(self.jars)} files are missing. Do one of these, then run the same again:\n"
            "- Give this machine a network. A proxy is taken from https_proxy, the address of a mirror\n"
            f"  of Maven Central from {maven.MIRROR_VARIABLE} (with user:password@ if it asks).\n"
            f"- Copy the folder {self.folder} from a machine where the yard has been up.\n"
            "- Fetch these jars by hand (group:artifact:version) and put them, named artifact-version.jar,\n"
            f"  into {self.folder}:\n"
            f"{names}"
        )


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


@contextlib.contextmanager
def file_lock(path: Path, timeout_s: float, waiting_for: str) -> Iterator[int]:
    """Holds an exclusive lock on `path` and yields its descriptor; says once what it waits for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    is_reported = False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    msg = f"{path} is still locked after {timeout_s:.0f} s: {waiting_for}."
                    raise YardTimeoutError(msg) from None
                if not is_reported:
                    progress.say(f"Waiting: {waiting_for}.")
                    is_reported = True
                time.sleep(LOCK_POLL_INTERVAL_S)
        yield file.fileno()
