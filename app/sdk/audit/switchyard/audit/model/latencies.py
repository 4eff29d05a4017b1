"""Latencies as a histogram of growing bins: percentiles within one percent, merged by addition.

    bin 0   below 1 ms, and negative latencies (clocks differ)
    bin i   (GAMMA^(i - 2), GAMMA^(i - 1)] ms, read as its middle, at most ACCURACY away from all values in it

Merging adds whole numbers, so it is exact in any order and can be undone (`subtract`). A value may have a
weight. So no sampling sketch (KLL, REQ, t-digest) is used. After a replay the same reports give the same
bytes. When a wider report replaces another, the old figures can be taken out. And a batch is counted without
reading its records.

Source: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

ACCURACY = 0.01
GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
LONGEST_MS = 1 << 40  # 34 years; longer latencies count as this
MOST_OF_BIN = 1 << 50  # the sum of all bins is below 2^63
VERSION = 1
_LOG_GAMMA = math.log(GAMMA)
BINS = 2 + math.ceil(math.log(LONGEST_MS) / _LOG_GAMMA)
_HEAD = struct.Struct("<BBH")  # version, bytes of a count, bins that are not empty
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}  # of counts, by their bytes
_WIDTHS = tuple(_CODES)

Counts = npt.NDArray[np.int64]


class CorruptLatencies(ValueError):
    """The bytes are no histogram of this version."""


class Latencies:
    """A histogram that grows. `counts` has the count of each bin."""

    __slots__ = ("counts",)

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts: Counts = np.zeros(BINS, dtype=np.int64) if counts is None else counts

    def add(self, latencies_ms: Counts, weights: Counts | None = None) -> None:
        """Counts latencies, each with its weight (default: 1)."""
        bounded = np.clip(latencies_ms, 0, LONGEST_MS)
        bins = np.zeros(bounded.shape, dtype=np.int64)
        above = bounded > 0
        # Whole milliseconds: the rounding error at a bin's edge is far below ACCURACY.
        bins[above] = 1 + np.ceil(np.log(bounded[above]) / _LOG_GAMMA).astype(np.int64)
        np.add.at(self.counts, bins, np.int64(1) if weights is None else weights)

    def merge(self, other: Latencies) -> None:
        """Adds another histogram. A bin holds at most `MOST_OF_BIN`, so that sums are exact."""
        self.counts = np.minimum(self.counts + other.counts, MOST_OF_BIN)

    def subtract(self, other: Latencies) -> None:
        """Takes out a histogram that was merged. No bin falls below 0."""
        self.counts = np.maximum(self.counts - other.counts, 0)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def quantiles_ms(self, ranks: Sequence[float]) -> list[float]:
        """For each rank (0 to 1) the latency that this part of the values does not exceed; -1: no values."""
        bins = np.flatnonzero(self.counts)
        return _quantiles_ms(bins.tolist(), self.counts[bins].tolist(), ranks)

    @staticmethod
    def quantiles_of(data: bytes, ranks: Sequence[float]) -> list[float]:
        """`quantiles_ms` of the output of `to_bytes`, which is fast for few bins.

        Raises:
            CorruptLatencies: `data` is of another origin.
        """
        width, many = _head(data)
        bins = struct.unpack_from(f"<{many}H", data, _HEAD.size) if many else ()
        counts = struct.unpack_from(f"<{many}{_CODES[width]}", data, _HEAD.size + 2 * many) if many else ()
        if many:
            _check(max(bins), min(counts), max(counts))
        return _quantiles_ms(bins, counts, ranks)

    def to_bytes(self) -> bytes:
        """The bins that are not empty. Equal counts give equal bytes; b"" for none."""
        bins = np.flatnonzero(self.counts)
        if not bins.size:
            return b""
        counts = self.counts[bins]
        width = next(width for width in _WIDTHS if int(counts.max()) < 1 << (8 * width - 1) or width == 8)
        head = _HEAD.pack(VERSION, width, bins.size)
        return head + bins.astype("<u2").tobytes() + counts.astype(f"<i{width}").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Latencies:
        """The inverse of `to_bytes`.

        Raises:
            CorruptLatencies: `data` is of another origin.
        """
        width, many = _head(data)
        found = cls()
        if not many:
            return found
        bins = np.frombuffer(data, dtype="<u2", count=many, offset=_HEAD.size)
        counts = np.frombuffer(data, dtype=f"<i{width}", offset=_HEAD.size + 2 * many)
        _check(int(bins.max()), int(counts.min()), int(counts.max()))
        found.counts[bins] = counts
        return found


def _head(data: bytes) -> tuple[int, int]:
    """The bytes of a count, and the number of bins."""
    if not data:
        return _WIDTHS[0], 0
    if len(data) < _HEAD.size:
        raise CorruptLatencies(f"{len(data)} bytes are no histogram")
    version, width, many = _HEAD.unpack_from(data)
    if version != VERSION or width not in _CODES or len(data) != _HEAD.size + many * (2 + width):
        raise CorruptLatencies(f"{len(data)} bytes of version {version} are no histogram")
    return width, many


def _check(last_bin: int, least: int, most: int) -> None:
    if last_bin >= BINS or least < 0 or most > MOST_OF_BIN:
        raise CorruptLatencies("a bin or a count that no histogram has")


def _quantiles_ms(bins: Sequence[int], counts: Sequence[int], ranks: Sequence[float]) -> list[float]:
    """The quantiles of ascending bins with these counts."""
    upto = list(accumulate(counts))
    total = upto[-1] if upto else 0
    if total <= 0:
        return [-1.0] * len(ranks)
    wanted = (min(total, max(1, math.ceil(rank * total))) for rank in ranks)
    return [_middle_ms(bins[bisect_left(upto, count)]) for count in wanted]


def _middle_ms(number: int) -> float:
    return 0.0 if number == 0 else 2 * GAMMA ** (number - 1) / (GAMMA + 1)
