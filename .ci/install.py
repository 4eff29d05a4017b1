"""Installs the packages of a file with hashes, and says how far it is: pip says nothing, or a hundred lines.

    .venv/bin/python .ci/install.py FILE

A bar on a terminal, a line for each quarter elsewhere. The first half is the packages that pip says it found.
It unpacks them without a word, so the second half is the folders that appear.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

LOOK_EVERY_S = 0.3
BAR = 30  # characters
PLAIN_EVERY_PERCENT = 25
FOUND = re.compile(r"^(?:Collecting|Requirement already satisfied:) ")
CHOSEN = re.compile(r"^Installing collected packages: (.*)")
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "--require-hashes")


class Installation:
    """What pip has said so far, and what lies in the environment."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._found = 0
        self._chosen: set[str] = set()

    def read(self, line: str) -> None:
        if FOUND.match(line):
            self._found += 1
        elif chosen := CHOSEN.match(line):
            self._chosen = {folded(name) for name in chosen[1].split(",")}

    def percent(self) -> int:
        found = min(self._found / self._wanted, 1.0)
        if not self._chosen:
            return int(50 * found)
        site = Path(sysconfig.get_path("purelib"))
        there = {folded(info.name.partition("-")[0]) for info in site.glob("*.dist-info")}
        return 50 + int(50 * len(there & self._chosen) / len(self._chosen))


def folded(name: str) -> str:
    """A package's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def show(percent: int, before: int) -> None:
    if sys.stderr.isatty():
        done = percent * BAR // 100
        sys.stderr.write(f"\r  {'━' * done}{' ' * (BAR - done)} {percent:3} %")
    elif percent // PLAIN_EVERY_PERCENT > before // PLAIN_EVERY_PERCENT:
        sys.stderr.write(f"Installing packages: {percent} %\n")
    sys.stderr.flush()


def main() -> int:
    """The exit code is pip's, which says itself what went wrong."""
    file = Path(sys.argv[1])
    wanted = len(set(re.findall(r"^([\w.-]+)==", file.read_text(), re.MULTILINE)))
    sys.stderr.write(f"Installing {wanted} package{'s'[: wanted > 1]} into {sys.prefix}\n")
    installation = Installation(wanted)
    with subprocess.Popen([sys.executable, *PIP, "-r", str(file)], stdout=subprocess.PIPE, text=True) as pip:
        reader = threading.Thread(target=lambda: [installation.read(line) for line in pip.stdout or ()])
        reader.start()
        percent = 0
        while reader.is_alive():
            reader.join(LOOK_EVERY_S)
            before, percent = percent, max(percent, installation.percent())
            show(percent, before)
        code = pip.wait()
    if code == 0:
        show(100, percent)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
