"""Names up to two ids behind the difference of two sums of ids, for a tier of which there is no log.

    sum(upstream) - sum(downstream) = mix(missing) + ... - mix(doubled) - ...     (`fingerprint`, 128 bits)

The ids are searched among those of the side with a log. With more than `MOST` ids there are too many
combinations to search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from switchyard.audit.model.fingerprint import Fingerprint, Words, lanes_of

MOST = 2


class IdDifference(NamedTuple):
    """Row numbers of the ids that are missing downstream, and of those that it has once too often."""

    missing: list[int]
    doubled: list[int]


def difference_of(difference: Fingerprint, surplus: int, ids: Words) -> IdDifference | None:
    """The ids behind the difference; None: no combination of at most `MOST` of these ids explains it.
    `surplus`: how many records more upstream has. `ids`: rows of two words, each id once."""
    low, high = lanes_of(ids)
    minus = Fingerprint().minus(difference)
    match surplus:
        case 1:
            found = _find_single(difference, low, high)
            return None if found is None else IdDifference([found], [])
        case -1:
            found = _find_single(minus, low, high)
            return None if found is None else IdDifference([], [found])
        case 2 | -2:
            pair = _find_sum(difference if surplus > 0 else minus, low, high)
            return None if pair is None else IdDifference(pair, []) if surplus > 0 else IdDifference([], pair)
        case 0 if difference != Fingerprint():
            apart = _find_minuend(difference, low, high)
            return None if apart is None else IdDifference([apart[0]], [apart[1]])
        case _:
            return None


def _find_single(wanted: Fingerprint, low: Words, high: Words) -> int | None:
    rows = np.flatnonzero((low == np.uint64(wanted.low)) & (high == np.uint64(wanted.high)))
    return int(rows[0]) if rows.size else None


def _find_sum(wanted: Fingerprint, low: Words, high: Words) -> list[int] | None:
    """Two rows whose lanes add up to `wanted`. Both may be the same row: its id counts twice."""
    return _find_pair(np.uint64(wanted.low) - low, np.uint64(wanted.high) - high, low, high)


def _find_minuend(wanted: Fingerprint, low: Words, high: Words) -> list[int] | None:
    """Two rows; the first minus the second is `wanted`."""
    return _find_pair(low - np.uint64(wanted.low), high - np.uint64(wanted.high), low, high)


def _find_pair(wanted_low: Words, wanted_high: Words, low: Words, high: Words) -> list[int] | None:
    """A row, and the row with the lanes that the first one wants."""
    if not low.size:
        return None
    order = np.argsort(low)
    at = np.minimum(np.searchsorted(low[order], wanted_low), low.size - 1)
    partner = order[at]
    rows = np.flatnonzero((low[partner] == wanted_low) & (high[partner] == wanted_high))
    return [int(rows[0]), int(partner[rows[0]])] if rows.size else None
