"""Partitions whose readers are given what others of this worker know already, instead of fetching it again.

    a partition's Fetched --offer--> its followers' own Fetched, of the same bytes   (app.kafka.fetch.service)
    acknowledged batches  --give---> Headed: their headers
    (app.kafka.append.local_appends)

Rules
1. A follower gets what goes on exactly where it has come (`app.kafka.fetch.shared_reads`), of the same log:
   topic id and leader epoch are the same, and neither is in doubt. What was found out for it by its own
   fetching stays with it: gaps, truncations and topics made anew are told to it as if it fetched.
2. While it is given something it is not fetched; nor for `SHARED_READ_WAIT_S` afterwards, as more is to be
   expected. Who is given nothing, or misses something, is fetched as ever. In a backlog it comes up with the
   other reader, and would pass it: no more than `AHEAD` answers before that one it waits for it, for `NEAR_S`
   an answer. It is held up so only by who gets on quickly: from who does not it gets further away.
3. Nobody waits for a follower: what it has no room for it misses.
4. What hides aborted transactions is taken as it was fetched, from its beginning on, or not at all.
5. Of what another reader has fetched it is given the headers, as long as they tell all (`Counts`): what comes
   within `HEADERS_WAIT_S` is looked at together, and no bytes are held for it. Where they do not, it is
   fetched from there, and given all for `WHOLE_S`.
6. Of who reads ahead of it the headers of the last answers are remembered (`MOST_TRAIL`, of all followers
   `MOST_TRAILS`): both would go on at the same pace else, and it would never come up. Who begins further
   behind than that may be fetched beside the other one until the backlog ends.
7. What is taken from its middle on repeats what the follower has. As when a fetch begins in the middle of a
   batch its reader drops what lies below its own position; so such bytes begin a chunk, and are never within.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import structlog

from app.audit.counts.partition_counter import bytes_below
from app.kafka.fetch.deliveries import (
    HEADED_BYTES,
    PARTITION_BUFFER_BYTES,
    PARTITION_MAX_BYTES,
    ByteBudget,
    FetchedBatches,
    FetchedHeaders,
    PartitionFetch,
    UncheckedHeaders,
)
from app.kafka.fetch.shared_reads import SharedReadOffer, offered
from app.kafka.records.header_arrays import BatchHeaderArrays, headers_of_heads, heads_of
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

SHARED_READ_WAIT_S = 1.0
HEADERS_WAIT_S = 2.0
WHOLE_S = 10.0
NEAR_S, AHEAD = 0.5, 4
MOST_HEADS = 8_192  # that are looked at together
MOST_TRAIL, MOST_TRAILS = 8_192, 131_072  # headers, of about a hundred bytes

Deliver = Callable[[Any], Awaitable[None]]
Counts = Callable[[BatchHeaderArrays], int]  # how many of the first batches their headers tell all of
HeadsOf = Callable[[bytes], list[bytes] | None]  # of whole batches; None: they do not tell all


class SharedReadService:
    """See the module; of one fetch service. `wake` makes it look what is to be fetched."""

    def __init__(self, deliver: Deliver, budget: ByteBudget, wake: Callable[[], None]) -> None:
        self._deliver = deliver
        self._budget = budget
        self._wake = wake
        self._of: dict[tuple[str, int], PartitionFetch] = {}
        self._giving: set[asyncio.Task[None]] = set()
        self.given = 0  # times

    def add(self, part: PartitionFetch, counts: Counts | None, heads: HeadsOf = heads_of) -> None:
        """It follows from now on, if it `counts`. A partition has one follower: the newest."""
        if counts is not None:
            part.counts, part.heads_of = counts, heads
            self._of[part.topic, part.partition] = part

    def remove(self, part: PartitionFetch) -> None:
        """It is not fetched any more."""
        if self._of.get((part.topic, part.partition)) is part:
            del self._of[part.topic, part.partition]

    def of(self, topic: str, partition: int) -> PartitionFetch | None:
        """Who follows there."""
        return self._of.get((topic, partition))

    async def stop(self) -> None:
        """Gives nothing any more."""
        for task in list(self._giving):
            task.cancel()
        await asyncio.gather(*self._giving, return_exceptions=True)

    # -- another reader's --------------------------------------------------------------------------

    def offer(self, leader: PartitionFetch, fetched: FetchedBatches | None = None) -> None:
        """What was fetched for `leader`; None: nothing is there yet. Never blocks."""
        part = self._of.get((leader.topic, leader.partition))
        if part is None or leader.counts is not None or not is_same_log(part, leader):
            return
        start = end = leader.next_offset
        is_whole = False
        if fetched is not None:
            end, is_whole = fetched.next_offset, bool(fetched.aborted or fetched.damage)
        part.high_watermark, part.seen_at_s = leader.high_watermark, time.monotonic()
        what = offered(part.next_offset, start, end, is_whole=is_whole)
        if what is not SharedReadOffer.MISSES and part.trail:
            forget(part)  # it has come up
        match what:
            case SharedReadOffer.WAITS:
                self.wait(part)
            case SharedReadOffer.TAKES if fetched is not None and not fetched.damage and self.has_room(part):
                if part.is_given or not part.polling:  # else its own answer brings it
                    heads = heads_for(part, start, fetched) if start == part.next_offset else None
                    self.give(part, heads or whole_batches_for(part, fetched))
                self.wait(part)
            # this one is behind; another one may not be
            case SharedReadOffer.MISSES if end < part.next_offset:
                if part.next_offset - end <= AHEAD * (end - start):
                    self.wait(part, NEAR_S)
            case SharedReadOffer.MISSES if fetched is not None and self._comes_up(part, start, fetched):
                self.wait(part, NEAR_S)
            case _:
                self.go(part)

    def _comes_up(self, part: PartitionFetch, start: int, fetched: FetchedBatches) -> bool:
        """Whether what it lacks is remembered (rule 6): it is given that, once it is not being fetched."""
        remember(part, start, fetched, min(MOST_TRAIL, MOST_TRAILS // len(self._of)))
        if not part.trail or part.trail[0].start_offset > part.next_offset or not self.has_room(part):
            return False
        if part.polling and not part.is_given:
            return True
        found = remembered(part)
        for one in found:
            self.give(part, one)
        return bool(found)

    def has_room(self, part: PartitionFetch) -> bool:
        """Whether it would be fetched."""
        has_room = self._budget.free_bytes > part.leaves_bytes
        return has_room and part.unreleased_bytes < PARTITION_BUFFER_BYTES

    def give(self, part: PartitionFetch, made: FetchedBatches) -> None:
        """What it goes on with; not while it is fetched itself."""
        part.unreleased_bytes += made.nbytes
        self._budget.used_bytes += made.nbytes
        part.next_offset = made.next_offset
        part.last_epoch = max(part.last_epoch, made.leader_epoch)
        part.failures, part.told = 0, ""
        part.given.append(made)
        self.given += 1
        if not part.is_given:
            part.polling = part.is_given = True
            task = asyncio.get_running_loop().create_task(self._hand_on(part))
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _hand_on(self, part: PartitionFetch) -> None:
        made: FetchedBatches | None = None
        try:
            while part.given and not part.removed:
                if part.lingers_s and part.unreleased_bytes < PARTITION_MAX_BYTES // 2:
                    # What comes bit by bit is counted together.
                    is_heads = isinstance(part.given[0], UncheckedHeaders)
                    await asyncio.sleep(HEADERS_WAIT_S if is_heads else part.lingers_s)
                made = joined(part)
                if isinstance(made, UncheckedHeaders):  # rule 5
                    part.by_heads, part.whole_until_s = False, time.monotonic() + WHOLE_S
                    break
                await self._deliver(made)
                made = None
        except Exception:
            log.exception("what was given was not taken", topic=part.topic, partition=part.partition)
        finally:
            left = [*([] if made is None else [made]), *part.given]
            part.given.clear()
            if left:  # rule 6 of `app.kafka.fetch.service`: it is fetched
                part.next_offset = left[0].start_offset
                self.go(part)
            for one in left:
                one.release()
            part.polling = part.is_given = False

    # -- when it is fetched ------------------------------------------------------------------------

    def wait(self, part: PartitionFetch, fed_s: float = SHARED_READ_WAIT_S) -> None:
        """It is not fetched for a moment (rule 2)."""
        part.retry_at_s = max(part.retry_at_s, time.monotonic() + fed_s)
        part.waits = True

    def go(self, part: PartitionFetch) -> None:
        """It is fetched, if it was to `wait`."""
        if part.waits:
            part.waits = False
            if not part.failures:
                part.retry_at_s = 0.0
                self._wake()


def whole_batches_for(part: PartitionFetch, fetched: FetchedBatches) -> FetchedBatches:
    """What another reader has fetched."""
    return FetchedBatches(
        part, len(fetched.data), fetched.data, fetched.next_offset, fetched.aborted, fetched.high_watermark,
        "", fetched.leader_epoch,
    )  # fmt: skip


def heads_for(part: PartitionFetch, start: int, fetched: FetchedBatches) -> UncheckedHeaders | None:
    """The headers of what another reader has fetched from `start` on; None: it is to be given all."""
    if fetched.aborted or fetched.damage or part.counts is None or not fetched.data:
        return None
    if not part.by_heads and time.monotonic() < part.whole_until_s:
        return None
    if bytes_below(fetched.data, start):  # it begins in the middle of a batch
        return None
    heads = part.heads_of(fetched.data)
    if not heads:
        part.by_heads, part.whole_until_s = False, time.monotonic() + WHOLE_S
        return None
    if not part.by_heads:  # looked at once, and then believed of what follows until it proves wrong
        headers = headers_of_heads(heads)
        if headers is None or part.counts(headers) < len(heads):
            part.whole_until_s = time.monotonic() + WHOLE_S
            return None
        part.by_heads = True
    is_at_end = fetched.next_offset >= fetched.high_watermark  # else it is a backlog: see `Tally.add`
    return UncheckedHeaders(
        part, start, heads, now_ms() if is_at_end else -1, fetched.next_offset, fetched.high_watermark,
        fetched.leader_epoch,
    )  # fmt: skip


def remember(part: PartitionFetch, start: int, fetched: FetchedBatches, most: int) -> None:
    """What another reader has fetched from `start` on, where that goes on with what is remembered; the last
    `most` headers."""
    trail, of = part.trail, (part.topic_id, part.epoch)
    if part.trail_of != of or (trail and trail[-1].next_offset != start):
        forget(part)
    part.trail_of = of
    made = heads_for(part, start, fetched)
    if made is None:
        forget(part)
        return
    trail.append(made)
    part.trailing += len(made.heads)
    while part.trailing > most:  # of an answer that has more by itself nothing
        part.trailing -= len(trail.popleft().heads)


def forget(part: PartitionFetch) -> None:
    """Nothing is remembered for it."""
    part.trail.clear()
    part.trailing = 0


def remembered(part: PartitionFetch) -> list[UncheckedHeaders]:
    """What is remembered from its position on, and forgotten here; none, if that is in the middle of a
    batch."""
    position = part.next_offset
    found = [one for one in part.trail if one.next_offset > position]
    forget(part)
    if found and found[0].start_offset < position:
        first = found[0]
        rest = [head for head in first.heads if int.from_bytes(head[:8], signed=True) >= position]
        if not rest or int.from_bytes(rest[0][:8], signed=True) != position:
            return []
        found[0] = UncheckedHeaders(
            part, position, rest, first.seen_at_ms, first.next_offset, first.high_watermark,
            first.leader_epoch,
        )  # fmt: skip
    return found


def headed(part: PartitionFetch) -> FetchedBatches:
    """Of the first headers that it is given those that tell all. A `UncheckedHeaders`: they do not."""
    found, given = [part.given.popleft()], part.given
    size = found[0].nbytes
    while given and isinstance(given[0], UncheckedHeaders) and size < MOST_HEADS * HEADED_BYTES:
        size += given[0].nbytes
        found.append(given.popleft())
    some = [one for one in found if isinstance(one, UncheckedHeaders)]
    headers = headers_of_heads([head for one in some for head in one.heads])
    count = 0 if headers is None or part.counts is None else part.counts(headers)
    told = []
    for one in some:
        count -= len(one.heads)
        if count < 0:
            break
        told.append(one)
    given.extendleft(reversed(some[len(told) :]))
    if not told:
        return given.popleft()
    assert headers is not None, "they were counted"
    counts = [len(one.heads) for one in told]
    seen_at_ms = np.repeat(np.array([one.seen_at_ms for one in told], dtype=np.int64), counts)
    last = told[-1]
    made = FetchedHeaders(
        part, headers.of(slice(sum(counts))), seen_at_ms, last.next_offset, last.high_watermark,
        max(one.leader_epoch for one in told),
    )  # fmt: skip
    made.start_offset = told[0].start_offset
    for one in told:
        one.hand_over()
    return made


def joined(part: PartitionFetch) -> FetchedBatches:
    """The first that it is given, with what goes on behind it: as headers, or where it is little and plain.

    Whatever it raises, all is given still: else it would be passed over.
    """
    before = list(part.given)
    try:
        return headed(part) if isinstance(before[0], UncheckedHeaders) else whole_batches(part)
    except Exception:
        part.given = deque(before)  # what is joined is handed over last of all
        raise


def whole_batches(part: PartitionFetch) -> FetchedBatches:
    """The first that it is given, with what goes on behind it where that is little and plain."""
    found, given = [part.given.popleft()], part.given
    if is_plain(found[0]):
        size = found[0].nbytes
        while given and goes_on(given[0]) and size + given[0].nbytes <= PARTITION_MAX_BYTES:
            size += given[0].nbytes
            found.append(given.popleft())
    if len(found) == 1:
        return found[0]
    data, last = b"".join(one.data for one in found), found[-1]
    made = FetchedBatches(
        part,
        size,
        data,
        last.next_offset,
        [],
        last.high_watermark,
        "",
        max(one.leader_epoch for one in found),
    )
    made.start_offset = found[0].start_offset
    for one in found:
        one.hand_over()
    return made


def is_plain(fetched: FetchedBatches) -> bool:
    """Whether nothing is known of it but its bytes."""
    return type(fetched) is FetchedBatches and not fetched.aborted


def goes_on(fetched: FetchedBatches) -> bool:
    """Whether it may be read right behind what comes before it: nothing of that is in it again (rule 5)."""
    return is_plain(fetched) and not bytes_below(memoryview(fetched.data), fetched.start_offset)


def is_same_log(part: PartitionFetch, other: PartitionFetch) -> bool:
    """Rule 1: whether offsets of either mean the same records, as far as both know."""
    is_known = bool(part.topic_id) and part.topic_id == other.topic_id and part.epoch == other.epoch
    return is_known and not (part.removed or is_in_doubt(part) or is_in_doubt(other))


def is_in_doubt(part: PartitionFetch) -> bool:
    """Whether its log may be another one now."""
    return part.doubted or part.unsure
