"""A worker counts no more cores and memory than its container has, and notices when it is throttled."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path

import pytest

from app.worker.runtime.cgroups import sample_container
from app.worker.runtime.container_watch import ContainerWatch
from app.worker.runtime.meter import Meter

CORES = float(len(os.sched_getaffinity(0)))
V2_MOUNT = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = (
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw master:11 - cgroup cgroup rw,memory"
)
OTHER_MOUNTS = (
    "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd"
)


class Host:
    """A tree with `proc` and `sys`, as a process in the cgroup `own` reads it."""

    def __init__(self, root: Path, own: str, mounts: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", own)
        self.write("proc/self/mountinfo", f"{OTHER_MOUNTS}\n{mounts}")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file

    def v2(self, cgroup: str, cpu: str = "", memory: str = "", throttled: int | None = None) -> None:
        folder = f"sys/fs/cgroup/{cgroup}"
        for name, text in (("cpu.max", cpu), ("memory.max", memory)):
            if text:
                self.write(f"{folder}/{name}", text)
        if throttled is not None:
            stat = f"usage_usec 7\nnr_periods 849\nnr_throttled {throttled}\nthrottled_usec 9"
            self.write(f"{folder}/cpu.stat", stat)

    def v1(self, cgroup: str, quota_us: int = -1, memory: int = 9223372036854771712) -> None:
        cpu = f"sys/fs/cgroup/cpu,cpuacct/{cgroup}"
        self.write(f"{cpu}/cpu.cfs_quota_us", str(quota_us))
        self.write(f"{cpu}/cpu.cfs_period_us", "100000")
        self.write(f"{cpu}/cpu.stat", "nr_periods 849\nnr_throttled 420\nthrottled_time 21000000000")
        self.write(f"sys/fs/cgroup/memory/{cgroup}/memory.limit_in_bytes", str(memory))


def in_v2(root: Path, own: str = "/", mount_root: str = "/") -> Host:
    return Host(root, f"0::{own}", V2_MOUNT.format(root=mount_root))


def in_v1(root: Path, own: str = "/", mount_root: str = "/") -> Host:
    lines = f"12:memory:{own}\n4:cpu,cpuacct:{own}\n1:name=systemd:{own}\n0::{own}"
    return Host(root, lines, V1_MOUNTS.format(root=mount_root))


def test_half_a_core_of_version_2_is_half_a_core(tmp_path: Path) -> None:
    in_v2(tmp_path).v2("", cpu="50000 100000", memory="536870912", throttled=420)
    assert sample_container(tmp_path) == (0.5, 536870912, (42.0,))


def test_half_a_core_of_version_1_is_half_a_core(tmp_path: Path) -> None:
    in_v1(tmp_path).v1("", 50_000, 536870912)
    assert sample_container(tmp_path) == (0.5, 536870912, (42.0,))


@pytest.mark.parametrize("cpu", ["max 100000", "", "0 100000", "50000", "many 100000", "-1 100000"])
def test_no_quota_leaves_the_affinity(tmp_path: Path, cpu: str) -> None:
    in_v2(tmp_path).v2("", cpu=cpu, memory="max", throttled=420)
    assert sample_container(tmp_path) == (CORES, inf, ())


def test_a_quota_above_the_affinity_leaves_the_affinity(tmp_path: Path) -> None:
    in_v2(tmp_path).v2("", cpu=f"{int(CORES * 400_000)} 100000")
    assert sample_container(tmp_path).cpu_cores == CORES


def test_version_1_without_limits_leaves_the_affinity(tmp_path: Path) -> None:
    in_v1(tmp_path).v1("")
    assert sample_container(tmp_path) == (CORES, 9223372036854771712, ())


def test_the_smallest_limit_above_the_process_counts(tmp_path: Path) -> None:
    host = in_v2(tmp_path, "/pods/pod1/worker")
    host.v2("pods/pod1/worker", cpu="80000 100000", memory="4000", throttled=1)
    host.v2("pods/pod1", cpu="max 100000", memory="3000", throttled=50)
    host.v2("pods", cpu="10000 50000", memory="max", throttled=40)
    host.v2("pods/pod2", cpu="1000 100000", memory="10", throttled=9)  # another one's
    assert sample_container(tmp_path) == (0.2, 3000, (0.1, 2.0))


def test_a_container_without_a_namespace_reads_its_own_mount(tmp_path: Path) -> None:
    """Its path is the host's, of which the mount shows only the end."""
    in_v1(tmp_path, "/docker/4711", "/docker/4711").v1("", 50_000, 1000)
    assert sample_container(tmp_path)[:2] == (0.5, 1000)


