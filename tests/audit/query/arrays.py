"""Arrays of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.kafka.records.header_arrays import Numbers


def numbers(values: Sequence[int]) -> Numbers:
    return np.array(values, dtype=np.int64)
