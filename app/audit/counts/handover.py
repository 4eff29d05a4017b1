"""The note that an auditor of a partition leaves to its successor. It has the counts of parts that are not
final, or whose reports may not have arrived, so a successor usually reads nothing again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from app.audit.counts.partition_counter import PartState, new_part
from app.kernel.ranges import MAX_OFFSET
from switchyard.audit.model.totals import NEVER_MS

MOST_BYTES = 4 * 1024  # every snapshot contains it


class AuditNote(msgspec.Struct, frozen=True, array_like=True):
    """The counts for a successor.

    Attributes:
        counting: `AuditPlan.counting` of the plan that counted.
        is_cut: No report has said yet that the first windows lack something.
        state: All that may not have arrived; the last is the part that is being counted.
        complete_ms: The reader's; -1: all windows are complete.
    """

    counting: int
    is_cut: bool
    state: tuple[PartState, ...]
    complete_ms: int = NEVER_MS

    @property
    def next_offset(self) -> int:
        return self.state[-1].upto

    @property
    def fits(self) -> bool:
        """Whether there is room for the counts."""
        return len(msgspec.msgpack.encode(self)) <= MOST_BYTES

    def to_bytes(self) -> bytes:
        """At most `MOST_BYTES`; without room for the counts, a successor counts again from the first part
        on."""
        found = msgspec.msgpack.encode(self)
        if len(found) > MOST_BYTES:
            first = new_part(self.state[0].part, self.state[0].since)
            found = msgspec.msgpack.encode(msgspec.structs.replace(self, state=(first,)))
        return found

    @classmethod
    def from_bytes(cls, note: bytes) -> AuditNote | None:
        """None: It is not a note, or another version's."""
        try:
            found = _decoder.decode(note)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_valid = found.state and all(0 <= part.since <= part.upto <= MAX_OFFSET for part in found.state)
        return found if is_valid else None


_decoder = msgspec.msgpack.Decoder(AuditNote)


class CountsFrom(NamedTuple):
    """Where the counts of a job begin, and what its last owner left.

    Attributes:
        next_offset: Counting begins here. The job's base may lie below or above.
        former: The last owner's note; None: there is none, or it is unusable.
        is_cut: Some earlier records were not counted, or were counted by other settings, so the first windows
            may lack some.
    """

    next_offset: int
    former: AuditNote | None
    is_cut: bool
