"""A worker's share of an answer about windows: bounded, so that no large topic crowds out the others.

If there are more windows than an answer takes, each topic gets the same room, and passes on what it does not
need. A topic with more windows than room keeps the newest, of all tiers from the same time on. So a window
that is left out is missing on both sides of every comparison. `BookShare.since` says from which time on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from app.audit.folds.collector import Collector
from app.audit.folds.tier import TierRecord
from app.audit.folds.window import WindowKey, WindowRecord
from app.audit.query.view import BookShare, WindowQuery
from switchyard.audit.model.tally import UNTIMED

MOST_WINDOWS = 50_000  # of an answer; each shard of a window counts


def share_of(
    held: Mapping[int, tuple[int, Collector]], wanted: WindowQuery, most: int | None = None
) -> BookShare:
    """The wanted part of this worker's books. `held`: partition -> next offset, fold."""
    records: dict[WindowKey, WindowRecord] = {}
    tiers: dict[str, TierRecord] = {}
    for _, collector in held.values():
        records |= {key: record for key, record in collector.windows.items() if wanted.means(key)}
        tiers |= {str(key): tier for key, tier in collector.tiers.items() if wanted.means(key)}
    since = kept_since(records, MOST_WINDOWS if most is None else most)
    windows = {
        str(key): msgspec.structs.replace(record, counted={})
        for key, record in records.items()
        if key.start_ms == UNTIMED or key.start_ms >= since.get(key.topic, 0)
    }
    return BookShare({partition: offset for partition, (offset, _) in held.items()}, windows, tiers, since)


def kept_since(keys: Iterable[WindowKey], most: int) -> dict[str, int]:
    """Topic -> the time (ms) from which on its windows are kept, for topics that lose some. At most `most`
    are kept."""
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for key in keys:
        starts[key.topic].append(key.start_ms)
    found: dict[str, int] = {}
    room = most
    by_size = sorted(starts, key=lambda topic: (len(starts[topic]), topic))
    for number, topic in enumerate(by_size):
        of_topic = sorted(starts[topic], reverse=True)
        share = room // (len(by_size) - number)
        if len(of_topic) > share:
            first_off = of_topic[share]
            found[topic] = first_off + 1
            room -= sum(start > first_off for start in of_topic)
        else:
            room -= len(of_topic)
    return found
