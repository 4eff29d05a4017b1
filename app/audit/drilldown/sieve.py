"""What differs between two tiers' records, in bounded memory however many they are.

    prints of both sides --add--> Sieve --found--> print: how often more upstream
                                        `-> no room: another sieve, and all of it again (`wider`)

A print is 64 bits of what a record, or a batch, is. A first sieve has room for some thousands that differ,
and an estimate of how many do (`strata_estimator`). Where those are more than the largest table holds, a
sieve with `bits` looks at one of 2^bits of all prints: what is named then is a sample, and that is told.
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
MOST_PRINTS = 100_000  # that differ, named at once: with their places some hundred megabytes at the most
_ROOM = 2  # an estimate may be half of what there is
_KEYS = np.uint64(0x9FB21C651E98DF25), np.uint64(0xD6E8FEB86659FD93)


class SievedPrints(NamedTuple):
    """What a sieve holds.

    Attributes:
        surplus: print -> how often more upstream has it; below 0: downstream.
        is_complete: that is all that differs, of the prints that it looked at.
        estimate: about how many prints differ, of all.
    """

    surplus: dict[int, int]
    is_complete: bool
    estimate: int


class Sieve:
    """See the module.

    Attributes: bits: it looks at one of 2^bits of all prints.
    """

    __slots__ = ("_cells", "_strata", "_tables", "bits")

    def __init__(self, cells: int = FIRST_CELLS, bits: int = 0) -> None:
        self.bits = bits
        self._cells = cells
        self._tables = InvertibleBloomTable(cells), InvertibleBloomTable(cells)
        self._strata = Strata(), Strata()

    def add(self, prints: Prints, *, is_upstream: bool) -> None:
        """Of a side; one that is there twice counts twice."""
        side = 0 if is_upstream else 1
        ids = _ids_of(prints)
        if self.bits:
            ids = ids[mix(ids[:, 1] ^ _KEYS[1]) & np.uint64((1 << self.bits) - 1) == 0]
        self._tables[side].insert(ids)
        self._strata[side].insert(ids)

    def found(self) -> SievedPrints:
        """What differs; call once."""
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
        """One with room for so many, or for a share of them; for more than this one in any case."""
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
