"""Leader epochs of what a reader has read: they show up to which offset two readers read the same log.

    offsets    0          50        71      80
    reader A   |  epoch 1 |  epoch 3        |          1@0, 3@50
    reader B   |  epoch 1 |  epoch 3 | epoch 5 ...     1@0, 3@50, 5@71     they agree below 71

Every election gives a partition's leader a higher epoch, and a leader only appends. So all readers of an
epoch read parts of one history. An unclean election begins its epoch below offsets that some readers have
read. A reader that had not come that far sees no sign of it.

An entry `e@s` says that offsets below the lowest later start belong to the history of epoch e.

Rules (tests/kafka/records/test_leader_epochs.py)
1. Two readers agree below the first offset at which either left the newest epoch that both have read.
   Without such an epoch, they need not agree anywhere.
2. A response gives only its last epoch. So a start may be too low and an epoch may be missing, and then
   less is known. A start is never too high.

Source: Apache Kafka's LeaderEpochFileCache (KIP-101, KIP-279).
"""

from __future__ import annotations

from typing import NamedTuple

MOST_EPOCHS = 32  # the newest ones; a reader without any of them was away for long
NOWHERE, ENDLESS = -1, 1 << 62  # bounds below which two readers agree at no offset, or at all offsets


class EpochStart(NamedTuple):
    """An epoch, and the first offset that may belong to it."""

    epoch: int
    start_offset: int


Epochs = tuple[EpochStart, ...]  # ascending; empty: not known


def agree_below(first: Epochs, second: Epochs) -> int:
    """The offset below which two readers with known epochs agree (rule 1); `NOWHERE` if not known."""
    common = {start.epoch for start in first} & {start.epoch for start in second}
    if not common:
        return NOWHERE
    return min(
        (start.start_offset for start in (*first, *second) if start.epoch > max(common)), default=ENDLESS
    )


def read_in(epochs: Epochs, epoch: int, start_offset: int) -> Epochs:
    """The epochs after a response from `start_offset` on whose last epoch is `epoch`. A negative `epoch` is
    unknown and changes nothing."""
    if epoch < 0 or (epochs and epochs[-1].epoch == epoch):
        return epochs
    # A former owner read the later epochs, in offsets that are read again or no longer exist.
    kept = tuple(start for start in epochs if start.epoch <= epoch)
    if kept and kept[-1].epoch == epoch:
        return kept
    return (*kept, EpochStart(epoch, start_offset))[-MOST_EPOCHS:]


def joined_epochs(former: Epochs, latest: Epochs) -> tuple[Epochs, int]:
    """Joins a reader's former report with its (or its successor's) latest; the former holds below the
    offset."""
    if not former or not latest:
        return latest, ENDLESS
    holds_below = agree_below(former, latest)
    known = {start.epoch for start in latest}
    common = max((start.epoch for start in former if start.epoch in known), default=-1)
    kept = [start for start in former if start.epoch <= common]
    new = [start for start in latest if start.epoch > common]
    if kept and new:
        new[0] = EpochStart(new[0].epoch, holds_below)
    return (*kept, *new)[-MOST_EPOCHS:], holds_below
