"""Moves a workload to another cluster that has its topic, without its receivers noticing: drain, map, resume.

    Moving -> owners at rest -> plan -> copies -> the group's commit there -> the definition

Rules
1. What counts is one record of the control log: the definition with the new cluster and with where it begins
   there. Before it the workload is where it was, at its position and paused; after it, it is there and flows.
   Who is killed on the way changes nothing: asked again, a move starts over; resuming undoes it.
2. Retry topics there begin where they ended before anything was copied: what an earlier life of the workload,
   or an earlier try, left in them is not read again. What waits here is copied behind it.
3. A merge of the dead letter queue is ended first, and none begins while the move is under way: what it had
   merged waits in the merge topic like a retry. Letters that it had not reached are copied.
4. Copies are made at least once: a try that ended half way leaves dead letters, which the next copies again.
5. Nothing that waits is left behind: a record that a topic there refuses ends the move, and is named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from app.controllog.codec import JobStatus
from app.controllog.events import Moving, OperatorAct, StartOffsets, StartRecorded, WorkloadPut
from app.controllog.log import ControlLog
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.merge import end_merges
from app.dispatch.dlq.operation_history import merges_of
from app.dispatch.dlq.reader import queue_ends
from app.dispatch.dlq.rules import PastOperation
from app.dispatch.move.copier import MAX_COPY_BYTES, copy_topic, ends
from app.dispatch.move.planner import MovePath, MovePlanner, MoveRequest, MoveView, ReportProgress
from app.dispatch.topics.leftovers import candidates
from app.dispatch.topics.settings import (
    UNCOMPACTED,
    create_topics,
    raise_settings,
    retry_retention_ms,
)
from app.kafka.client.needed_settings import KEPT_MS, MOST_BYTES
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kernel.clock import now_ms
from app.kernel.job import JobId, Kind
from app.worker.members.membership import Members
from app.worker.runtime.operators import OperationRefused

log = structlog.get_logger(__name__)

SETTLE_TIMEOUT_S = 60.0  # what is in flight ends, owners that just change settle
HEARTBEAT_S = 0.5  # how often owners tell of their jobs
MOVE_POLL_INTERVAL_S = 0.1
DRY_RUN_TIMEOUT_S = 6.0  # a dry run reads timestamps no longer


class Mover:
    """See the module. Holds nothing but what it was asked for: any worker can move any workload."""

    def __init__(
        self, request: MoveRequest, control: ControlLog, clusters: DataClusters, members: Members
    ) -> None:
        self._request = request
        self._control = control
        self._planner = MovePlanner(request, control, clusters, members)

    async def foresee(self) -> dict[str, Any]:
        """The plan as of now; changes nothing.

        Raises:
            OperationRefused: it cannot work. ClusterUnreachable, KafkaError, TimeoutError.
        """
        road = await self._planner.road()
        seen = await self._planner.view(road, lambda _: None, DRY_RUN_TIMEOUT_S)
        return seen.to_json(road, self._request)

    async def run(self, move: str, actor: str, report_progress: ReportProgress) -> dict[str, Any]:
        """Does it, under the name `move`; the plan as it was done. What fails is undone.

        Raises:
            OperationRefused: it cannot work, or something else was done with the workload meanwhile.
            ClusterUnreachable, KafkaError, TimeoutError.
        """
        key, to = self._request.key, self._request.to
        await self._planner.road()
        await self._control.append(Moving(at_ms=now_ms(), key=key, move=move, to=to, actor=actor))
        try:
            report_progress({"step": "drain"})
            road = await self._planner.road()
            await self._settle(road)
            merges = await self._end_merges(road)
            seen = await self._planner.view(road, report_progress, None)
            others = await self._prepare(road, seen)
            copied, letters, left_out = await self._copy(road, seen, merges, report_progress)
            report_progress({"step": "switch"})
            await self._commit(road, seen, others)
            begun = StartRecorded(
                at_ms=now_ms(), key=key, deployment=road.put.deployment, ends=seen.begins,
                cluster_id=road.ids[1][0], topic_id=road.ids[1][1], others=others,
            )  # fmt: skip
            await self._switch(road, move, actor, begun)
        except BaseException:
            await asyncio.shield(self._give_up(move, actor))
            raise
        told = seen.to_json(road, self._request) | {
            "copied": copied,
            "letters": letters,
            "left_out": left_out,
        }
        detail = (
            f"{told['from']} -> {to}, margin {told['margin_ms']} ms: about {told['again']} may come again; "
            f"copied {copied} that waited for retry, {letters} dead letters"
        )
        if left_out:
            detail += f", of which {left_out} say only where their values stand, which is in {told['from']}"
        act = OperatorAct(at_ms=now_ms(), subject=key, action="move", detail=detail, actor=actor)
        try:
            await self._control.append(act)
        except Exception as error:  # noqa: BLE001 - the move is done, and stands in the log as the definition
            log.error("a move's account is not in the control log", act=str(act), error=repr(error))
        return told

    # -- what it needs -------------------------------------------------------------------------------

    async def _settle(self, path: MovePath) -> None:
        """Until every job is paused and nothing is in flight. Raises Refused."""
        began_s = time.monotonic()
        main = [
            str(JobId(Kind.DISPATCH, self._request.key, path.workload.metadata.topic, partition))
            for partition in range(path.partitions[0])
        ]
        while True:
            told = self._planner.statuses(began_s + HEARTBEAT_S)  # what was said before may be of before
            restless = [
                f"{job} ({_why(told.get(job))})"
                for job in {*main, *told}
                if (status := told.get(job)) is None or status.state != "paused" or status.in_flight
            ]
            if not restless:
                return
            if time.monotonic() > began_s + SETTLE_TIMEOUT_S:
                raise OperationRefused(
                    f"after {SETTLE_TIMEOUT_S:.0f} s {len(restless)} jobs are not at rest: "
                    f"{', '.join(sorted(restless)[:3])}; nothing was moved"
                )
            await asyncio.sleep(MOVE_POLL_INTERVAL_S)

    # -- doing ---------------------------------------------------------------------------------------

    async def _prepare(self, path: MovePath, seen: MoveView) -> dict[str, StartOffsets]:
        """Creates the topics that are needed there; where the others begin (rule 2)."""
        client, moved = path.target.client, path.moved
        created = await create_topics(client, moved, path.partitions[1])
        stale = [topic for topic in moved.retry_topics() if topic not in created]
        await raise_settings(client, moved, stale)
        limits = {KEPT_MS: str(retry_retention_ms(moved)), MOST_BYTES: str(MAX_COPY_BYTES)}
        config = {**UNCOMPACTED, **limits}
        needed = {topic: len(spans) for topic, spans in seen.waiting.items()}
        if self._request.letters and any(start < end for start, end in seen.letters.values()):
            needed[moved.dlq_topic()] = len(seen.letters)
        present = await client.topics()
        await ensure_topics(
            client,
            [TopicSpec(topic, n, config=config) for topic, n in needed.items() if topic not in present],
        )
        present = await client.topics()
        own = [topic for topic in (*moved.retry_topics(), *candidates(moved)) if topic in present]
        ids = await client.topic_ids(own)
        found = await ends(client, [(topic, p) for topic in own for p in range(present[topic])])
        return {
            topic: StartOffsets(ids.get(topic, ""), [found[topic, p] for p in range(present[topic])])
            for topic in own
        }

    async def _copy(
        self, path: MovePath, seen: MoveView, merges: Sequence[PastOperation], report_progress: ReportProgress
    ) -> tuple[int, int, int]:
        """Copies what waits, and the dead letters; how many of each, and letters without their values."""
        source, target, workload = path.source.client, path.target.client, path.workload
        total = sum(end - start for spans in seen.waiting.values() for start, end in spans.values())
        if self._request.letters:
            total += sum(end - start for start, end in seen.letters.values())
        done = 0

        def read(copied: int) -> None:
            report_progress({"step": "copy", "looked_at": done + copied, "of": total})

        for topic, spans in seen.waiting.items():
            done += await copy_topic(source, target, topic, spans, lambda _: True, read)
        copied = done
        if not self._request.letters:
            return copied, 0, 0
        left_out = 0

        def is_left(letter: DeadLetter) -> bool:
            nonlocal left_out
            is_copied = not any(merge.took(letter) for merge in merges)
            left_out += is_copied and letter.left_out_bytes is not None
            return is_copied

        letters = await copy_topic(source, target, workload.dlq_topic(), seen.letters, is_left, read)
        return copied, letters, left_out

    async def _end_merges(self, path: MovePath) -> list[PastOperation]:
        """Rule 3; what merges have taken, as far as it is remembered."""
        client, workload = path.source.client, path.workload
        if workload.dlq_topic() not in await client.topics():
            return []
        await end_merges(client, workload)
        known = await merges_of(client, workload, await queue_ends(client, workload.dlq_topic()))
        return [merge.past() for merge in known.values()]

    async def _commit(self, path: MovePath, seen: MoveView, others: Mapping[str, StartOffsets]) -> None:
        """The group's commit there says what is mapped: whatever it was, ahead or behind. Raises Refused."""
        topic, group = path.moved.metadata.topic, path.moved.metadata.group
        wanted = {(topic, p): offset for p, offset in enumerate(seen.begins)}
        wanted |= {(name, p): offset for name, at in others.items() for p, offset in enumerate(at.offsets)}
        if refused := await path.target.committer.commit(group, wanted):
            at, why = next(iter(refused.items()))
            raise OperationRefused(f"{self._request.to} takes no commit of {at[0]}-{at[1]}: {why}")

    async def _switch(self, path: MovePath, move: str, actor: str, begun: StartRecorded) -> None:
        """Rule 1. Raises Refused: somebody was faster."""
        put = WorkloadPut(
            at_ms=now_ms(), key=begun.key, definition=path.moved.to_wire(), etag=path.moved.etag(),
            actor=actor, expected=path.put.etag, deployment=path.put.deployment, move=move, begun=begun,
        )  # fmt: skip
        offset = await self._control.append(put)
        if not self._control.counted(offset):
            raise OperationRefused(
                f"{begun.key} was resumed, changed or moved by somebody else meanwhile; this move did nothing"
            )

    async def _give_up(self, move: str, actor: str) -> None:
        """Lets the workload go on where it is, unless something else was said of it meanwhile."""
        key = self._request.key
        under_way = self._control.view.moves.get(key)
        if under_way is not None and under_way.move == move:
            try:
                await self._control.append(Moving(at_ms=now_ms(), key=key, move="", to="", actor=actor))
            except (KafkaError, TimeoutError) as error:
                log.error("a move was not given up; resume the workload", workload=key, error=repr(error))


def _why(status: JobStatus | None) -> str:
    if status is None:
        return "not heard of"
    return f"{status.state}, {status.in_flight} in flight" + f": {status.trouble}" * bool(status.trouble)
