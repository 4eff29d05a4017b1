"""A worker raises its limit of open files, and reports a limit that is too low."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.worker.runtime.open_files import BASE_FILES, FILES_PER_BROKER, OpenFilesWatch


def limited(soft: int, hard: int, code: str) -> str:
    """Runs the code in a process with these limits; its output."""
    made = f"""
import resource
from app.worker.runtime import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
{code}
"""
    run = subprocess.run(
        [sys.executable, "-c", made], capture_output=True, text=True, check=True, timeout=120
    )
    return run.stdout.strip()


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 4096, 4096), (256, 256, 256), (900, 1_024, 1_024)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, then: int) -> None:
    assert limited(soft, hard, "print(open_files.raise_limit(), open_files.limit())") == f"{then} {then}"


def test_a_low_limit_is_reported_with_the_number_and_the_command() -> None:
    words = limited(256, 256, "print(open_files.too_few(4))")
    assert "may have 256 files open" in words
    assert f"needs about {BASE_FILES + 4 * FILES_PER_BROKER} with the 4 bootstrap addresses" in words
    assert "ulimit -n 65536" in words
    enough = BASE_FILES + 4 * FILES_PER_BROKER
    assert limited(enough, enough, "print(open_files.too_few(4))") == ""


def test_open_files_are_counted_when_no_more_can_be_opened() -> None:
    fill = """
held = []
try:
    while True: held.append(open("/dev/null"))
except OSError: pass
full = open_files.count()
held.pop()
print(full, open_files.count())
"""
    assert limited(100, 100, fill).split()[0] == "100"
    one_more = "before = open_files.count(); held = open('/dev/null'); print(open_files.count() - before)"
    assert limited(100, 100, one_more) == "1"


def test_few_free_files_are_reported_once_until_there_is_room() -> None:
    reported: list[tuple[str, str, str]] = []
    watch = OpenFilesWatch(lambda *words: reported.append(words[:3]))
    for opened, is_full in (
        (100, False),
        (968, False),
        (969, True),
        (1_000, True),
        (950, True),
        (935, False),
    ):
        watch.see(opened, 1_000)
        assert bool(watch.trouble) is is_full, opened
    assert [kind for kind, *_ in reported] == ["open-files"]
    assert "969 of 1000 files" in reported[0][1]
    assert "ulimit -n" in reported[0][2]
    watch.see(1_000, 1_000)
    assert len(reported) == 2
