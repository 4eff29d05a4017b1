"""Builds the peers, each into a folder of its own in Switchyard's cache.

Rules
1. The folder's name has a hash of the sources, of this file and of the tools' versions. So a changed source
   is built again, and an unchanged one never.
2. One process builds a language; others wait for it. The compilers inherit the lock, because they may
   outlive their parent.
3. A peer is built in another folder, and its folder appears whole or not at all.
4. Lock files name all versions, so two builds have the same dependencies.
5. What one build of Rust's dependencies compiled serves the next (`.rust-work`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.dev.yard import progress
from app.dev.yard.jars import file_lock, switchyard_home
from tests.bench.peer_jars import fetched
from tests.grpc_client.peers.messages import PROTO, PROTOC, description

SOURCES = Path(__file__).parent
DESCRIPTION = "interop.binpb"
BUILD_TIMEOUT_S = 480.0  # of all steps: a first build fetches and compiles all dependencies
LOCK_TIMEOUT_S = BUILD_TIMEOUT_S + 60.0
VERSION_TIMEOUT_S = 60.0
LOG_TAIL_CHARACTERS = 4_000
GRPC_JAVA = "1.85.1"
JAVA_COORDINATES = (
    f"io.grpc:grpc-netty-shaded:{GRPC_JAVA}",
    f"io.grpc:grpc-protobuf:{GRPC_JAVA}",
    f"io.grpc:grpc-stub:{GRPC_JAVA}",
    "com.google.guava:guava:33.6.0-jre",  # the others ask for its edition for Android
)
JAVA_RELEASE, JAVA_HEAP = "17", "-Xmx1g"
GO_MODULE = "switchyard.example/peer"


class BuildFailed(RuntimeError):
    """A peer did not compile, or took too long; the message has the end of the tool's output."""


