"""What a replica's owner leaves to its successor, beside the position: how to find what it has written.

    records below `base` of the source have copies, which the destination acknowledged
    what was written beyond them, by `producer_id` in any of its epochs, lies at or above `floor`, behind
    `passed` records of the same producer that are copies of records below `base`

Rules
1. Nothing is appended under an id and epoch before the table knows them: the successor always knows whose
   records to look for, and takes an epoch that nobody has appended under.
2. A lane takes further epochs by itself (`app.kafka.append_lane`, rules 4 and 5). Successors leave it `STEP`
   of them, which is more than it takes between two snapshots.
"""

from __future__ import annotations

import msgspec

from app.core.fencing import LogId
from app.kafka.append_producers import MAX_EPOCH, ProducerId

STEP = 16


class BadNote(ValueError):
    """Bytes that are no note."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """See the module. All offsets are next offsets; `log` is the destination that it speaks of."""

    log: LogId
    base: int
    producer_id: int
    epoch: int
    floor: int
    passed: int = 0

    def to_bytes(self) -> bytes:
        """For the tracker table."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        """Raises `BadNote`."""
        try:
            return _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadNote(f"not a replica's note: {error}; {len(data)} bytes") from error

    def successor(self, seen_epoch: int) -> ProducerId | None:
        """The next owner's producer; None when no epoch is left. `seen_epoch`: the highest in the log."""
        epoch = max(self.epoch, seen_epoch) + STEP
        return ProducerId(self.producer_id, epoch) if epoch + STEP <= MAX_EPOCH else None


_decoder = msgspec.json.Decoder(Note)
