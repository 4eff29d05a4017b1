"""Jars of peers: fetched from Maven Central once, with all that they ask for, and kept with everything else
that Switchyard fetches."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from app.dev.yard import ivy
from app.dev.yard.jars import LOCK_TIMEOUT_S, file_lock, switchyard_home
from app.dev.yard.java import Java


def fetched(java: Java, name: str, coordinates: Sequence[str]) -> list[Path]:
    """The jars of these coordinates ("group:artifact:version"), in the folder `name`.

    Raises:
        FetchError: they cannot be fetched.
    """
    folder = switchyard_home() / name
    complete = folder / "complete"
    with file_lock(folder / ".lock", LOCK_TIMEOUT_S, "another process is fetching it") as lock:
        if not complete.exists():
            work = folder / ".ivy"
            ivy.retrieve(java, coordinates, folder, work, transitive=True, keep_open=(lock,))
            shutil.rmtree(work, ignore_errors=True)
            complete.touch()
    return sorted(folder.glob("*.jar"))
