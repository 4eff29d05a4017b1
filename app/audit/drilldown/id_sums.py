"""Which ids two sums differ by, where one side keeps no log: of one or two ids that is told by looking.

    sum(upstream) - sum(downstream) = mix(missing) + ... - mix(doubled) - ...     (`fingerprint`, 128 bits)

The ids are sought among those of the side whose log can be read. More than `MOST` of them are not told: there
are too many combinations to look through.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from switchyard.audit.model.fingerprint import Fingerprint, Words, lanes_of

MOST = 2


class IdDifference(NamedTuple):
    """Rows of ids that are missing downstream, and that are there once too often."""

    missing: list[int]
    doubled: list[int]


def difference_of(difference: Fingerprint, surplus: int, ids: Words) -> IdDifference | None:
    """What the difference is made of; None: not of at most `MOST` of these ids.

    Args:
        surplus: how many more upstream has. ids: rows of two words, each once.
    """
    low, high = lanes_of(ids)
    minus = Fingerprint().minus(difference)
    match surplus:
        case 1:
            found = _one(difference, low, high)
            return None if found is None else IdDifference([found], [])
        case -1:
            found = _one(minus, low, high)
            return None if found is None else IdDifference([], [found])
        case 2 | -2:
            pair = _two(difference if surplus > 0 else minus, low, high)
            return None if pair is None else IdDifference(pair, []) if surplus > 0 else IdDifference([], pair)
        case 0 if difference != Fingerprint():
            apart = _apart(difference, low, high)
            return None if apart is None else IdDifference([apart[0]], [apart[1]])
        case _:
            return None


def _one(wanted: Fingerprint, low: Words, high: Words) -> int | None:
    rows = np.flatnonzero((low == np.uint64(wanted.low)) & (high == np.uint64(wanted.high)))
    return int(rows[0]) if rows.size else None


def _two(wanted: Fingerprint, low: Words, high: Words) -> list[int] | None:
    """Rows whose lanes add up to it; one row twice: its id is meant twice."""
    return _pair(np.uint64(wanted.low) - low, np.uint64(wanted.high) - high, low, high)


def _apart(wanted: Fingerprint, low: Words, high: Words) -> list[int] | None:
    """Rows of which the first is so much more than the second."""
    return _pair(low - np.uint64(wanted.low), high - np.uint64(wanted.high), low, high)


def _pair(wanted_low: Words, wanted_high: Words, low: Words, high: Words) -> list[int] | None:
    """A row, and the one that has what it wants."""
    if not low.size:
        return None
    order = np.argsort(low)
    at = np.minimum(np.searchsorted(low[order], wanted_low), low.size - 1)
    partner = order[at]
    rows = np.flatnonzero((low[partner] == wanted_low) & (high[partner] == wanted_high))
    return [int(rows[0]), int(partner[rows[0]])] if rows.size else None
