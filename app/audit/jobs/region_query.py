"""Queries all workers for the region's windows and tiers: each has the books of its partitions only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
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
from app.kernel.json_types import JsonObject
from app.worker.members.peer_requests import PeerUnreachable, ask_peer

SHARE_PATH = "/api/v1/audit/share"
PEER_ANSWER_TIMEOUT_S = 5.0
DEFAULT_WIDTH_MS = 600_000  # of clients' windows
_share = msgspec.json.Decoder(BookShare)


class NotKnown(Exception):
    """The region's counts are not known now; the message says why."""


async def own_share(books: AuditBooks, wanted: WindowQuery) -> BookShare:
    """This worker's part of an answer, up to its limit. In a thread: many windows take a second."""
    held = {partition: (book.next_offset, book.collector.copy()) for partition, book in books.books.items()}
    return await asyncio.to_thread(share_of, held, wanted)


def share_path(wanted: WindowQuery) -> str:
    """The path at which a worker answers with its share."""
    query = {
        "topic": wanted.topic, "tier": wanted.tier, "cluster": wanted.cluster,
        "from": str(wanted.from_ms), "to": str(wanted.before_ms),
    }  # fmt: skip
    return f"{SHARE_PATH}?{urlencode({name: value for name, value in query.items() if value})}"


def unseen(audits: AuditsCatalog, plan: AuditPlan | None) -> list[str]:
    """The regional clusters that a plan does not count."""
    if audits.layout is None or plan is None:
        return []
    counted = plan.clusters(audits.layout)
    return sorted(n for n, s in audits.layout.sites.items() if s.tier == REGIONAL and n not in counted)


class BeingRead(NotKnown):
    """All workers answer, but some partitions' tables are still being read."""


class RegionQuery:
    """Asks all workers. `beats`: the last heartbeats of the live workers."""

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
        """The width of the plans' widest windows."""
        return max((plan.width_ms for plan in self._audits.plans()), default=DEFAULT_WIDTH_MS)

    async def verdicts(
        self, wanted: WindowQuery, now_ms: int, means: Callable[[str], bool]
    ) -> tuple[list[JsonObject], Mapping[str, int]]:
        """The verdicts on the wanted windows of topics that `means` accepts. The second value has topics with
        too many windows, and the start of the first one in the answer. Raises NotKnown: A worker does not
        answer, or a book is being read."""
        known = await self.known(wanted)
        places = {(key.cluster, key.topic) for key in known.tiers}
        meant = {topic for topic in {topic for _, topic in places} if means(topic)}
        plans = {place: self._audits.plan_of(*place) for place in places}

        def compared() -> list[JsonObject]:
            counts = RegionCounts(
                {key: record for key, record in known.windows.items() if key.topic in meant},
                {key: record for key, record in known.tiers.items() if key.topic in meant},
            )
            plan_of = partial(_plan_of, plans)
            return verdict_rows(counts, now_ms, plan_of, lambda plan: unseen(self._audits, plan))

        rows = await asyncio.to_thread(compared)  # takes seconds if there are many windows
        return rows, known.since

    async def ask(self, path: str) -> list[bytes | NotKnown]:
        """The answers of the other workers to a GET of `path`, each of them or why there is none."""
        others = [beat for worker, beat in self._beats().items() if worker != self._worker]
        return await asyncio.gather(*(_ask_worker(beat, path) for beat in others))

    async def known(self, wanted: WindowQuery) -> RegionCounts:
        """The counts of the region. Raises NotKnown: A worker does not answer, or a book is being read."""
        try:
            answers = [_content_of(answer) for answer in await self.ask(share_path(wanted))]
            own = await own_share(self._books, wanted)

            def join_shares() -> tuple[RegionCounts, set[int]]:
                shares = [own, *map(_share.decode, answers)]
                held = {partition for share in shares for partition in share.next_offsets}
                return joined(shares, audit_partition), held

            known, held = await asyncio.to_thread(join_shares)
            missing = await self._books.missing_partitions(held)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
            raise NotKnown(f"the audit topic does not answer: {error!r}") from error
        except ValueError as error:  # not a share
            raise NotKnown(str(error)) from error
        if missing:
            raise BeingRead(f"partitions {missing} of the audit tables are being read")
        return known


def _plan_of(plans: Mapping[tuple[str, str], AuditPlan | None], cluster: str, topic: str) -> AuditPlan | None:
    return plans.get((cluster, topic))


def _content_of(answer: bytes | NotKnown) -> bytes:
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
