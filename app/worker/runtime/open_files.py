"""The limit of open files: a worker raises it at the start, and reports when few are left.

Each connection is a file. A process that may open no more answers no probe, connects to no broker or
receiver, and cannot write its tables. All of that looks like other troubles.

    start:  the soft limit becomes the hard one; below what the configuration needs the worker ends
    later:  fewer than LOW_FREE can be opened -> an incident, and the worker is not ready
"""

from __future__ import annotations

import asyncio
import errno
import resource
import sys
from pathlib import Path

import structlog
from mode import Service

from app.kernel.incidents import ReportOwnIncident

log = structlog.get_logger(__name__)

# Measured: a worker of one region with two brokers has 236 open (200 by its tables), 261 with 12 workloads.
BASE_FILES = 300
FILES_PER_BROKER = 20  # connections: of fetches, producers, followers, and to receivers
LOW_FREE, CLEAR_FREE = 32, 64  # free files: reported below the first, until above the second
LOOK_INTERVAL_S = 5.0
RECOMMENDED = 65_536
HIGHEST = 1 << 20  # above it, programs that close every possible file take long to start
CANDIDATES = (HIGHEST, 1 << 16, 10_240)  # macOS: an unlimited hard limit, yet the kernel refuses more
OPEN_FILES = Path("/dev/fd")  # of this process, on Linux and macOS


def raise_limit() -> int:
    """Raises the soft limit to the hard one, as far as the system allows. Returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in CANDIDATES:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= most:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError):
            continue
        break
    return limit()


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def remedy(needed: int) -> str:
    most = max(needed, RECOMMENDED)
    return (
        f"raise the limit before it starts: `ulimit -n {most}` in its shell, LimitNOFILE={most} in a systemd "
        f"unit, --ulimit nofile={most} for a container"
    )


def too_few(addresses: int) -> str:
    """Why the limit is too low for a worker with so many bootstrap addresses; "" if it is not."""
    needed, most = BASE_FILES + FILES_PER_BROKER * addresses, limit()
    if most >= needed:
        return ""
    return (
        f"this worker may have {most} files open at once, and needs about {needed} with the {addresses} "
        f"bootstrap addresses of its configuration; {remedy(needed)}"
    )


def count() -> int:
    """The number of open files; the limit, if even the listing cannot open one. Lists a folder."""
    try:
        return sum(1 for _ in OPEN_FILES.iterdir())
    except OSError as error:
        if error.errno == errno.EMFILE:
            return limit()
        raise


class OpenFilesWatch(Service):
    """`trouble`: says that few files can be opened; "" while there is room."""

    def __init__(self, report: ReportOwnIncident) -> None:
        super().__init__()
        self.trouble = ""
        self._report = report

    @Service.task
    async def _watch(self) -> None:
        was_blind = False
        while not self.should_stop:
            try:
                self.see(await asyncio.to_thread(count), limit())
                was_blind = False
            except OSError as error:  # such as the limit of the whole host
                if not was_blind:
                    log.warning("this worker cannot count its open files", why=str(error))
                was_blind = True
            await self.sleep(LOOK_INTERVAL_S)

    def see(self, opened: int, most: int) -> None:
        if most - opened > CLEAR_FREE:
            self.trouble = ""
        if self.trouble or most - opened >= LOW_FREE:
            return
        self.trouble = (
            f"{opened} of {most} files that this worker may have open are open: soon it cannot connect "
            "(Too many open files, errno 24)"
        )
        self._report("open-files", self.trouble, remedy(2 * most), lambda: not self.trouble)
