"""How many files a worker may have open: as many as the system lets it, and it is told where they run out.

Each connection is a file. A process that may open no more answers no probe, connects to no broker and no
receiver, and its tables cannot be written: all of that looks like other troubles.

    start:  the soft limit becomes the hard one; below what the configuration needs the worker ends
    later:  less than FEW more can be opened -> an incident, and not ready
"""

from __future__ import annotations

import asyncio
import errno
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from mode import Service

log = structlog.get_logger(__name__)

# Measured: a worker of one region with two brokers has 236 open (200 are its tables'), 261 with twelve
# workloads.
LEAST = 300
OF_A_BROKER = 20  # connections: of fetches, producers, followers, and to receivers
FEW, AGAIN_ENOUGH = 32, 64  # that can be opened yet: told below the first, until above the second
LOOK_INTERVAL_S = 5.0
ADVISED = 65_536
MOST = 1 << 20  # above it, programs that close all they may have open take long to start
TRIED = (MOST, 1 << 16, 10_240)  # macOS calls the hard limit unlimited, and refuses more than the kernel's
OPEN_FILES = Path("/dev/fd")  # of this process, on Linux and macOS

Report = Callable[[str, str, str], None]  # kind, message, remedy


def raise_limit() -> int:
    """The soft limit becomes the hard one, as far as the system lets it. Returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in TRIED:
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
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def remedy(needed: int) -> str:
    """What an operator does about it."""
    most = max(needed, ADVISED)
    return (
        f"raise the limit before it starts: `ulimit -n {most}` in its shell, LimitNOFILE={most} in a systemd "
        f"unit, --ulimit nofile={most} for a container"
    )


def too_few(addresses: int) -> str:
    """Why this process may open too few files for a worker with so many bootstrap addresses; "": it may."""
    needed, most = LEAST + OF_A_BROKER * addresses, limit()
    if most >= needed:
        return ""
    return (
        f"this worker may have {most} files open at once, and needs about {needed} with the {addresses} "
        f"bootstrap addresses of its configuration; {remedy(needed)}"
    )


def count() -> int:
    """How many are open now; all, where not even that can be looked up. Lists a folder."""
    try:
        return sum(1 for _ in OPEN_FILES.iterdir())
    except OSError as error:
        if error.errno == errno.EMFILE:
            return limit()
        raise


class OpenFilesWatch(Service):
    """See the module.

    Attributes:
        trouble: that hardly any more can be opened; "" while there is room.
    """

    def __init__(self, report: Report) -> None:
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
            except OSError as error:  # of all of the host, it may be
                if not was_blind:
                    log.warning("open files cannot be counted", why=str(error))
                was_blind = True
            await self.sleep(LOOK_INTERVAL_S)

    def see(self, opened: int, most: int) -> None:
        """So many are open, of so many that may be."""
        if most - opened > AGAIN_ENOUGH:
            self.trouble = ""
        if self.trouble or most - opened >= FEW:
            return
        self.trouble = (
            f"{opened} of {most} files that this worker may have open are open: soon it connects to nothing "
            "(Too many open files, errno 24)"
        )
        self._report("open-files", self.trouble, remedy(2 * most))
