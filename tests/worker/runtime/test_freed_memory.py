from __future__ import annotations

import subprocess
import sys

import pytest

ROUNDS, BLOCKS, BLOCK_BYTES = 50, 8, 2**20
PAGES = ROUNDS * BLOCKS * BLOCK_BYTES // 4096
SCRIPT = f"""
import resource
from app.worker.runtime import freed_memory

KEEP
for _ in range({ROUNDS}):
    blocks = [b"%d" % number * {BLOCK_BYTES} for number in range({BLOCKS})]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(keep: str) -> int:
    """Page faults of a process that uses the same megabytes again and again."""
    command = [sys.executable, "-c", SCRIPT.replace("KEEP", keep)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    saved = faults("") - faults("freed_memory.keep()")
    assert saved > PAGES // 2, saved
