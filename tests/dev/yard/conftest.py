"""Fixtures for the tests of the yard: homes with and without Kafka's jars, and a mirror of Maven Central."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.dev.yard import maven
from app.dev.yard.jars import JarSet
from tests.conftest import BOOTSTRAP_VARIABLE

COMMAND_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def cached() -> JarSet:
    """Kafka's jars in the user's cache, fetched now if they are not there."""
    if os.environ.get(BOOTSTRAP_VARIABLE):
        pytest.skip(f"starts brokers of its own, and {BOOTSTRAP_VARIABLE} asks for the given one")
    jars = JarSet.load()
    jars.ensure()
    return jars


@pytest.fixture
def copy(cached: JarSet, tmp_path: Path) -> JarSet:
    """A copy of the cache that a test may damage. Its files are links: replace them, do not write to them."""
    copied = replace(cached, folder=tmp_path / "home" / cached.name)
    copied.folder.mkdir(parents=True)
    for jar in cached.jars:
        (copied.folder / jar.file_name).symlink_to(cached.folder / jar.file_name)
    return copied


@pytest.fixture
def mirror(cached: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository that replaces Maven Central; its jars are links to the cache."""
    root = tmp_path / "mirror"
    for jar in cached.jars:
        served = maven.path_in(root, jar.coordinate)
        served.parent.mkdir(parents=True)
        served.symlink_to(cached.folder / jar.file_name)
    handler = functools.partial(QuietHandler, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(
            "SWITCHYARD_MAVEN_MIRROR", f"http://someone:secret@127.0.0.1:{server.server_port}/"
        )
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield root
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Logs nothing, because tests read standard error."""


@dataclass(frozen=True, slots=True)
class Cli:
    """`switchyard yard` with a home of its own."""

    home: Path

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "app.cli", "yard", *arguments],
            env={**os.environ, "SWITCHYARD_HOME": str(self.home), **environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )


@pytest.fixture
def empty_cli(tmp_path: Path) -> Cli:
    """The command line on a machine that has never fetched Kafka."""
    return Cli(tmp_path / "a new höme")


@pytest.fixture
def cli(cached: JarSet, empty_cli: Cli) -> Iterator[Cli]:
    """The command line with Kafka in the cache; its brokers are stopped after the test."""
    empty_cli.home.mkdir()
    (empty_cli.home / cached.name).symlink_to(cached.folder)
    yield empty_cli
    empty_cli("down", "--wipe")


@pytest.fixture
def java_on_path(tmp_path: Path) -> Callable[[str], str]:
    """A function that makes a PATH whose only `java` reports a version."""

    def make(version: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        java = folder / "java"
        java.write_text(f"#!{shutil.which('sh')}\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        return str(folder)

    return make
