"""What of a source a former copier had copied already, found by what the records are.

    destination, from the last saved floor on:  a b c d        what the former copier wrote, in order
    source, from the last saved base on:        a b c d e f    -> e is the first without a copy

A copier copies in order, so what it wrote is the beginning of what there was to copy. Since then records may
have gone from the source (compaction, retention), never come in between: each record that is still there is
looked for behind the one found before it, and the first that is not found ends the search. All that follows
has no copy.

Records that are alike in all that is compared are told apart by their order alone. That errs only where some
of them have gone, and then a record is taken for its own equal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class CopiedIndex:
    """See the module. `prints` stand for the copied records; equal records have equal prints.

    Attributes: `passed` (copies that are accounted for), `skipped` (of these, copies whose records were not
    found), `is_over` (a record without a copy was found, or there are no copies left).
    """

    __slots__ = ("_count", "_left", "_over", "passed", "skipped")

    def __init__(self, prints: Iterable[int] = ()) -> None:
        self._left = deque(prints)
        self._count = Counter(self._left)
        self._over = False
        self.passed = self.skipped = 0

    @property
    def is_over(self) -> bool:
        return self._over or not self._left

    @property
    def left(self) -> int:
        """Copies whose records were not found; once it is over they have gone from the source."""
        return len(self._left)

    def add(self, prints: Iterable[int]) -> None:
        """More copies were found, behind the others."""
        added = list(prints)
        self._left += added
        self._count.update(added)
        self._over = self._over and not added

    def drop(self, prints: Sequence[int]) -> int:
        """How many of these records, the next ones of the source, come before the first without a copy."""
        for index, one in enumerate(prints):
            if self._over or not self._count[one]:
                self._over = True
                return index
            while True:
                gone = self._left.popleft()
                self._count[gone] -= 1
                self.passed += 1
                if gone == one:
                    break
                self.skipped += 1
        return len(prints)
