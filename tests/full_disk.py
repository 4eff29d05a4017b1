"""A small disk of a process's own: it is full soon, and is gone with the process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 120


def small_disk_command(folder: Path, mib: int, command: Sequence[str]) -> list[str]:
    """`command` with a disk of `mib` MiB at `folder`, in a mount namespace; needs no rights of root."""
    script = 'mount -t tmpfs -o size="$1"m tmpfs "$2" && shift 2 && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    return [*apart, "sh", "-c", script, "sh", str(mib), str(folder), *command]


def on_small_disk(folder: Path, mib: int, command: Sequence[str]) -> str:
    """Runs `command` with such a disk at `folder`, and returns what it prints."""
    done = subprocess.run(
        small_disk_command(folder, mib, command),
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
