"""Readers of a log that loses its end at times agree as far as their epochs say."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.leader_epochs import (
    ENDLESS,
    MOST_EPOCHS,
    NOWHERE,
    Epochs,
    EpochStart,
    agree_below,
    joined_epochs,
    read_in,
)


def epochs(*starts: tuple[int, int]) -> Epochs:
    return tuple(EpochStart(*start) for start in starts)


@dataclass
class Reader:
    """A reader of (epoch, number) records; `saved` is the state that a successor knows."""

    read: list[tuple[int, int]] = field(default_factory=list)
    epochs: Epochs = ()
    saved: tuple[int, Epochs] = (0, ())

    def fetch(self, log: list[tuple[int, int]], count: int) -> None:
        """Reads on, unless the log has lost read records, which the reader then notices."""
        start = len(self.read)
        if log[:start] == self.read and (more := log[start : start + count]):
            self.epochs = read_in(self.epochs, more[-1][0], start)
            self.read += more

    def successor(self, log: list[tuple[int, int]]) -> Reader:
        """A successor, if the log still has the saved records."""
        base, known = self.saved
        if log[:base] != self.read[:base]:
            return self
        return Reader(self.read[:base], known, self.saved)


def same(one: list[tuple[int, int]], other: list[tuple[int, int]], below: int) -> bool:
    to = max(0, min(below, len(one), len(other)))
    return one[:to] == other[:to]


@given(st.integers(0, 1 << 32))
def test_records_below_the_agreed_offset_are_the_same(seed: int) -> None:
    """Also for a reader and its successor, and for readers of different logs."""
    chance = random.Random(seed)
    log: list[tuple[int, int]] = []
    epoch = number = 0
    readers = [Reader() for _ in range(3)]
    reports: list[Epochs] = [()] * 3
    for _ in range(60):
        at = chance.randrange(3)
        reader = readers[at]
        act = chance.choice(["write", "read", "read", "save", "succeed", "cut", "elect"])
        if act == "write":
            for _ in range(chance.randint(1, 5)):
                number += 1
                log.append((epoch, number))
        elif act == "read":
            reader.fetch(log, chance.randint(1, 6))
            reports[at], _ = joined_epochs(reports[at], reader.epochs)
        elif act == "save":
            reader.saved = len(reader.read), reader.epochs
        elif act == "succeed":
            former, reader = reader, reader.successor(log)
            if reader is not former:
                reader.fetch(log, chance.randint(1, 9))
                reports[at], holds_below = joined_epochs(reports[at], reader.epochs)
                assert same(former.read, reader.read, holds_below)
                readers[at] = reader
        else:
            epoch += 1
            del log[max(0, len(log) - (chance.randint(0, 6) if act == "cut" else 0)) :]
        for one in range(3):
            for other in range(3):
                for mine, theirs in (
                    (readers[one].epochs, readers[other].epochs),
                    (reports[one], reports[other]),
                ):
                    if mine and theirs:
                        below = agree_below(mine, theirs)
                        assert same(readers[one].read, readers[other].read, below), (mine, theirs)


def test_readers_agree_up_to_the_end_of_their_last_common_epoch() -> None:
    one, other = epochs((1, 0), (3, 50)), epochs((1, 0), (3, 50), (5, 71))
    assert agree_below(one, one) == ENDLESS
    assert agree_below(one, other) == agree_below(other, one) == 71
    assert agree_below(one, epochs((1, 0), (4, 40), (5, 60))) == 40
    assert agree_below(one, epochs((4, 40))) == NOWHERE


def test_reader_stays_in_its_epoch_and_begins_a_new_one_where_it_reads_it() -> None:
    read = read_in(read_in(read_in((), 1, 0), 1, 30), 3, 50)
    assert read == epochs((1, 0), (3, 50))
    assert read_in(read, -1, 60) == read, "old formats tell none"
    assert read_in(read, 1, 20) == epochs((1, 0)), "who begins again below has not read the later one"
    assert len(read_in(tuple(EpochStart(n, n) for n in range(MOST_EPOCHS)), 99, 99)) == MOST_EPOCHS


def test_former_report_holds_up_to_where_the_successors_history_differs() -> None:
    reported = epochs((1, 0), (3, 50), (5, 71))
    assert joined_epochs(reported, reported) == (reported, ENDLESS)
    assert joined_epochs(reported, epochs((1, 0), (3, 50), (7, 72))) == (epochs((1, 0), (3, 50), (7, 71)), 71)
    assert joined_epochs(reported, epochs((6, 80))) == (epochs((6, 80)), NOWHERE)
    assert joined_epochs((), reported) == (reported, ENDLESS)
    assert joined_epochs(reported, ()) == ((), ENDLESS)
