"""A small disk of a process's own: it is full soon, and is gone with the process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

TIMEOUT_S = 120
APART = ("--user", "--map-root-user", "--mount")


def need_namespaces() -> None:
    """Skips the test where users may not have a mount namespace, as in some containers."""
    if subprocess.run(["unshare", *APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the system gives users no mount namespace: sysctl kernel.unprivileged_userns_clone=1")


def small_disk_command(folder: Path, mib: int, command: Sequence[str], files: int = 0) -> list[str]:
    """`command` with a disk of `mib` MiB at `folder`, in a mount namespace; needs no rights of root. `files`:
    the most that it may have; 0: any number."""
    script = f'mount -t tmpfs -o size="$1"m,nr_inodes={files} tmpfs "$2" && shift 2 && exec "$@"'
    need_namespaces()
    return ["unshare", *APART, "sh", "-c", script, "sh", str(mib), str(folder), *command]


def on_small_disk(folder: Path, mib: int, command: Sequence[str], files: int = 0) -> str:
    """Runs `command` with such a disk at `folder`, and returns what it prints."""
    done = subprocess.run(
        small_disk_command(folder, mib, command, files),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seen_by(pid: int, folder: Path) -> Path:
    """The folder as the process sees it."""
    return Path(f"/proc/{pid}/root{folder}")


def fill(ballast: Path) -> None:
    """Lets a file grow until its disk takes no more."""
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
