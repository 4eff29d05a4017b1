"""The note that a replica's owner leaves to its successor: how to find its writes.

Records of the source below `base` have copies, which the destination acknowledged. Later writes by
`producer_id`, in any epoch, lie at or above `floor` in the destination. Before them `passed` records of the
same producer are copies of records below `base`.

Rules
1. A replica appends nothing under an id and epoch before the tracker table knows them. So the successor knows
   whose records to look for, and takes an epoch under which nothing was appended.
2. A lane takes further epochs by itself (`app.kafka.append.lane`, rules 4 to 6), each under rule 1. Notes may
   reach the table late, so a successor begins `STEP` epochs above the highest known one.
3. In a note of another lineage the source's offsets had another meaning. Such a note names only the producer
   to succeed, and does not say what has a copy.
"""

from __future__ import annotations

import msgspec

from app.kafka.producers.ids import MAX_EPOCH, ProducerId
from app.kafka.records.leader_epochs import Epochs
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId

STEP = 16


class BadHandover(ValueError):
    """The bytes are not a note."""


class ReplicaHandover(msgspec.Struct, frozen=True, array_like=True):
    """A note for the successor. All offsets are next offsets; `log` is the destination's log.

    Attributes:
        lineage: The lineage of the source's offsets (`app.kernel.fencing`); -1: an older note without it.
        source_epoch: The leader epoch in which the source was last found truncated; 0: it never was.
        read_epoch: No record below `base` was written in a later leader epoch; -1: not known.
        losses: How often the destination lost acknowledged records, or was recreated.
        source, target: The copied cluster, and the copy's "cluster/topic", by the route's names; "": unknown.
        lost: Offsets below `base` that the source lost before they were copied.
        lost_ms: When the last of these were found missing; 0: none.
        quiet_below: Below this source offset records may be in the copy twice, so no offset sync is emitted
            there (`app.replicate.pump.offset_sync_emitter`); -1: none may.
        epochs: The source's leader epochs in which records were read (`app.kafka.records.leader_epochs`); ():
            not known.
        stamp: The producer's stamp after its records below `floor`; None: not known, or of another lineage.
        uncompared: Copies of records below `base` that are not compared, in a route that compares all.
        begun_anew: How often the source was found truncated, or deleted and recreated.
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
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> ReplicaHandover:
        """Raises `BadHandover`."""
        try:
            return _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadHandover(f"the replica's note cannot be decoded: {error}; {len(data)} bytes") from error

    def successor(self, seen_epoch: int) -> ProducerId | None:
        """The next owner's producer; None: no epoch is left. `seen_epoch`: the highest epoch in the log."""
        epoch = max(self.epoch, seen_epoch) + STEP
        return ProducerId(self.producer_id, epoch) if epoch + STEP <= MAX_EPOCH else None


_decoder = msgspec.json.Decoder(ReplicaHandover)
