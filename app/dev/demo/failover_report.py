"""Counts the outcome of every message while regions are lost and return. Pure, so that tests can use known
answers.

Rules
1. Every acknowledged message must be delivered: for an active-passive workload once, in any region; for an
   active-active workload in every region.
2. A producer that fails over sends unacknowledged messages again. So a message may be several records,
   each of which is delivered. Only deliveries beyond its records are repeats.
3. Repeats are reported by the last switch before them: their number, and the longest time from a first
   delivery to the switch.
4. A delivery is stale if its epoch is below the highest under which a region was primary before it. It is
   also stale if it is not primary, and another region is already primary under its epoch. For active-active
   workloads only primary deliveries are tested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from app.kernel.json_types import JsonMapping


@dataclass(frozen=True, slots=True)
class Switch:
    """An event that moved workloads: its name and time."""

    name: str
    at_ms: float


@dataclass(slots=True)
class Again:
    """Repeats after a switch: their number, and the longest time from a first delivery to the switch."""

    count: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """The outcome for one workload.

    Attributes: messages: Messages acknowledged to producers. sent_twice: Records beyond the first one of a
    message. delivered: Home (the region whose workers delivered) -> lines of its journals, failed deliveries
    included. lost: Messages without a delivery; for an active-active workload, in at least one region. again:
    Switch -> the repeats after it (rule 3). stale: Deliveries under a stale role (rule 4). epochs: Epoch ->
    the regions that acted under it.
    """

    messages: int
    sent_twice: int
    delivered: Mapping[str, int]
    lost: tuple[str, ...]
    again: Mapping[str, Again] = field(default_factory=dict)
    stale: tuple[JsonMapping, ...] = ()
    epochs: Mapping[int, frozenset[str]] = field(default_factory=dict)

    @property
    def read_again(self) -> int:
        """Deliveries beyond those of each record."""
        return sum(one.count for one in self.again.values())

    @property
    def sound(self) -> bool:
        """Nothing lost, one active region at any time."""
        return not self.lost and not self.stale and all(len(regions) == 1 for regions in self.epochs.values())


def active_passive(
    acknowledged: Iterable[str],
    records: Mapping[str, int],
    journals: Mapping[str, Sequence[JsonMapping]],
    switches: Sequence[Switch],
) -> Balance:
    """The outcome of one active-passive workload, from its journals by home.

    Args:
        records: The number of records of each message, in all regional clusters.
    """
    taken = _in_time(chain.from_iterable(journals.values()))
    lost = sorted(set(acknowledged) - {line["id"] for line in taken})
    stale, epochs = _stale(taken)
    return _balance(acknowledged, records, journals, lost, _again([taken], records, switches), stale, epochs)


def active_active(
    acknowledged: Iterable[str],
    records: Mapping[str, int],
    journals: Mapping[str, Sequence[JsonMapping]],
    switches: Sequence[Switch],
) -> Balance:
    """The outcome of one active-active workload, as above; every region must deliver everything."""
    homes = [_in_time(lines) for lines in journals.values()]
    wanted = set(acknowledged)
    lost = sorted({name for lines in homes for name in wanted - {line["id"] for line in lines}})
    stale, epochs = _stale(_in_time(line for lines in homes for line in lines if line["primary"]))
    return _balance(acknowledged, records, journals, lost, _again(homes, records, switches), stale, epochs)


def _stale(lines: Iterable[JsonMapping]) -> tuple[list[JsonMapping], dict[int, set[str]]]:
    """The deliveries under a stale role (rule 4), and the regions that were primary under each epoch."""
    found, highest, acts = [], -1, ""
    epochs: dict[int, set[str]] = defaultdict(set)
    for line in lines:
        epoch, region, primary = line["epoch"], line["region"], line["primary"]
        if epoch < highest or (not primary and epoch == highest and region != acts):
            found.append(line)
        if primary:
            epochs[epoch].add(region)
            if epoch > highest:
                highest, acts = epoch, region
    return found, epochs


def _balance(
    acknowledged: Iterable[str],
    records: Mapping[str, int],
    journals: Mapping[str, Sequence[JsonMapping]],
    lost: list[str],
    again: Mapping[str, Again],
    stale: list[JsonMapping],
    epochs: Mapping[int, set[str]],
) -> Balance:
    return Balance(
        messages=len(set(acknowledged)),
        sent_twice=sum(count - 1 for count in records.values()),
        delivered={home: len(lines) for home, lines in journals.items()},
        lost=tuple(lost),
        again=again,
        stale=tuple(stale),
        epochs={epoch: frozenset(regions) for epoch, regions in epochs.items()},
    )


def _in_time(lines: Iterable[JsonMapping]) -> list[JsonMapping]:
    return sorted((line for line in lines if line["outcome"] == "ok"), key=lambda line: line["at_ms"])


def _again(
    readers: Iterable[Sequence[JsonMapping]], records: Mapping[str, int], switches: Sequence[Switch]
) -> dict[str, Again]:
    found = {switch.name: Again() for switch in (Switch("before any", 0.0), *switches)}
    for lines in readers:
        first: dict[str, float] = {}
        times: Counter[str] = Counter()
        for line in lines:
            name, at_ms = line["id"], line["at_ms"]
            times[name] += 1
            first.setdefault(name, at_ms)
            if times[name] > records.get(name, 1):
                before = [switch for switch in switches if switch.at_ms <= at_ms]
                switch = max(before, key=lambda s: s.at_ms, default=Switch("before any", at_ms))
                one = found[switch.name]
                one.count += 1
                one.oldest_s = max(one.oldest_s, (switch.at_ms - first[name]) / 1000)
    return found
