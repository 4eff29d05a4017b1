"""Notes of batches whose decompression may kill the worker, so that no third owner dies of the same batch.

    met ──note──▶ waits until the note is saved ──▶ decoded ──▶ forgotten
     └── two owners noted it, and neither decoded it ──▶ dead-lettered undecoded

Rules (tests/kafka/records/test_decode_risks.py)
1. Only a batch that decompresses to more than `app.kafka.fetch.decoder.RISKY_BYTES` is noted. A kill
   during any other batch leaves no note.
2. A note counts the owners that began to decode the batch. It lasts from before the decompression until
   the first records exist, a fraction of a second. An owner that hands over the job withdraws its count.
3. A new owner keeps inherited notes until it meets the batch, or has finished all offsets below it.
4. A batch at which the job failed repeatedly is also dead-lettered undecoded (`give_up`).

Pure. `version` grows whenever there is something to save.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MOST_OWNERS = 2  # a single owner may have died for another reason
MOST_NOTED = 8  # a job reads at one or two places at once


class DecodeVerdict(Enum):
    WAIT = "wait"
    DECODE = "decode"
    STASH = "stash"


class DecodeRisks:
    """One job's notes of risky batches. A batch is named by its base offset."""

    __slots__ = ("_began", "_given_up", "_saved_at", "version")

    def __init__(self) -> None:
        self.version = 0
        self._began: dict[int, int] = {}  # base offset -> owners that began to decode the batch
        self._given_up: dict[int, str] = {}  # base offset -> reason (rule 4)
        self._saved_at: dict[int, int | None] = {}  # own notes: base offset -> version to wait for; -1: saved

    def noted(self, base: int) -> tuple[tuple[int, int], ...]:
        """(base offset, owners that began) of the notes to save, once all below `base` is finished."""
        return tuple(
            (at, began) for at, began in sorted(self._began.items()) if at >= base or at in self._saved_at
        )

    def inherit(self, noted: Iterable[tuple[int, int]]) -> None:
        self._began = dict(list(noted)[:MOST_NOTED])

    def give_up(self, at: int, why: str) -> None:
        """Forbids decoding a batch (rule 4)."""
        self._given_up[at] = why

    def why_given_up(self, at: int) -> str:
        """Why decoding this batch is forbidden; "" if it is not."""
        return self._given_up.get(at, "")

    def verdict(self, offset: int) -> DecodeVerdict:
        """Decides, before decompression, what happens to the batch. Call it again after WAIT."""
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
        """Records that `version` is saved, with the job at `present` now; whether a batch may now be
        decoded."""
        freed = False
        for offset, known in self._saved_at.items():
            # The saved version may predate the note, unless it is the newest one.
            needed = present if known is None else known
            freed = freed or (version >= needed != -1)
            self._saved_at[offset] = -1 if version >= needed else needed
        return freed

    def ended(self, offset: int) -> None:
        """Forgets a batch because its first records exist, or because it will never be decoded."""
        self._saved_at.pop(offset, None)
        if self._began.pop(offset, None) is not None:
            self.version += 1

    def withdraw(self) -> None:
        """Withdraws the notes of batches that this owner will not decode."""
        for offset in self._saved_at:
            self._began[offset] -= 1
            if not self._began[offset]:
                del self._began[offset]
            self.version += 1
        self._saved_at.clear()
