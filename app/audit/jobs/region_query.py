"""What the region knows of windows and tiers: the books of all workers, asked for and put together.

Windows are in the books of the workers that write their tables: whoever wants to know asks all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiokafka.errors import KafkaError

from app.audit.definition import AuditPlan
from app.audit.jobs.books import AuditBooks
from app.audit.jobs.report_sender import audit_partition
from app.audit.query.book_share import share_of
from app.audit.query.view import BookShare, RegionCounts, WindowQuery, joined, verdict_rows
from app.audit.topics.catalog import AuditsCatalog
from app.controllog.codec import Heartbeat
from app.failover.topology import REGIONAL
from app.kafka.client.cluster import ClusterUnreachable
from app.worker.members.peer_requests import PeerUnreachable, ask_peer

SHARE_PATH = "/api/v1/audit/share"
PEER_ANSWER_TIMEOUT_S = 5.0
DEFAULT_WIDTH_MS = 600_000  # of what clients count
_share = msgspec.json.Decoder(BookShare)


class NotKnown(Exception):
    """What the region knows cannot be told now: why."""


async def own_share(books: AuditBooks, wanted: WindowQuery) -> BookShare:
    """What this worker's books hold, as much as goes into an answer. In a thread: of many windows it takes a
    second."""
    held = {partition: (book.next_offset, book.collector.copy()) for partition, book in books.books.items()}
    return await asyncio.to_thread(share_of, held, wanted)


def share_path(wanted: WindowQuery) -> str:
    """Where a worker tells its share."""
    query = {
        "topic": wanted.topic, "tier": wanted.tier, "cluster": wanted.cluster,
        "from": str(wanted.from_ms), "to": str(wanted.before_ms),
    }  # fmt: skip
    return f"{SHARE_PATH}?{urlencode({name: value for name, value in query.items() if value})}"


def unseen(audits: AuditsCatalog, plan: AuditPlan | None) -> list[str]:
    """Regional clusters that a plan does not count."""
    if audits.layout is None or plan is None:
        return []
    counted = plan.clusters(audits.layout)
    return sorted(n for n, s in audits.layout.sites.items() if s.tier == REGIONAL and n not in counted)


class BeingRead(NotKnown):
    """All workers answer; the tables of some partitions are being read."""


class RegionQuery:
    """Asks all workers. `beats`: the last words of those that live."""

    def __init__(
        self,
        worker: str,
        books: AuditBooks,
        audits: AuditsCatalog,
        beats: Callable[[], Mapping[str, Heartbeat]],
    ) -> None:
        self._worker = worker
        self._books = books
        self._audits = audits
        self._beats = beats

    @property
    def widest_ms(self) -> int:
        """How long a window may be."""
        return max((plan.width_ms for plan in self._audits.plans()), default=DEFAULT_WIDTH_MS)

    async def verdicts(
        self, wanted: WindowQuery, now_ms: int, means: Callable[[str], bool]
    ) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
        """Verdicts on windows that are wanted, of topics that are meant; and topics of which nothing is known
        of windows that begin before: there are too many.

        Raises:
            NotKnown: a worker does not answer, or a book is being read.
        """
        known = await self.known(wanted)
        places = {(key.cluster, key.topic) for key in known.tiers}
        meant = {topic for topic in {topic for _, topic in places} if means(topic)}
        plans = {place: self._audits.plan_of(*place) for place in places}

        def told() -> list[dict[str, Any]]:
            some = RegionCounts(
                {key: record for key, record in known.windows.items() if key.topic in meant},
                {key: record for key, record in known.tiers.items() if key.topic in meant},
            )
            plan_of = partial(_of, plans)
            return verdict_rows(some, now_ms, plan_of, lambda plan: unseen(self._audits, plan))

        rows = await asyncio.to_thread(told)  # seconds, for as many windows as there may be
        return rows, known.since

    async def ask(self, path: str) -> list[bytes | NotKnown]:
        """What each of the other workers answers to a GET of `path`, or why it does not."""
        others = [beat for worker, beat in self._beats().items() if worker != self._worker]
        return await asyncio.gather(*(_ask_worker(beat, path) for beat in others))

    async def known(self, wanted: WindowQuery) -> RegionCounts:
        """What the region knows. Raises NotKnown: a worker does not answer, or a book is being read."""
        try:
            told = [_known(one) for one in await self.ask(share_path(wanted))]
            own = await own_share(self._books, wanted)

            def put_together() -> tuple[RegionCounts, set[int]]:
                shares = [own, *map(_share.decode, told)]
                held = {partition for share in shares for partition in share.next_offsets}
                return joined(shares, audit_partition), held

            known, held = await asyncio.to_thread(put_together)
            missing = await self._books.without(held)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
            raise NotKnown(f"the audit topic cannot be asked: {error!r}") from error
        except ValueError as error:  # no share
            raise NotKnown(str(error)) from error
        if missing:
            raise BeingRead(f"partitions {missing} of the audit tables are being read")
        return known


def _of(plans: Mapping[tuple[str, str], AuditPlan | None], cluster: str, topic: str) -> AuditPlan | None:
    return plans.get((cluster, topic))


def _known(answer: bytes | NotKnown) -> bytes:
    if isinstance(answer, NotKnown):
        raise answer
    return answer


async def _ask_worker(beat: Heartbeat, path: str) -> bytes | NotKnown:
    try:
        status, content = await ask_peer(beat, path, PEER_ANSWER_TIMEOUT_S)
    except PeerUnreachable as error:
        return NotKnown(str(error))
    if status != 200:
        return NotKnown(f"{beat.worker} answered {status}: {content[:200].decode('utf-8', 'replace')}")
    return content
