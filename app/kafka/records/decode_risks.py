"""Batches that may end the worker which decodes them: noted before, so that no third owner ends of the same.

    met ──note──▶ waits until the note is saved ──▶ decoded ──▶ forgotten
     └── two owners noted it, and neither said that it was decoded ──▶ dead-lettered undecoded

Rules
1. Only a batch that decompresses to more than `app.kafka.fetch.decoder.RISKY_BYTES` is noted: others never
   are, and whoever is killed while it decodes those says nothing of them.
2. A note counts the owners that began. It stands from before the batch is decompressed until its first
   records are there, a part of a second. An owner that lets go in order withdraws its own.
3. Who inherits a note keeps it until it meets the batch, or has finished what lies below.
4. A batch at which its job failed again and again is dead-lettered undecoded, too (`give_up`).

Pure. `version` grows whenever there is something to save.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MOST_OWNERS = 2  # that began and did not end: one may have been killed by anybody
MOST_NOTED = 8  # a job reads one or two places at once


class DecodeVerdict(Enum):
    """What is to be done with a batch now."""

    WAIT = "wait"
    DECODE = "decode"
    STASH = "stash"


class DecodeRisks:
    """See the module; of one job."""

    __slots__ = ("_began", "_given_up", "_saved_at", "version")

    def __init__(self) -> None:
        self.version = 0
        self._began: dict[int, int] = {}  # base offset of a batch -> owners that began to decode it
        self._given_up: dict[int, str] = {}  # rule 4: base offset of a batch -> why
        self._saved_at: dict[int, int | None] = {}  # noted here -> the job's version to be saved; -1: it is

    def noted(self, base: int) -> tuple[tuple[int, int], ...]:
        """(base offset of a batch, owners that began), for a note of who has finished all below `base`."""
        return tuple(one for one in sorted(self._began.items()) if one[0] >= base or one[0] in self._saved_at)

    def inherit(self, noted: Iterable[tuple[int, int]]) -> None:
        """A former owner's note."""
        self._began = dict(list(noted)[:MOST_NOTED])

    def give_up(self, at: int, why: str) -> None:
        """Rule 4, of the batch at this base offset."""
        self._given_up[at] = why

    def why_given_up(self, at: int) -> str:
        """Why the batch at this base offset is not to be decoded; "" when it may be."""
        return self._given_up.get(at, "")

    def verdict(self, offset: int) -> DecodeVerdict:
        """Of the batch at this base offset, before it is decompressed. Ask again after WAIT."""
        if offset in self._saved_at:
            return DecodeVerdict.DECODE if self._saved_at[offset] == -1 else DecodeVerdict.WAIT
        began = self._began.get(offset, 0)
        if began >= MOST_OWNERS:
            self.ended(offset)
            return DecodeVerdict.STASH
        self._began[offset] = began + 1
        self._saved_at[offset] = None
        self.version += 1
        return DecodeVerdict.WAIT

    def saved(self, version: int, present: int) -> bool:
        """The job's `version` is saved, and it is at `present` now. Whether something may be decoded that
        waited."""
        freed = False
        for offset, known in self._saved_at.items():
            # What is saved may be from before it was noted, unless nothing is newer.
            needed = present if known is None else known
            freed = freed or (version >= needed != -1)
            self._saved_at[offset] = -1 if version >= needed else needed
        return freed

    def ended(self, offset: int) -> None:
        """The first records of it are there, or it never will be decoded."""
        self._saved_at.pop(offset, None)
        if self._began.pop(offset, None) is not None:
            self.version += 1

    def withdraw(self) -> None:
        """What was noted here is not decoded by this owner."""
        for offset in self._saved_at:
            self._began[offset] -= 1
            if not self._began[offset]:
                del self._began[offset]
            self.version += 1
        self._saved_at.clear()
