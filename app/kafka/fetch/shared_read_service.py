"""Gives followers of a partition the reads and appends of this worker, so that they need not fetch.

    a reader's FetchedBatches --offer--> the follower's own FetchedBatches, of the same bytes
    acknowledged batches      --give---> FetchedHeaders (app.kafka.append.local_appends)

Rules (tests/kafka/fetch/test_shared_read_batches.py, test_shared_read_service.py)
1. A follower gets only data that continues exactly at its position (`app.kafka.fetch.shared_reads`) in the
   same log. Topic id and leader epoch are equal, and neither is in doubt. Its own fetches report gaps,
   truncations and recreated topics.
2. A follower that gets data is not fetched, nor for `SHARED_READ_WAIT_S` afterwards. One that gets
   nothing, or misses something, is fetched as usual. In a backlog it may overtake the reader. While it is
   at most `MOST_ANSWERS_AHEAD` ahead, it waits `NEAR_S` per answer, so only a fast reader delays it.
3. No reader waits for a follower. A follower without room misses the data.
4. Data with aborted transactions is taken from its beginning, or not at all.
5. A follower gets only headers while headers suffice (`Counts`). Headers within `HEADERS_WAIT_S` are
   checked together, and no batch bytes are held. If they do not suffice, the follower is fetched from
   there and gets whole batches for `WHOLE_S`.
6. For a follower behind the reader, the headers of the last answers are remembered (`MOST_TRAIL`; for all
   followers together `MOST_TRAILS`). Otherwise both would read at the same pace, and it would never catch
   up. A follower further behind may be fetched beside the reader until the backlog ends.
7. Data taken from its middle repeats offsets that the follower has. Its reader drops offsets below its
   position, as after a fetch within a batch. So such bytes begin a chunk, and are never inside one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

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
    FetchItem,
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
NEAR_S, MOST_ANSWERS_AHEAD = 0.5, 4
MOST_HEADS = 8_192  # headers that are checked together
MOST_TRAIL, MOST_TRAILS = 8_192, 131_072  # headers, of about a hundred bytes

Deliver = Callable[[FetchItem], Awaitable[None]]
Counts = Callable[[BatchHeaderArrays], int]  # for how many of the first batches headers suffice
HeadsOf = Callable[[bytes], list[bytes] | None]  # headers of whole batches; None: they do not suffice


class SharedReadService:
    """The followers of one fetch service. `wake` makes the service look for partitions to fetch."""

    def __init__(self, deliver: Deliver, budget: ByteBudget, wake: Callable[[], None]) -> None:
        self._deliver = deliver
        self._budget = budget
        self._wake = wake
        self._followers: dict[tuple[str, int], PartitionFetch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.given = 0  # how often followers got data

    def add(self, part: PartitionFetch, counts: Counts | None, heads: HeadsOf = heads_of) -> None:
        """Makes the partition a follower if it has `counts`; replaces an earlier follower."""
        if counts is not None:
            part.counts, part.heads_of = counts, heads
            self._followers[part.topic, part.partition] = part

    def remove(self, part: PartitionFetch) -> None:
        if self._followers.get((part.topic, part.partition)) is part:
            del self._followers[part.topic, part.partition]

    def follower(self, topic: str, partition: int) -> PartitionFetch | None:
        return self._followers.get((topic, partition))

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sharing -----------------------------------------------------------------------------------

    def offer(self, leader: PartitionFetch, fetched: FetchedBatches | None = None) -> None:
        """Offers a follower the leader's fetched data; None: the log has no more yet. Never blocks."""
        part = self._followers.get((leader.topic, leader.partition))
        if part is None or leader.counts is not None or not is_same_log(part, leader):
            return
        start = end = leader.next_offset
        is_whole = False
        if fetched is not None:
            end, is_whole = fetched.next_offset, bool(fetched.aborted or fetched.damage)
        part.high_watermark, part.seen_at_s = leader.high_watermark, time.monotonic()
        answer = offered(part.next_offset, start, end, is_whole=is_whole)
        if answer is not SharedReadOffer.MISSES and part.trail:
            forget(part)  # it has caught up
        match answer:
            case SharedReadOffer.WAITS:
                self.delay(part)
            case SharedReadOffer.TAKES if fetched is not None and not fetched.damage and self.has_room(part):
                if part.is_given or not part.polling:  # else its own fetch returns the data
                    heads = heads_for(part, start, fetched) if start == part.next_offset else None
                    self.give(part, heads or whole_batches_for(part, fetched))
                self.delay(part)
            # The leader is behind; another reader may not be.
            case SharedReadOffer.MISSES if end < part.next_offset:
                if part.next_offset - end <= MOST_ANSWERS_AHEAD * (end - start):
                    self.delay(part, NEAR_S)
            case SharedReadOffer.MISSES if fetched is not None and self._catches_up(part, start, fetched):
                self.delay(part, NEAR_S)
            case _:
                self.fetch_now(part)

    def _catches_up(self, part: PartitionFetch, start: int, fetched: FetchedBatches) -> bool:
        """Gives remembered headers that the follower lacks (rule 6), once it is not being fetched."""
        remember(part, start, fetched, min(MOST_TRAIL, MOST_TRAILS // len(self._followers)))
        if not part.trail or part.trail[0].start_offset > part.next_offset or not self.has_room(part):
            return False
        if part.polling and not part.is_given:
            return True
        found = remembered(part)
        for piece in found:
            self.give(part, piece)
        return bool(found)

    def has_room(self, part: PartitionFetch) -> bool:
        has_room = self._budget.free_bytes > part.leaves_bytes
        return has_room and part.unreleased_bytes < PARTITION_BUFFER_BYTES

    def give(self, part: PartitionFetch, made: FetchedBatches) -> None:
        """Gives the follower its next data. Call it only while the follower is not being fetched."""
        part.unreleased_bytes += made.nbytes
        self._budget.used_bytes += made.nbytes
        part.next_offset = made.next_offset
        part.last_epoch = max(part.last_epoch, made.leader_epoch)
        part.failures, part.incident, part.held_at = 0, "", -1
        part.given.append(made)
        self.given += 1
        if not part.is_given:
            part.polling = part.is_given = True
            task = asyncio.get_running_loop().create_task(self._hand_on(part))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_on(self, part: PartitionFetch) -> None:
        made: FetchedBatches | None = None
        try:
            while part.given and not part.removed:
                if part.lingers_s and part.unreleased_bytes < PARTITION_MAX_BYTES // 2:
                    # Small pieces are joined.
                    is_heads = isinstance(part.given[0], UncheckedHeaders)
                    await asyncio.sleep(HEADERS_WAIT_S if is_heads else part.lingers_s)
                made = joined(part)
                if isinstance(made, UncheckedHeaders):  # rule 5
                    part.by_heads, part.whole_until_s = False, time.monotonic() + WHOLE_S
                    break
                await self._deliver(made)
                made = None
        except Exception:
            log.exception("shared data was not accepted", topic=part.topic, partition=part.partition)
        finally:
            left = [*([] if made is None else [made]), *part.given]
            part.given.clear()
            if left:  # it is fetched (`app.kafka.fetch.service`, rule 6)
                part.next_offset = left[0].start_offset
                self.fetch_now(part)
            for piece in left:
                piece.release()
            part.polling = part.is_given = False
            self._wake()  # it may have become ready meanwhile

    # -- waiting -----------------------------------------------------------------------------------

    def delay(self, part: PartitionFetch, delay_s: float = SHARED_READ_WAIT_S) -> None:
        part.retry_at_s = max(part.retry_at_s, time.monotonic() + delay_s)
        part.waits = True

    def fetch_now(self, part: PartitionFetch) -> None:
        if part.waits:
            part.waits = False
            if not part.failures:
                part.retry_at_s = 0.0
                self._wake()


def whole_batches_for(part: PartitionFetch, fetched: FetchedBatches) -> FetchedBatches:
    return FetchedBatches(
        part, len(fetched.data), fetched.data, fetched.next_offset, fetched.aborted, fetched.high_watermark,
        "", fetched.leader_epoch,
    )  # fmt: skip


def heads_for(part: PartitionFetch, start: int, fetched: FetchedBatches) -> UncheckedHeaders | None:
    """The headers of another reader's batches from `start` on; None: the follower needs whole batches."""
    if fetched.aborted or fetched.damage or part.counts is None or not fetched.data:
        return None
    if not part.by_heads and time.monotonic() < part.whole_until_s:
        return None
    if bytes_below(fetched.data, start):  # `start` is in the middle of a batch
        return None
    heads = part.heads_of(fetched.data)
    if not heads:
        part.by_heads, part.whole_until_s = False, time.monotonic() + WHOLE_S
        return None
    if not part.by_heads:  # checked once, then assumed until a check fails
        headers = headers_of_heads(heads)
        if headers is None or part.counts(headers) < len(heads):
            part.whole_until_s = time.monotonic() + WHOLE_S
            return None
        part.by_heads = True
    # A backlog's batches have been in the log for longer: see `Tally.add`.
    is_at_end = fetched.next_offset >= fetched.high_watermark
    return UncheckedHeaders(
        part, start, heads, now_ms() if is_at_end else -1, fetched.next_offset, fetched.high_watermark,
        fetched.leader_epoch,
    )  # fmt: skip


def remember(part: PartitionFetch, start: int, fetched: FetchedBatches, most: int) -> None:
    """Remembers the headers of batches that another reader fetched, up to `most` headers. They must continue
    the remembered ones; otherwise those are forgotten."""
    trail, log_id = part.trail, (part.topic_id, part.epoch)
    if part.trail_of != log_id or (trail and trail[-1].next_offset != start):
        forget(part)
    part.trail_of = log_id
    made = heads_for(part, start, fetched)
    if made is None:
        forget(part)
        return
    trail.append(made)
    part.trail_headers += len(made.heads)
    while part.trail_headers > most:  # drops even a single answer above `most`
        part.trail_headers -= len(trail.popleft().heads)


def forget(part: PartitionFetch) -> None:
    part.trail.clear()
    part.trail_headers = 0


def remembered(part: PartitionFetch) -> list[UncheckedHeaders]:
    """Takes the remembered headers from the position on; none if it is in the middle of a batch."""
    position = part.next_offset
    found = [piece for piece in part.trail if piece.next_offset > position]
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


def checked_headers(part: PartitionFetch) -> FetchedBatches:
    """The first given headers that suffice, checked together. An `UncheckedHeaders` if they do not."""
    found, given = [part.given.popleft()], part.given
    size = found[0].nbytes
    while given and isinstance(given[0], UncheckedHeaders) and size < MOST_HEADS * HEADED_BYTES:
        size += given[0].nbytes
        found.append(given.popleft())
    pieces = [piece for piece in found if isinstance(piece, UncheckedHeaders)]
    headers = headers_of_heads([head for piece in pieces for head in piece.heads])
    count = 0 if headers is None or part.counts is None else part.counts(headers)
    enough = []
    for piece in pieces:
        count -= len(piece.heads)
        if count < 0:
            break
        enough.append(piece)
    given.extendleft(reversed(pieces[len(enough) :]))
    if not enough:
        return given.popleft()
    assert headers is not None, "`counts` returned more than 0"
    counts = [len(piece.heads) for piece in enough]
    seen_at_ms = np.repeat(np.array([piece.seen_at_ms for piece in enough], dtype=np.int64), counts)
    last = enough[-1]
    made = FetchedHeaders(
        part, headers.of(slice(sum(counts))), seen_at_ms, last.next_offset, last.high_watermark,
        max(piece.leader_epoch for piece in enough),
    )  # fmt: skip
    made.start_offset = enough[0].start_offset
    for piece in enough:
        piece.hand_over()
    return made


def joined(part: PartitionFetch) -> FetchedBatches:
    """The next given data, joined with its continuation: as headers, or as small plain batches. If it raises,
    all data is still in `given`, so that nothing is skipped."""
    before = list(part.given)
    try:
        return checked_headers(part) if isinstance(before[0], UncheckedHeaders) else whole_batches(part)
    except Exception:
        part.given = deque(before)  # nothing is handed over before the join is complete
        raise


def whole_batches(part: PartitionFetch) -> FetchedBatches:
    """The first given batches, joined with their continuation if they are small and plain."""
    found, given = [part.given.popleft()], part.given
    if is_plain(found[0]):
        size = found[0].nbytes
        while given and may_follow(given[0]) and size + given[0].nbytes <= PARTITION_MAX_BYTES:
            size += given[0].nbytes
            found.append(given.popleft())
    if len(found) == 1:
        return found[0]
    data, last = b"".join(piece.data for piece in found), found[-1]
    epoch = max(piece.leader_epoch for piece in found)
    made = FetchedBatches(part, size, data, last.next_offset, [], last.high_watermark, leader_epoch=epoch)
    made.start_offset = found[0].start_offset
    for piece in found:
        piece.hand_over()
    return made


def is_plain(fetched: FetchedBatches) -> bool:
    return type(fetched) is FetchedBatches and not fetched.aborted


def may_follow(fetched: FetchedBatches) -> bool:
    """Whether it may follow other bytes in a chunk: it repeats none of their offsets (rule 7)."""
    return is_plain(fetched) and not bytes_below(memoryview(fetched.data), fetched.start_offset)


def is_same_log(part: PartitionFetch, other: PartitionFetch) -> bool:
    """Whether offsets of both mean the same records, as far as known (rule 1)."""
    is_known = bool(part.topic_id) and part.topic_id == other.topic_id and part.epoch == other.epoch
    return is_known and not (part.removed or is_in_doubt(part) or is_in_doubt(other))


def is_in_doubt(part: PartitionFetch) -> bool:
    return part.doubted or part.unsure
