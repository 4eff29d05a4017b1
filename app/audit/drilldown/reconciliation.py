"""Set reconciliation: finds the ids by which two tiers differ, from two small tables.

    table(upstream) - table(downstream) = table(difference)  --peel-->  id: surplus upstream

A cell holds the count of its ids, their sum word by word, and the sum of their checks. These are integers, so
they add up exactly. A cell with n copies of one id holds n times that id. So the result says how often an
id is missing or extra. An id lies in `HASHES` cells, one in each part of the table. An id that is alone in
a cell is removed from its other cells, which may leave another id alone.

For many differing ids a table needs about 1.5 cells for each, for few ids some more (`cells_for`). If the
cells do not suffice, the result says so, with the number needed.

Sources: Eppstein, Goodrich, Uyeda and Varghese, "What's the Difference? Efficient Set Reconciliation without
Prior Context", SIGCOMM 2011; Goodrich and Mitzenmacher, "Invertible Bloom Lookup Tables", 2011.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switchyard.audit.model.fingerprint import Words, id_bytes, mix

HASHES = 4
LEAST_CELLS = 24
MOST_CELLS = 1 << 20  # 50 MB while it is filled
_WORDS = 4  # of 32 bits, of an id
_COLUMNS = 2 + _WORDS  # count, words, check
_CHUNK = 1 << 20  # ids whose words add up to less than 2^53: exact as floats
_KEYS = (  # arbitrary odd numbers: one for each part of the table, one for the check
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
    0x589965CC75374CC3,
    0x1D8E4E27C47D124F,
)
_HEAD = struct.Struct(">BII")
_VERSION = 1
_MASK32 = np.uint64(0xFFFFFFFF)

Cells = npt.NDArray[np.int64]


class CorruptTable(ValueError):
    """The bytes are not a table of this version."""


class IdSetDifference(NamedTuple):
    """The ids that differ, as far as peeling could separate them.

    Attributes:
        missing: Id -> surplus in the first table: the id did not arrive.
        extra: Id -> surplus in the second table: the id arrived too often, or has no source.
        is_complete: No other id differs. If not, more ids differ than the cells could separate.
        cells_needed: The cells that would probably suffice; 0 if these did.
    """

    missing: dict[bytes, int]
    extra: dict[bytes, int]
    is_complete: bool
    cells_needed: int


class InvertibleBloomTable:
    """An invertible Bloom lookup table over 128-bit ids. Raises ValueError: `cells` is out of bounds."""

    __slots__ = ("_cells", "_part")

    def __init__(self, cells: int) -> None:
        if not LEAST_CELLS <= cells <= MOST_CELLS + HASHES:
            raise ValueError(f"{cells} cells; a table has {LEAST_CELLS} to {MOST_CELLS}")
        self._part = -(-cells // HASHES)
        self._cells: Cells = np.zeros((_COLUMNS, HASHES * self._part), dtype=np.int64)

    @property
    def cells(self) -> int:
        return HASHES * self._part

    def insert(self, ids: Words) -> None:
        """Adds ids, rows of two words (`fingerprint.ids_of`). A repeated id counts each time."""
        for at in range(0, len(ids), _CHUNK):
            self._add(ids[at : at + _CHUNK], np.ones(len(ids[at : at + _CHUNK]), dtype=np.int64))

    def subtract(self, other: InvertibleBloomTable) -> None:
        """Leaves the difference. Raises ValueError: the tables have different sizes."""
        if other._part != self._part:
            raise ValueError(f"a table of {self.cells} cells and one of {other.cells} cannot be compared")
        self._cells = self._cells - other._cells

    def peel(self) -> IdSetDifference:
        """Removes all ids that can be separated; ids with a positive count are missing, the others extra."""
        found: dict[bytes, int] = {}
        for _ in range(self.cells):  # each round frees a cell, unless ids were crafted to prevent it
            ids, counts = self._pure()
            if not len(ids):
                break
            for row, count in zip(ids.tolist(), counts.tolist(), strict=True):
                name = id_bytes(row)
                found[name] = found.get(name, 0) + count
            self._add(ids, -counts)
        missing = {name: count for name, count in found.items() if count > 0}
        extra = {name: -count for name, count in found.items() if count < 0}
        remaining = self._estimate_remaining()
        needed = (
            max(cells_for(len(missing) + len(extra) + remaining), self.cells * 3 // 2) if remaining else 0
        )
        return IdSetDifference(missing, extra, not remaining, needed)

    def to_bytes(self) -> bytes:
        """The table, compressed: empty cells take almost no space."""
        packed = zlib.compress(self._cells.astype(">i8").tobytes(), 1)
        return _HEAD.pack(_VERSION, self._part, zlib.crc32(packed)) + packed

    @classmethod
    def from_bytes(cls, data: bytes) -> InvertibleBloomTable:
        """The inverse of `to_bytes`. Raises CorruptTable."""
        if len(data) < _HEAD.size:
            raise CorruptTable(f"{len(data)} bytes are too short for a table")
        version, part, checksum = _HEAD.unpack_from(data)
        packed = data[_HEAD.size :]
        cells = HASHES * part
        if (
            version != _VERSION
            or zlib.crc32(packed) != checksum
            or not LEAST_CELLS <= cells <= MOST_CELLS + HASHES
        ):
            raise CorruptTable(
                f"{len(data)} bytes of version {version} with {cells} cells are not a valid table"
            )
        size = 8 * _COLUMNS * cells
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(packed, size + 1)  # one byte more, to notice a larger table
        except zlib.error as error:
            raise CorruptTable(f"a table of {cells} cells: {error}") from error
        if len(raw) != size or not inflate.eof or inflate.unused_data:
            raise CorruptTable(f"a table of {cells} cells must have {size} bytes")
        table = cls(cells)
        table._cells = np.frombuffer(raw, dtype=">i8").astype(np.int64).reshape(_COLUMNS, cells)
        return table

    def _add(self, ids: Words, counts: Cells) -> None:
        """Adds each id as often as its count says; at most `_CHUNK` ids."""
        values = [counts, *(word * counts for word in _id_words(ids))]
        checks = (_check(ids) * counts.astype(np.uint64)).astype(np.int64)  # modulo 2^64
        for number in range(HASHES):
            where = self._places(ids, number)
            for column, value in enumerate(values):
                np.add.at(self._cells[column], where, value)
            np.add.at(self._cells[-1], where, checks)

    def _places(self, ids: Words, number: int) -> Cells:
        """The cell of each id in one part of the table."""
        hashed = mix(mix(ids[:, 0] ^ np.uint64(_KEYS[number])) + ids[:, 1])
        return (hashed % np.uint64(self._part)).astype(np.int64) + number * self._part

    def _pure(self) -> tuple[Words, Cells]:
        """Ids that are alone in a cell, each once, and their counts there."""
        counts = self._cells[0]
        rows = np.flatnonzero(counts)
        counts = counts[rows]
        sums = self._cells[1:-1, rows]
        words = sums // counts
        alone = (
            (words * counts == sums).all(axis=0) & (words >= 0).all(axis=0) & (words < 1 << 32).all(axis=0)
        )
        rows, counts, words = rows[alone], counts[alone], words[:, alone].astype(np.uint64)
        shift = np.uint64(32)
        ids = np.stack((words[0] << shift | words[1], words[2] << shift | words[3]), axis=1)
        checks = (_check(ids) * counts.astype(np.uint64)).astype(np.int64)
        places = np.stack([self._places(ids, number) for number in range(HASHES)])
        sound = (checks == self._cells[-1, rows]) & (places == rows).any(axis=0)
        ids, counts = ids[sound], counts[sound]
        _, first = np.unique(ids, axis=0, return_index=True)
        return ids[first], counts[first]

    def _estimate_remaining(self) -> int:
        """Estimates the remaining ids from the share of empty cells; 0 only if the table is empty."""
        empty = int((self._cells == 0).all(axis=0).sum())
        if empty == self.cells:
            return 0
        share = max(empty, 0.5) / self.cells
        return max(1, math.ceil(-math.log(share) * self._part))


def cells_for(ids: int) -> int:
    """The cells that separate `ids` differing ids, except once in several hundred cases."""
    return min(MOST_CELLS, math.ceil(1.5 * ids) + 2 * LEAST_CELLS)


def _id_words(ids: Words) -> Iterable[Cells]:
    """The four 32-bit words of each id."""
    shift = np.uint64(32)
    for half in (ids[:, 0], ids[:, 1]):
        yield (half >> shift).astype(np.int64)
        yield (half & _MASK32).astype(np.int64)


def _check(ids: Words) -> Words:
    return mix(mix(ids[:, 0] + np.uint64(_KEYS[HASHES])) ^ ids[:, 1])
