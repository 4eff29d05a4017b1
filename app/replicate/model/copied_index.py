"""Finds which records of a source a former copier had already copied, by comparing contents.

    destination, from the last saved floor on:  a b c d        what the former copier wrote, in order
    source, from the last saved base on:        a b c d e f    -> e is the first without a copy

A copier copies in order, so its copies match the beginning of what there was to copy. Since then compaction
or retention may have removed records from the source, but none came in between. The search therefore looks
for each source record behind the copy that matched the record before it. The first record that is not found
ends the search: it and everything behind it has no copy.

Only their order distinguishes records that are equal in everything that is compared. This is wrong only if
some of them have gone: then a record may be taken for its equal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class CopiedIndex:
    """The copies that have not been matched with a source record yet.

    `prints` stand for the copied records; equal records have equal prints.

    Attributes:
        passed: Copies that are accounted for.
        skipped: How many of the passed copies had no record in the source.
        is_over: A record without a copy was found, or no copies are left.
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
        """Copies that are not matched yet. Once the search is over, the source has lost their records."""
        return len(self._left)

    def add(self, prints: Iterable[int]) -> None:
        added = list(prints)
        self._left += added
        self._count.update(added)
        self._over = self._over and not added

    def drop(self, prints: Sequence[int]) -> int:
        """Matches the source's next records; returns how many come before the first without a copy."""
        for index, wanted in enumerate(prints):
            if self._over or not self._count[wanted]:
                self._over = True
                return index
            while True:
                copied = self._left.popleft()
                self._count[copied] -= 1
                self.passed += 1
                if copied == wanted:
                    break
                self.skipped += 1
        return len(prints)