class Steps:
    """The commands of one build, with one deadline for all of them."""

    def __init__(self, language: str, folder: Path, lock: int) -> None:
        self.folder = folder
        self._language = language
        self._lock = lock
        self._deadline_s = time.monotonic() + BUILD_TIMEOUT_S

    def run(self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Runs a command in the build's folder. Raises BuildFailed."""
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock,),
                start_new_session=True,  # so that all its children can be ended
            )
            try:
                status: int | None = process.wait(max(0.0, self._deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if status == 0:
                return
            log.seek(0)
            output = log.read().decode(errors="replace")[-LOG_TAIL_CHARACTERS:]
        ended = (
            f"took longer than {BUILD_TIMEOUT_S:.0f} s in all" if status is None else f"ended with {status}"
        )
        raise BuildFailed(f"the peer in {self._language}: {' '.join(command)} {ended}:\n{output}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one language is built and run.

    `tools` are commands that must be on PATH, `remedy` says what to install, and `version` is a command that
    prints the compiler's version. `build` works in a folder with the sources, and returns the folder to keep.
    `command` gets that folder under its last name. With `keeps_work` the next build finds this one's files.
    """

    tools: tuple[str, ...]
    remedy: str
    version: tuple[str, ...]
    build: Callable[[Steps], Path]
    command: Callable[[Path], list[str]]
    keeps_work: bool = False


def missing(language: str) -> str | None:
    """What this machine lacks for a peer, with the remedy; None if all is there."""
    recipe = RECIPES[language]
    lacking = [tool for tool in recipe.tools if shutil.which(tool) is None]
    if not lacking:
        return None
    return f"the peer in {language} needs {' and '.join(lacking)} on PATH; {recipe.remedy}"


def command(language: str) -> list[str]:
    """The command of a peer, which is built first if it must be. Raises BuildFailed, FetchError."""
    return RECIPES[language].command(_built(language))


def _built(language: str) -> Path:
    home = switchyard_home() / "peers"
    folder = home / f"{language}-{_hash(language)}"
    if folder.exists():
        return folder
    with file_lock(
        home / f".{language}.lock", LOCK_TIMEOUT_S, f"another process builds the peer in {language}"
    ) as lock:
        if not folder.exists():
            _build(language, folder, lock)
    return folder


def _build(language: str, folder: Path, lock: int) -> None:
    progress.say(f"Building the peer in {language}, into {folder}")
    started_s = time.monotonic()
    recipe = RECIPES[language]
    work = folder.with_name(f".{language}-work")
    if not recipe.keeps_work:
        shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(
        SOURCES / language, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(PROTO, work)
    (work / DESCRIPTION).write_bytes(description())
    recipe.build(Steps(language, work, lock)).rename(folder)
    progress.say(f"Built the peer in {language} in {time.monotonic() - started_s:.0f} s.")


@functools.cache
def _hash(language: str) -> str:
    """Changes with the sources, this file and the compiler."""
    recipe = RECIPES[language]
    done = subprocess.run(
        recipe.version, capture_output=True, text=True, check=True, timeout=VERSION_TIMEOUT_S, cwd=SOURCES
    )
    found = hashlib.sha256(f"{done.stdout}{done.stderr}".encode())
    files = sorted(
        path for path in (SOURCES / language).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    for path in (*files, PROTO, Path(__file__)):
        content = path.read_bytes()
        found.update(f"{path.relative_to(SOURCES)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def _build_go(steps: Steps) -> Path:
    work = steps.folder
    plugins = work / "plugins"
    steps.run("go", "install", "tool", env={"GOBIN": str(plugins)})  # protoc's, in go.mod's versions
    outputs = [
        option
        for name in ("go", "go-grpc")
        for option in (
            f"--plugin=protoc-gen-{name}={plugins / f'protoc-gen-{name}'}",
            f"--{name}_out=.",
            f"--{name}_opt=module={GO_MODULE}",
            f"--{name}_opt=M{PROTO.name}={GO_MODULE}/pb",
        )
    ]
    steps.run(*PROTOC, "-I.", *outputs, PROTO.name)
    steps.run("go", "build", "-trimpath", "-o", "server", ".")
    shutil.rmtree(plugins)
    return work


def _build_java(steps: Steps) -> Path:
    classes = steps.folder / "classes"
    classes.mkdir()
    shutil.copy(steps.folder / DESCRIPTION, classes)
    sources = sorted(path.name for path in steps.folder.glob("*.java"))
    steps.run(
        "javac", "--release", JAVA_RELEASE, "-proc:none", "-cp", _java_class_path(), "-d", "classes", *sources
    )
    return steps.folder


def _java_class_path() -> str:
    return os.pathsep.join(str(jar) for jar in fetched(f"grpc-java-{GRPC_JAVA}", JAVA_COORDINATES))


def _java_command(folder: Path) -> list[str]:
    return [
        "java",
        JAVA_HEAP,
        "-cp",
        os.pathsep.join([str(folder / "classes"), _java_class_path()]),
        "Server",
    ]


def _build_node(steps: Steps) -> Path:
    steps.run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    return steps.folder


def _build_python(steps: Steps) -> Path:
    return steps.folder  # nothing to compile: the server reads the description


def _build_rust(steps: Steps) -> Path:
    target = steps.folder / "target"
    steps.run("cargo", "build", "--release", "--locked", env={"CARGO_TARGET_DIR": str(target)})
    kept = steps.folder.with_name(".rust-arriving")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    shutil.copy(target / "release" / "peer", kept / "server")
    return kept


def _server(folder: Path) -> list[str]:
    return [str(folder / "server")]


RECIPES = {
    "go": Recipe(("go",), "install Go 1.26", ("go", "version"), _build_go, _server),
    "java": Recipe(
        ("java", "javac"),
        f"install a JDK of Java {JAVA_RELEASE} or newer",
        ("javac", "-version"),
        _build_java,
        _java_command,
    ),
    "node": Recipe(
        ("node", "npm"),
        "install Node.js 20 with npm",
        ("node", "--version"),
        _build_node,
        lambda folder: ["node", str(folder / "server.js")],
    ),
    "python": Recipe(
        (),
        "",
        (sys.executable, "-c", "import sys, grpc; print(sys.version, grpc.__version__)"),
        _build_python,
        lambda folder: [sys.executable, str(folder / "server.py")],
    ),
    "rust": Recipe(
        ("cargo", "rustc"),
        "install Rust 1.88 or newer",
        ("rustc", "--version"),
        _build_rust,
        _server,
        keeps_work=True,
    ),
}
