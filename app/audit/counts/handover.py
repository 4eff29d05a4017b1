"""What an auditor of a partition leaves to its successor, with its position: the figures of parts that have
not ended, or are not known to have arrived. So who takes over reads nothing again, mostly.
"""

from __future__ import annotations

import msgspec

from app.audit.counts.partition_counter import PartState, new_part
from app.kernel.ranges import MAX_OFFSET
from switchyard.audit.model.totals import NEVER_MS

MOST_BYTES = 4 * 1024  # it goes with every snapshot


class AuditNote(msgspec.Struct, frozen=True, array_like=True):
    """What a successor needs.

    Attributes:
        counting: `AuditPlan.counting`, by which it was counted.
        is_cut: it was not told yet that the first windows lack something.
        state: all that is not known to have arrived; the last is what is being counted.
        complete_ms: of the reader; -1: all windows are complete.
    """

    counting: int
    is_cut: bool
    state: tuple[PartState, ...]
    complete_ms: int = NEVER_MS

    @property
    def next_offset(self) -> int:
        """Where it goes on."""
        return self.state[-1].upto

    @property
    def fits(self) -> bool:
        """Whether it is noted with its figures."""
        return len(msgspec.msgpack.encode(self)) <= MOST_BYTES

    def to_bytes(self) -> bytes:
        """In at most `MOST_BYTES`; where that is too little, without figures: they are counted again from
        where the first of their parts began."""
        found = msgspec.msgpack.encode(self)
        if len(found) > MOST_BYTES:
            first = new_part(self.state[0].part, self.state[0].since)
            found = msgspec.msgpack.encode(msgspec.structs.replace(self, state=(first,)))
        return found

    @classmethod
    def from_bytes(cls, note: bytes) -> AuditNote | None:
        """None: it is none, or another version's."""
        try:
            found = _decoder.decode(note)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        sound = found.state and all(0 <= one.since <= one.upto <= MAX_OFFSET for one in found.state)
        return found if sound else None


_decoder = msgspec.msgpack.Decoder(AuditNote)
