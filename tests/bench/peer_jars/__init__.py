"""Jars of peers: fetched from Maven Central once, with all that they ask for, and kept with everything else
that Switchyard fetches."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from app.dev.yard import maven
from app.dev.yard.jars import LOCK_TIMEOUT_S, file_lock, switchyard_home


def fetched(name: str, coordinates: Sequence[str]) -> list[Path]:
    """The jars of these coordinates ("group:artifact:version"), in the folder `name`.

    Raises:
        FetchError: they cannot be fetched.
    """
    folder = switchyard_home() / name
    complete = folder / "complete"
    with file_lock(folder / ".lock", LOCK_TIMEOUT_S, "another process is fetching it") as lock:
        if not complete.exists():
            arriving = folder / ".arriving"
            shutil.rmtree(arriving, ignore_errors=True)
            needed = maven.resolve(coordinates, arriving)
            maven.download(needed, arriving, keep_open=(lock,))
            for coordinate in needed:
                arrived = maven.path_in(arriving, coordinate)
                arrived.replace(folder / arrived.name)
            shutil.rmtree(arriving)
            complete.touch()
    return sorted(folder.glob("*.jar"))
