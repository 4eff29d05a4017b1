"""How many ids differ between two tiers, before a table is made that tells which: the strata estimator.

An id belongs to stratum n with probability 2^-(n + 1); each stratum has a small table of its own. What can be
told of the high strata, which hold few, is scaled up.

Source: Eppstein, Goodrich, Uyeda and Varghese, "What's the Difference?", SIGCOMM 2011, section 3.2.
"""

from __future__ import annotations

import numpy as np

from app.audit.drilldown.reconciliation import InvertibleBloomTable
from switchyard.audit.model.fingerprint import Words, mix

STRATA = 24  # of 16 million ids, the last one holds one
CELLS = 80
_KEY = np.uint64(0x1D8E4E27C47D124F)


class Strata:
    """An estimator; ids are added as to a `InvertibleBloomTable`."""

    __slots__ = ("tables",)

    def __init__(self, tables: list[InvertibleBloomTable] | None = None) -> None:
        self.tables = [InvertibleBloomTable(CELLS) for _ in range(STRATA)] if tables is None else tables

    def insert(self, ids: Words) -> None:
        hashed = mix(ids[:, 0] ^ mix(ids[:, 1] + _KEY)) | np.uint64(1 << (STRATA - 1))
        lowest = hashed & (~hashed + np.uint64(1))  # the lowest bit that is set
        for number in range(STRATA):
            self.tables[number].insert(ids[lowest == np.uint64(1 << number)])

    def difference(self, other: Strata) -> int:
        """About how many ids differ; the tables are used up by it."""
        told = 0
        for number in range(STRATA - 1, -1, -1):
            self.tables[number].subtract(other.tables[number])
            found = self.tables[number].peel()
            if not found.is_complete:
                return max(1, told) << (number + 1)
            told += len(found.missing) + len(found.extra)
        return told
