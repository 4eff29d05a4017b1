"""Reads what this process's container gives it: cores, memory, and how often its CPU quota was used up.

Rules
1. A limit holds for a cgroup and everything below it. So the smallest one counts, from the process's own
   cgroup up to the root of the hierarchy, as far as this process sees it.
2. Version 2 has one hierarchy, version 1 one for each controller, and a hybrid host has both.
   /proc/self/cgroup has the process's cgroup in each, and /proc/self/mountinfo where it is mounted. Without a
   namespace for cgroups, a container reads a path of its host there; the mount's root is the part that it
   does not see.
3. A file that is missing, unreadable or without a number limits nothing.

Source: Linux, cgroup-v2.rst, sched-bwc.rst, cgroups(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROCESS_CGROUPS = "proc/self/cgroup"
PROCESS_MOUNTS = "proc/self/mountinfo"


class ContainerSample(NamedTuple):
    """What a process may use.

    Attributes:
        cpu_cores: The smaller of its CPU affinity and all quotas above it.
        memory_bytes: The smallest limit above it; infinite: none.
        throttled_s: For each cgroup with a quota, the time of all periods in which it used its quota up; it
            only grows. The process's own cgroup comes first.
    """

    cpu_cores: float
    memory_bytes: float = inf
    throttled_s: tuple[float, ...] = ()


def sample_container(root: Path = Path("/")) -> ContainerSample:
    """Reads a dozen small files; call it outside the event loop. `root`: what has `proc` and `sys`."""
    cpu_cores, memory_bytes = float(len(os.sched_getaffinity(0))), inf
    throttled_s: list[float] = []
    for cgroup in _cgroups(root):
        memory_bytes = min(memory_bytes, *_numbers(cgroup / "memory.max", cgroup / "memory.limit_in_bytes"))
        quota_us, period_us = _cpu_quota(cgroup)
        if quota_us < inf:
            cpu_cores = min(cpu_cores, quota_us / period_us)
            throttled_s.append(_throttled_periods(cgroup) * period_us / 1e6)
    return ContainerSample(cpu_cores, memory_bytes, tuple(throttled_s))


def _cgroups(root: Path) -> Iterator[Path]:
    """The folders of the process's cgroups, each before the one above it."""
    mounts = [mount for line in _text(root / PROCESS_MOUNTS).splitlines() if (mount := _Mount.read(line))]
    for line in _text(root / PROCESS_CGROUPS).splitlines():
        _, names, path = line.split(":", 2)
        own, controllers = PurePosixPath(path), set(names.split(","))
        of_hierarchy = [mount for mount in mounts if mount.controllers & controllers]
        seen = [mount for mount in of_hierarchy if own.is_relative_to(mount.root)]
        # A process whose cgroup is outside of every mount reads the limits of the nearest one.
        for mount in seen[:1] or of_hierarchy[:1]:
            below = own.relative_to(mount.root).parts if seen else ()
            folder = root / mount.point.relative_to("/")
            for depth in range(len(below), -1, -1):
                yield folder.joinpath(*below[:depth])


class _Mount(NamedTuple):
    """A mounted hierarchy. `root`: the cgroup at its top; `controllers`: {""} in version 2."""

    point: PurePosixPath
    root: PurePosixPath
    controllers: set[str]

    @classmethod
    def read(cls, line: str) -> _Mount | None:
        """A line of /proc/self/mountinfo; None: another file system."""
        place, _, system = line.partition(" - ")
        root, point = place.split(" ")[3:5]
        kind, _, options = system.split(" ", 2)
        if kind not in {"cgroup", "cgroup2"}:
            return None
        controllers = {""} if kind == "cgroup2" else {"cpu", "memory"} & set(options.split(","))
        return cls(PurePosixPath(point), PurePosixPath(root), controllers)


def _cpu_quota(cgroup: Path) -> tuple[float, float]:
    """CPU time in a period, and the period, in microseconds; an infinite quota: none."""
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(cgroup / "cpu.cfs_quota_us"), _text(cgroup / "cpu.cfs_period_us")
    quota_us, period_us = _number(quota), _number(period)
    return (quota_us, period_us) if 0 < quota_us < inf and 0 < period_us < inf else (inf, inf)


def _throttled_periods(cgroup: Path) -> int:
    for line in _text(cgroup / "cpu.stat").splitlines():
        name, _, count = line.partition(" ")
        if name == "nr_throttled" and count.isdecimal():
            return int(count)
    return 0


def _numbers(*files: Path) -> list[float]:
    return [_number(_text(file)) for file in files]


def _number(text: str) -> float:
    """Infinite for "max", -1 and "", which mean no limit."""
    return float(text) if text.isdecimal() else inf


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
