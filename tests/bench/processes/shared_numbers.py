"""Numbers in a file, 8 bytes each; each process that has it open sees changes at once."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

WORD_BYTES = 8


def shared_numbers(path: Path, size: int) -> memoryview[int]:
    """The `size` numbers in the file, which is made, full of zeros, if there is none."""
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, size * WORD_BYTES)
        return memoryview(mmap.mmap(descriptor, size * WORD_BYTES)).cast("Q")
    finally:
        os.close(descriptor)
