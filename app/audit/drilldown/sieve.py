"""Finds the prints that differ between two tiers, in bounded memory for any number of records.

    prints of both sides --add--> Sieve --found--> print: surplus upstream
                                        `-> too many differ: a larger sieve reads everything again (`wider`)

A print is a 64-bit hash of a record or a batch. The first sieve has room for some thousands of differing
prints, and estimates how many there are (`strata_estimator`). If the largest table cannot hold them, a sieve
with `bits` takes one of 2^bits of all prints. Its result is a sample, and the answer says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.audit.drilldown.reconciliation import MOST_CELLS, InvertibleBloomTable, cells_for
from app.audit.drilldown.strata_estimator import Strata
from switchyard.audit.model.fingerprint import Words, mix

Prints = npt.NDArray[np.uint64]

FIRST_CELLS = 1 << 14
MOST_PRINTS = 100_000  # that differ and are named at once; with their places at most some hundred megabytes
_ROOM = 2  # an estimate may be half of the true number
_KEYS = np.uint64(0x9FB21C651E98DF25), np.uint64(0xD6E8FEB86659FD93)


class SievedPrints(NamedTuple):
    """The result of a sieve.

    Attributes:
        surplus: Print -> how often more upstream has it; negative: downstream has it more often.
        is_complete: `surplus` has all differing prints that the sieve took.
        estimate: About how many prints differ, including those that the sieve did not take.
    """

    surplus: dict[int, int]
    is_complete: bool
    estimate: int


class Sieve:
    """A pair of tables, one for each side. It takes one of 2^`bits` of all prints."""

    __slots__ = ("_cells", "_strata", "_tables", "bits")

    def __init__(self, cells: int = FIRST_CELLS, bits: int = 0) -> None:
        self.bits = bits
        self._cells = cells
        self._tables = InvertibleBloomTable(cells), InvertibleBloomTable(cells)
        self._strata = Strata(), Strata()

    def add(self, prints: Prints, *, is_upstream: bool) -> None:
        """Adds prints of one side. A repeated print counts each time."""
        side = 0 if is_upstream else 1
        ids = _ids_of(prints)
        if self.bits:
            ids = ids[mix(ids[:, 1] ^ _KEYS[1]) & np.uint64((1 << self.bits) - 1) == 0]
        self._tables[side].insert(ids)
        self._strata[side].insert(ids)

    def found(self) -> SievedPrints:
        """The differing prints. To be called once, because it consumes the tables."""
        difference = self._tables[0]
        difference.subtract(self._tables[1])
        peeled = difference.peel()
        if not peeled.is_complete:
            about = max(self._strata[0].difference(self._strata[1]), len(peeled.missing) + len(peeled.extra))
            return SievedPrints({}, False, max(about, self._cells // 2) << self.bits)
        surplus = {_print_of(name): count for name, count in peeled.missing.items()}
        surplus |= {_print_of(name): -count for name, count in peeled.extra.items()}
        return SievedPrints(surplus, True, len(surplus) << self.bits)

    def wider(self, estimate: int) -> Sieve:
        """A sieve for `estimate` differing prints, or for a share of them; it takes more than this one."""
        wanted = max(_ROOM * estimate, self._cells)
        bits = max(0, (-(-wanted // (_ROOM * MOST_PRINTS)) - 1).bit_length())
        cells = min(MOST_CELLS, max(cells_for(wanted >> bits), FIRST_CELLS))
        if (bits, -cells) <= (self.bits, -self._cells):  # the estimate misled
            bits = self.bits + (self._cells >= cells)
        return Sieve(cells, bits)


def _ids_of(prints: Prints) -> Words:
    return np.stack((prints, mix(prints ^ _KEYS[0])), axis=1)


def _print_of(name: bytes) -> int:
    return int.from_bytes(name[:8], "big")
