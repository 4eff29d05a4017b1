"""A worker's disk: little space and rows that are not written are reported once, until they are over."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from app.kernel.free_space import free_bytes, takes_no_more
from app.worker.runtime.disk_watch import (
    CALM_S,
    ENOUGH_BYTES,
    LOOK_INTERVAL_S,
    LOW_BYTES,
    DiskWatch,
    UnwrittenRows,
)
from tests.full_disk import on_small_disk

MIB = 1 << 20
ROWS = [UnwrittenRows("routes", 2, "No space left on device"), UnwrittenRows("trackers", 40, "the same")]


def watch(reported: list[Any]) -> DiskWatch:
    return DiskWatch(Path("/data/w1"), list, "w1-7-a", lambda *incident: reported.append(incident))


def test_little_space_is_reported_once_until_there_is_enough() -> None:
    reported: list[Any] = []
    disk = watch(reported)
    for free, is_low in (
        (ENOUGH_BYTES, False),
        (LOW_BYTES, False),
        (LOW_BYTES - 1, True),
        (0, True),
        (ENOUGH_BYTES - 1, True),
        (ENOUGH_BYTES, False),
    ):
        disk.see(free, [])
        assert (bool(disk.trouble), disk.free_bytes) == (is_low, free), free
        assert [is_over() for *_, is_over in reported] == [not is_low] * len(reported)
    assert [incident[:4] for incident in reported] == [
        (
            "disk-low", "w1-7-a", "256 MiB are free on the disk of this worker's tables, /data/w1",
            "free space there, check the disk, or set data_dir to another one and start the worker again",
        )
    ]  # fmt: skip
    disk.see(3 * MIB, [])
    assert reported[1][2].startswith("3.0 MiB are free")


def test_rows_that_the_disk_does_not_take_are_reported_once_until_it_took_all_for_a_while() -> None:
    reported: list[Any] = []
    disk = watch(reported)
    calm = [[]] * int(CALM_S / LOOK_INTERVAL_S)
    for rows in (ROWS, ROWS[:1], [], ROWS, *calm[1:]):
        disk.see(10 * ENOUGH_BYTES, rows)
        assert bool(disk.trouble) == bool(rows)
        assert [is_over() for *_, is_over in reported] == [False]
    disk.see(10 * ENOUGH_BYTES, [])
    assert [is_over() for *_, is_over in reported] == [True]
    disk.see(10 * ENOUGH_BYTES, ROWS)
    assert [kind for kind, *_ in reported] == ["tables-unwritten"] * 2
    words = "/data/w1 does not take rows of tables, which are in memory only (routes, trackers)"
    assert reported[0][2] == f"{words}: No space left on device"
    assert disk.trouble == f"{words}: No space left on device; rows: 42"
    assert "it writes these rows itself once the disk takes them, and none is lost" in reported[0][3]


NO_FILES = """
    import sys
    from pathlib import Path
    from app.kernel.free_space import free_bytes, shortage

    folder = Path(sys.argv[1])
    print(not shortage(folder, 1), not shortage(folder, 1 << 40))
    for number in range(20):
        try:
            (folder / str(number)).touch()
        except OSError:
            break
    print(free_bytes(folder) > 1 << 20, not shortage(folder, 1), not shortage(folder / "none", 1))
    print(shortage(folder, 1))
"""


def test_a_disk_that_takes_no_file_has_no_room_however_much_is_free(tmp_path: Path) -> None:
    script = textwrap.dedent(NO_FILES)
    out = on_small_disk(tmp_path, 8, [sys.executable, "-c", script, str(tmp_path)], files=10)
    assert out.splitlines()[:2] == ["True False", "True False False"]
    assert "No space left on device" in out.splitlines()[2]


def test_refusals_are_told_from_other_errors() -> None:
    for number, is_refusal in ((28, True), (122, True), (30, True), (5, False), (13, False)):
        assert takes_no_more(OSError(number, os.strerror(number))) is is_refusal, number


START = """
    import sys
    from pathlib import Path
    from app.worker.runtime.data_directory import DataDirUnusable, prepare_datadir
    from tests.full_disk import fill

    folder, store = Path(sys.argv[1]), Path(sys.argv[1]) / "tables" / "routes-0.db"
    prepare_datadir(folder, "cluster", "app", {})
    from rocksdict import Options, Rdict
    Rdict(str(store), options=Options(raw_mode=True)).close()
    fill(folder / "ballast")
    try:
        prepare_datadir(folder, "cluster", "app", {})
    except DataDirUnusable as error:
        print(error)
    print(store.exists())
"""


def test_a_worker_does_not_start_on_a_full_disk_and_deletes_no_table_there(tmp_path: Path) -> None:
    """Regression: no table could be opened, so all were deleted, and read again until the disk was full."""
    store = textwrap.dedent(START)
    out = on_small_disk(tmp_path, 40, [sys.executable, "-c", store, str(tmp_path)]).splitlines()
    assert out[-2:] == [
        f"the disk of {tmp_path}, where this worker has its tables, takes too little: 0.0 MiB are free. A "
        "worker needs 32 MiB to start: free space, or set data_dir to a larger disk",
        "True",
    ]
    assert free_bytes(tmp_path) > 0
