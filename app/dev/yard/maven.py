"""Fetches jars from jgo's default repository, Maven Central, so the project contains no address.

`SWITCHYARD_MAVEN_MIRROR` is the address of another repository, for networks that reach a mirror only.
Proxies and certificates are Python's (`https_proxy`, `no_proxy`), although jgo has a list of certificates
of its own.

A process of its own fetches (`python -m app.dev.yard.maven`), so that a deadline can end it wherever it
waits. It inherits the locks, so no other process writes until it has ended, even if its parent was killed.
"""

from __future__ import annotations

import logging
import os
import signal
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from app.dev.yard.errors import FetchError
from app.dev.yard.processes import own_module

FETCH_TIMEOUT_S = 900  # a slow connection needs minutes for 46 MB; a dead one must not wait for ever
SILENCE_TIMEOUT_S = 30  # the longest pause of a connection
MIRROR_VARIABLE = "SWITCHYARD_MAVEN_MIRROR"
CERTIFICATES_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
DONE = "done "  # the prefix of the process's lines about finished steps


def mirror() -> str:
    """The mirror's address from the environment, "" for none.

    Raises `FetchError`, without the address: it may contain a password.
    """
    address = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    try:
        found = urllib.parse.urlsplit(address)
        is_one = found.scheme in {"http", "https"} and bool(found.hostname)
    except ValueError:
        is_one = False
    if address and not is_one:
        raise FetchError(f"{MIRROR_VARIABLE} is no address; write one such as https://maven.example/maven2")
    return address


def source() -> str:
    """The repository for people, without a mirror's password."""
    found = urllib.parse.urlsplit(mirror())
    return found._replace(netloc=found.netloc.rpartition("@")[2]).geturl() or "Maven Central"


def download(
    coordinates: Sequence[str],
    target: Path,
    *,
    on_step: Callable[[str], None] = lambda _coordinate: None,
    keep_open: Sequence[int] = (),
) -> None:
    """Fetches the jars of `coordinates` ("group:artifact:version") into the folder `target`.

    The folder has the layout of a Maven repository (`path_in`). `on_step` gets a coordinate once its jar
    has arrived. The fetching process inherits the descriptors `keep_open`. Raises `FetchError` with the
    reason.
    """
    _run(["download", str(target), *coordinates], on_step, keep_open)


def resolve(coordinates: Sequence[str], work: Path) -> list[str]:
    """`coordinates` and all jars that they need at run time; descriptions go into the folder `work`.

    Raises `FetchError` with the reason.
    """
    found: list[str] = []
    _run(["resolve", str(work), *coordinates], found.append, ())
    return sorted(found)


def path_in(target: Path, coordinate: str) -> Path:
    """The path of a jar in a Maven repository."""
    group, artifact, version = coordinate.split(":")
    return target.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")


def _run(arguments: list[str], on_step: Callable[[str], None], keep_open: Sequence[int]) -> None:
    mirror()  # an invalid mirror raises before the process starts
    said = ""
    command, environment = own_module("app.dev.yard.maven", *arguments)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=keep_open,
        env={**environment, **system_certificates()},
    ) as fetching:
        try:
            for line in fetching.stdout or ():
                if line.startswith(DONE):
                    on_step(line.removeprefix(DONE).strip())
                else:
                    said = line.strip() or said
            status = fetching.wait()
        finally:
            fetching.kill()
    if status == -signal.SIGALRM:
        raise FetchError(f"it took longer than {FETCH_TIMEOUT_S} s")
    if status != 0:
        raise FetchError(said or f"the process that fetches ended with status {status}")


def system_certificates() -> dict[str, str]:
    """The variable that makes jgo trust the system's certificates, where Python has a path to them."""
    if any(os.environ.get(name) for name in CERTIFICATES_VARIABLES):
        return {}
    paths = ssl.get_default_verify_paths()
    folder = paths.capath if paths.capath and any(Path(paths.capath).glob("*.0")) else None
    chosen = paths.cafile or folder
    return {CERTIFICATES_VARIABLES[0]: chosen} if chosen else {}


class AlteredJars(logging.Handler):
    """Finds jars with a wrong checksum: jgo accepts them, and only logs it."""

    def __init__(self) -> None:
        super().__init__()
        self._first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if "Checksum mismatch" in record.getMessage():
            self._first = self._first or record.getMessage()

    def check(self) -> None:
        """Raises ValueError with jgo's message."""
        if self._first:
            raise ValueError(self._first)


def main(arguments: Sequence[str]) -> int:
    """Downloads or resolves, as a process of its own. After a failure the last line is the reason."""
    from jgo.maven import MavenContext

    signal.alarm(FETCH_TIMEOUT_S)
    what, folder, *coordinates = arguments
    remote = mirror()
    altered = AlteredJars()
    logging.getLogger("jgo").addHandler(altered)
    context = MavenContext(
        repo_cache=Path(folder),
        remote_repos={"mirror": remote} if remote else None,
        timeout=SILENCE_TIMEOUT_S,
    )
    wanted = [context.create_dependency(coordinate) for coordinate in coordinates]
    try:
        if what == "resolve":
            for parts in context.resolver.resolve(wanted):
                for found in parts:
                    _done(f"{found.groupId}:{found.artifactId}:{found.version}")
        else:
            for coordinate, one in zip(coordinates, wanted, strict=True):
                one.artifact.resolve()
                altered.check()
                _done(coordinate)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as failure:  # jgo's errors; those of `requests` are OSErrors
        reason = _reason(failure)
        sys.stdout.write(f"{reason.replace(remote, source()) if remote else reason}\n")
        return 1
    return 0


def _done(coordinate: str) -> None:
    sys.stdout.write(f"{DONE}{coordinate}\n")
    sys.stdout.flush()


def _reason(failure: BaseException) -> str:
    """The innermost cause in one line; the message of `requests` repeats every layer."""
    while cause := failure.__cause__ or failure.__context__:
        failure = cause
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
