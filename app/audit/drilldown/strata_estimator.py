"""The strata estimator: estimates how many ids differ between two tiers, to choose the size of the tables.

An id belongs to stratum n with probability 2^-(n + 1), and each stratum has a small table. The high strata
hold few ids and can be decoded; their difference is scaled up.

Source: Eppstein, Goodrich, Uyeda and Varghese, "What's the Difference?", SIGCOMM 2011, section 3.2.
"""

from __future__ import annotations

import numpy as np

from app.audit.drilldown.reconciliation import InvertibleBloomTable
from switchyard.audit.model.fingerprint import Words, mix

STRATA = 24  # with 16 million ids, the last stratum holds about two
CELLS = 80
_KEY = np.uint64(0x1D8E4E27C47D124F)


class Strata:
    """One tier's estimator, to which ids are added as to an `InvertibleBloomTable`."""

    __slots__ = ("tables",)

    def __init__(self, tables: list[InvertibleBloomTable] | None = None) -> None:
        self.tables = [InvertibleBloomTable(CELLS) for _ in range(STRATA)] if tables is None else tables

    def insert(self, ids: Words) -> None:
        hashed = mix(ids[:, 0] ^ mix(ids[:, 1] + _KEY)) | np.uint64(1 << (STRATA - 1))
        lowest = hashed & (~hashed + np.uint64(1))  # the lowest bit that is set
        for number in range(STRATA):
            self.tables[number].insert(ids[lowest == np.uint64(1 << number)])

    def difference(self, other: Strata) -> int:
        """Estimates how many ids differ. Consumes this estimator's tables."""
        differing_ids = 0
        for number in range(STRATA - 1, -1, -1):
            self.tables[number].subtract(other.tables[number])
            found = self.tables[number].peel()
            if not found.is_complete:
                return max(1, differing_ids) << (number + 1)
            differing_ids += len(found.missing) + len(found.extra)
        return differing_ids
