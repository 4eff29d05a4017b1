"""One shell that runs a page's commands, in a folder and on ports of its own.

The clone here is a folder with a link to this environment. Free ports replace the page's, in commands as in
outputs.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from app.dev.yard import broker, clusters
from app.dev.yard.jars import HOME_VARIABLE, JarSet
from app.dev.yard.java import find_java

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT, *(folder.parent for folder in (ROOT / "app" / "sdk").glob("*/switchyard")))  # this checkout
COMMAND_TIMEOUT_S = 120.0
POLL_S = 0.05
KILL_TIMEOUT_S = 30.0
WEB_PORT = 6066  # that of a worker whose settings name none
YARD_PORTS = range(19092, 19100)  # of four brokers and their controllers, from --port-base 19092
PORTS = (*YARD_PORTS, WEB_PORT, 6067, 8443)
# Bash names a job that ended by a signal at its next command, whichever that is.
ENDED_JOB = re.compile(r"^\S+: line \d+: +\d+ (?:Killed|Terminated)\b.*\n", re.MULTILINE)


class Terminal:
    """See the module. `folder` is new; all that runs here carries its name in the environment."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._home, clone = folder / "home", folder / "clone"
        self._home.mkdir()
        clone.mkdir()
        (clone / ".venv").symlink_to(sys.prefix)
        jars = JarSet.load().folder
        clusters.record_classes(broker.Kit.prepare(find_java(), JarSet.load()))  # a first start tells of it
        (self._home / jars.name).symlink_to(jars)
        self._ports = free_ports()
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")},
            HOME_VARIABLE: str(self._home),
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "PYTHONUNBUFFERED": "1",  # lines come in the order of a terminal's
            "SWITCHYARD_WEB_PORT": str(self._ports[WEB_PORT]),
        }
        self._cwd_file = folder / "cwd"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            cwd=clone,
            env=env,
            text=True,
            start_new_session=True,
        )
        self._send("set -o pipefail; trap 'failed=$?' ERR")
        # Where the tests are killed, bash comes to the end of its input.
        self._send("trap 'kill -9 $(jobs -p); switchyard yard down --wipe' EXIT")

    @property
    def cwd(self) -> Path:
        """Where the shell is, after its last command."""
        return Path(self._cwd_file.read_text().strip())

    def write(self, name: str, text: str) -> None:
        """Writes a file of the page where the shell is."""
        (self.cwd / name).write_text(self.with_ports(text))

    def run(self, text: str) -> tuple[int, str]:
        """The exit code of the last command that failed, or 0, and what all wrote. Raises TimeoutError."""
        self._count += 1
        script, output, code, done = (
            self._folder / f"{self._count}.{kind}" for kind in ("sh", "out", "code", "done")
        )
        script.write_text(self.with_ports(text))
        self._send(
            f"failed=0; source {script} > {output} 2>&1 < /dev/null; "
            f"echo $failed > {code}; pwd > {self._cwd_file}; touch {done}"
        )
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while not done.exists():
            if time.monotonic() > deadline_s or self._bash.poll() is not None:
                raise TimeoutError(f"does not end:\n{text}\n{output.read_text(errors='replace')}")
            time.sleep(POLL_S)
        return int(code.read_text()), ENDED_JOB.sub("", output.read_text(errors="replace"))

    def with_ports(self, text: str) -> str:
        """The page's text with the ports of this run."""
        return re.sub(r"\b\d{4,5}\b", lambda found: str(self._ports.get(int(found[0]), found[0])), text)

    def close(self) -> None:
        """kill -9 of all that was started here: what has this folder's name in its environment."""
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        self._bash.kill()
        self._bash.wait(KILL_TIMEOUT_S)
        while found := list(self._running()):
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"still running: {found}")
            time.sleep(POLL_S)

    def _running(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(HOME_VARIABLE) == str(self._home)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def _send(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()


def free_ports() -> dict[int, int]:
    """A free port for each that pages name, in the same order, as outputs are sorted. The yard's adjoin."""
    while True:
        first, *others = broker.choose_ports(1 + len(PORTS) - len(YARD_PORTS))
        yard = range(first, first + len(YARD_PORTS))
        if all(map(broker.is_free, yard)) and not set(yard) & set(others):
            return dict(zip(PORTS, (*yard, *sorted(others)), strict=True))