def test_a_cgroup_below_that_of_the_mount_counts(tmp_path: Path) -> None:
    host = in_v1(tmp_path, "/docker/4711/worker", "/docker/4711")
    host.v1("worker", 25_000, 2000)
    host.v1("", 50_000, 1000)
    assert sample_container(tmp_path)[:2] == (0.25, 1000)


def test_a_process_outside_of_its_mount_reads_that(tmp_path: Path) -> None:
    in_v2(tmp_path, "/elsewhere", "/docker/4711").v2("", cpu="50000 100000")
    assert sample_container(tmp_path).cpu_cores == 0.5


def test_a_hybrid_host_has_controllers_of_version_1_beside_version_2(tmp_path: Path) -> None:
    mounts = (
        V1_MOUNTS.format(root="/") + "\n" + V2_MOUNT.format(root="/").replace("/cgroup ", "/cgroup/unified ")
    )
    own = "5:memory:/w\n4:cpu,cpuacct:/w\n0::/w"
    host = Host(tmp_path, own, mounts)
    host.v1("w", 50_000, 1000)
    host.v2("unified/w", memory="900")
    assert sample_container(tmp_path) == (0.5, 900, (42.0,))


def test_missing_files_limit_nothing(tmp_path: Path) -> None:
    in_v2(tmp_path, "/gone")
    assert sample_container(tmp_path) == (CORES, inf, ())


def test_a_host_without_cgroups_limits_nothing(tmp_path: Path) -> None:
    assert sample_container(tmp_path) == (CORES, inf, ())


def test_files_that_cannot_be_read_limit_nothing(tmp_path: Path) -> None:
    host = in_v2(tmp_path, "/w")
    host.v2("", cpu="50000 100000")
    (tmp_path / "sys/fs/cgroup/w/cpu.max").mkdir(parents=True)  # reading a folder fails also as root
    (tmp_path / "sys/fs/cgroup/w/memory.max").write_bytes(b"\xff\xfe")
    assert sample_container(tmp_path) == (0.5, inf, (0.0,))


def test_this_process_has_limits() -> None:
    found = sample_container()
    assert 0 < found.cpu_cores <= CORES
    assert found.memory_bytes > 0


# -- over time -------------------------------------------------------------------------------------


def watched(root: Path, *, seconds: int, throttled_a_second: int) -> ContainerWatch:
    """A watch over a container with half a core, sampled each second."""
    host = in_v2(root)
    host.v2("", cpu="50000 100000", memory="536870912", throttled=0)
    watch = ContainerWatch(sample_container(root))
    for second in range(seconds + 1):
        host.v2("", throttled=second * throttled_a_second)
        watch.see(sample_container(root), float(second))
    return watch


def test_periods_that_used_their_quota_up_are_counted(tmp_path: Path) -> None:
    assert watched(tmp_path, seconds=20, throttled_a_second=5).cpu_throttled == 0.5


def test_a_container_that_is_never_throttled_is_not(tmp_path: Path) -> None:
    assert watched(tmp_path, seconds=20, throttled_a_second=0).cpu_throttled == 0


def test_throttling_ends_with_the_quota(tmp_path: Path) -> None:
    watch = watched(tmp_path, seconds=20, throttled_a_second=5)
    in_v2(tmp_path).v2("", cpu="max 100000")
    watch.see(sample_container(tmp_path), 21.0)
    assert (watch.cpu_throttled, watch.limits.cpu_cores) == (0, CORES)


def test_a_worker_has_the_capacity_of_its_container(tmp_path: Path) -> None:
    meter = Meter(None, None, None, watched(tmp_path, seconds=1, throttled_a_second=0))
    assert (meter.capacity.cpu_cores, meter.capacity.memory_bytes) == (0.5, 536870912)


def test_a_configured_capacity_stands(tmp_path: Path) -> None:
    meter = Meter(0.8, 1 << 20, None, watched(tmp_path, seconds=1, throttled_a_second=0))
    assert (meter.capacity.cpu_cores, meter.capacity.memory_bytes) == (0.8, 1 << 20)


def test_a_limit_that_changes_while_the_worker_runs_changes_its_capacity(tmp_path: Path) -> None:
    watch = watched(tmp_path, seconds=1, throttled_a_second=0)
    meter = Meter(None, None, None, watch)
    in_v2(tmp_path).v2("", cpu="25000 100000", memory="1000")
    watch.see(sample_container(tmp_path), 3.0)
    assert (meter.capacity.cpu_cores, meter.capacity.memory_bytes) == (0.25, 1000)
