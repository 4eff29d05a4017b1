"""What a replica's owner leaves to its successor, beside the position: how to find what it has written.

    records below `base` of the source have copies, which the destination acknowledged
    what was written beyond them, by `producer_id` in any of its epochs, lies at or above `floor`, behind
    `passed` records of the same producer that are copies of records below `base`

Rules
1. Nothing is appended under an id and epoch before the table knows them: the successor always knows whose
   records to look for, and takes an epoch that nobody has appended under.
2. A lane takes further epochs by itself (`app.kafka.append.lane`, rules 4 to 6), each of them under rule 1.
   Successors leave it `STEP` of them, for notes that come to the table late.
3. A note of another lineage (the source's offsets meant something else) tells whose name to succeed to, and
   nothing of what has a copy.
"""

from __future__ import annotations

import msgspec

from app.kafka.producers.ids import MAX_EPOCH, ProducerId
from app.kafka.records.leader_epochs import Epochs
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId

STEP = 16


class BadHandover(ValueError):
    """Bytes that are no note."""


class ReplicaHandover(msgspec.Struct, frozen=True, array_like=True):
    """See the module. All offsets are next offsets; `log` is the destination that it speaks of.

    Attributes:
        lineage: of the source's offsets (`app.kernel.fencing`); -1: written before it was noted.
        source_epoch: the leader epoch in which the source was last found truncated; 0: it never was.
        read_epoch: no record below `base` was written in a later leader epoch; -1: not known.
        losses: how often the destination was found to have lost acknowledged records, or made anew.
        source, target: what is copied, and where to, as the route calls them: "cluster", "cluster/topic"; "":
            written before they were noted.
        lost, lost_ms: offsets below `base` that the source had lost before they were copied; when the last
            of them were found missing, 0: none were.
        quiet_below: below it of the source records may be in the copy twice, so no barrier is told there
            (`app.replicate.pump.offset_sync_emitter`); -1: none may.
        epochs: of the source's leaders, that were read in (`app.kafka.records.leader_epochs`); (): not known.
        stamp: behind what the producer wrote below `floor`; None: it is not known, or of another lineage.
        uncompared: of a route that compares all, copies of records below `base` that were not (yet).
        begun_anew: how often the source was found truncated, or deleted and made anew.
    """

    log: LogId
    base: int
    producer_id: int
    epoch: int
    floor: int
    passed: int = 0
    lineage: int = -1
    source_epoch: int = 0
    read_epoch: int = -1
    losses: int = 0
    source: str = ""
    target: str = ""
    lost: int = 0
    lost_ms: int = 0
    quiet_below: int = -1
    epochs: Epochs = ()
    stamp: ProducerStamp | None = None
    uncompared: int = 0
    begun_anew: int = 0

    def to_bytes(self) -> bytes:
        """For the tracker table."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> ReplicaHandover:
        """Raises `BadHandover`."""
        try:
            return _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadHandover(f"not a replica's note: {error}; {len(data)} bytes") from error

    def successor(self, seen_epoch: int) -> ProducerId | None:
        """The next owner's producer; None when no epoch is left. `seen_epoch`: the highest in the log."""
        epoch = max(self.epoch, seen_epoch) + STEP
        return ProducerId(self.producer_id, epoch) if epoch + STEP <= MAX_EPOCH else None


_decoder = msgspec.json.Decoder(ReplicaHandover)
