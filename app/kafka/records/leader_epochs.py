"""Which history of a source's offsets a reader of it has seen: the leader epochs of what it read.

    offsets   0          50        71      80
    one       |  epoch 1 |  epoch 3        |          1@0, 3@50
    other     |  epoch 1 |  epoch 3 | epoch 5 ...     1@0, 3@50, 5@71     they agree below 71

Every election gives a partition's leader a higher epoch, and a leader only appends: an epoch is one history,
of which those who read in it have read a part each. An unclean election begins its epoch below offsets that
were read; who had not come so far goes on as if nothing had happened, and notices nothing.

    epochs e@s   what was read below the least start of the later ones is the history of epoch e

Rules
1. Two readers agree up to where either of them left the newest epoch in which both have read. Without one
   they need not agree anywhere.
2. A start may be told too low (a response tells the last epoch in it), and an epoch be left out with it: then
   less is known. It is never told too high.

Source: Apache Kafka's LeaderEpochFileCache (KIP-101, KIP-279).
"""

from __future__ import annotations

from typing import NamedTuple

MOST_EPOCHS = 32  # the newest: who has read in none of them has been away for long
NOWHERE, ENDLESS = -1, 1 << 62  # below which offset two agree


class EpochStart(NamedTuple):
    """See the module; `start_offset` is the first offset that may be of the epoch."""

    epoch: int
    start_offset: int


Epochs = tuple[EpochStart, ...]  # ascending; (): not known


def agree_below(one: Epochs, other: Epochs) -> int:
    """Rule 1, of epochs that are known: below which offset the two have read one history;
    `NOWHERE`: that is not known of any."""
    common = {start.epoch for start in one} & {start.epoch for start in other}
    if not common:
        return NOWHERE
    return min((start.start_offset for start in (*one, *other) if start.epoch > max(common)), default=ENDLESS)


def read_in(epochs: Epochs, epoch: int, start_offset: int) -> Epochs:
    """With what was read from `start_offset` on, in that epoch and maybe some before it; below 0: nobody
    knows in which."""
    if epoch < 0 or (epochs and epochs[-1].epoch == epoch):
        return epochs
    # Later epochs were read by a former owner, in what is read again, or is not there any more.
    kept = tuple(start for start in epochs if start.epoch <= epoch)
    if kept and kept[-1].epoch == epoch:
        return kept
    return (*kept, EpochStart(epoch, start_offset))[-MOST_EPOCHS:]


def gone_on(told: Epochs, more: Epochs) -> tuple[Epochs, int]:
    """The epochs of a reader that has told `told` and then (itself, or its successor) `more`; and below which
    offset what was told before still holds."""
    if not told or not more:
        return more, ENDLESS
    holds_below = agree_below(told, more)
    known = {start.epoch for start in more}
    common = max((start.epoch for start in told if start.epoch in known), default=-1)
    kept = [start for start in told if start.epoch <= common]
    new = [start for start in more if start.epoch > common]
    if kept and new:
        new[0] = EpochStart(new[0].epoch, holds_below)
    return (*kept, *new)[-MOST_EPOCHS:], holds_below
