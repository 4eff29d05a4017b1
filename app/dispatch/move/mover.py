"""Moves a workload to another cluster that has its topic, unnoticed by its receivers: drain, map, resume.

    Moving -> owners at rest -> plan -> copies -> the group's commit there -> the definition

Rules (tests/dispatch/move/test_mover.py)
1. One record of the control log decides: the definition with the new cluster and the start offsets there.
   Before it, the workload is paused at its position in the old cluster; after it, it runs in the new one. A
   killed worker changes nothing of that: a new request starts the move from the beginning, and resuming the
   workload cancels it.
2. Retry topics in the new cluster begin at the ends that they have before the copies. Older messages in them,
   of a former deployment or a failed move, are not read. The waiting messages are copied behind them.
3. A running merge of the DLQ is ended first, and none begins during the move. Its merged messages wait in the
   merge topic like retries; the letters that it had not reached are copied.
4. Copies are made at least once: after a failed move, the next one copies the dead letters again.
5. No waiting message is left behind: if a topic there refuses a record, the move ends and names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import structlog
from aiokafka.errors import KafkaError

from app.controllog.codec import JobStatus
from app.controllog.events import Moving, OperatorAct, StartOffsets, StartRecorded, WorkloadPut
from app.controllog.log import ControlLog
from app.dispatch.definition import dispatch_job
from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.merge import end_merges
from app.dispatch.dlq.operation_history import merges_of
from app.dispatch.dlq.reader import queue_ends
from app.dispatch.dlq.rules import PastOperation
from app.dispatch.move.copier import MAX_COPY_BYTES, copy_topic, ends
from app.dispatch.move.planner import (
    MovePath,
    MovePlanner,
    MoveView,
    ReportProgress,
    check_repetitions,
)
from app.dispatch.topics.leftovers import candidates
from app.dispatch.topics.settings import (
    UNCOMPACTED,
    create_topics,
    raise_settings,
    retry_retention_ms,
)
from app.kafka.client.needed_settings import KEPT_MS, MOST_BYTES
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.worker.jobs.operator_acts import OperationRefused

log = structlog.get_logger(__name__)

SETTLE_TIMEOUT_S = 60.0  # for messages in flight, and for changes of owners
HEARTBEAT_S = 0.5  # the interval at which owners report their jobs
MOVE_POLL_INTERVAL_S = 0.1
DRY_RUN_TIMEOUT_S = 6.0  # for which a dry run reads timestamps


class Mover:
    """Carries out the planner's request. Any worker can move any workload: all state is in logs and
    heartbeats."""

    def __init__(self, planner: MovePlanner, control: ControlLog) -> None:
        self._planner = planner
        self._request = planner.request
        self._control = control

    async def foresee(self) -> JsonObject:
        """The plan as of now; changes nothing.

        Raises:
            OperationRefused: The move is not possible. ClusterUnreachable, KafkaError, TimeoutError.
        """
        path = await self._planner.path()
        seen = await self._planner.view(path, lambda _: None, DRY_RUN_TIMEOUT_S)
        return seen.to_json(path, self._request)

    async def run(self, move: str, actor: str, report_progress: ReportProgress) -> JsonObject:
        """Moves the workload, under the name `move`; returns the plan with results. After a
        failure it resumes where it was; copies that were made stay.

        Raises:
            OperationRefused: The move is not possible, or another operation changed the workload meanwhile.
            ClusterUnreachable, KafkaError, TimeoutError.
        """
        key, to = self._request.key, self._request.to
        await self._planner.path()
        await self._control.append(Moving(at_ms=now_ms(), key=key, move=move, to=to, actor=actor))
        try:
            report_progress({"step": "drain"})
            path = await self._planner.path()
            await self._settle(path)
            merges = await self._end_merges(path)
            seen = await self._planner.view(path, report_progress, None)
            check_repetitions(seen.to_json(path, self._request), self._request)
            others = await self._prepare(path, seen)
            copied, letters, left_out = await self._copy(path, seen, merges, report_progress)
            report_progress({"step": "switch"})
            await self._commit(path, seen, others)
            start = StartRecorded(
                at_ms=now_ms(), key=key, deployment=path.put.deployment, ends=seen.begins.offsets,
                cluster_id=path.ids[1][0], topic_id=path.ids[1][1], others=others,
            )  # fmt: skip
            await self._switch(path, move, actor, start)
        except BaseException:
            await asyncio.shield(self._give_up(move, actor))
            raise
        result = seen.to_json(path, self._request) | {
            "copied": copied,
            "letters": letters,
            "left_out": left_out,
        }
        detail = (
            f"{result['from']} -> {to}, margin {result['margin_ms']} ms: at most {result['again']} are "
            f"delivered again; copied {copied} messages that waited for retry, {letters} dead letters"
        )
        if left_out:
            detail += f", of which {left_out} lack their values, which are only in {result['from']}"
        act = OperatorAct(at_ms=now_ms(), subject=key, action="move", detail=detail, actor=actor)
        try:
            await self._control.append(act)
        except Exception as error:  # noqa: BLE001 - the move is done: the control log has the definition
            log.error("a finished move could not be recorded as an act", act=str(act), error=repr(error))
        return result

    # -- preconditions -------------------------------------------------------------------------------

    async def _settle(self, path: MovePath) -> None:
        """Waits until every job is paused with nothing in flight. Raises OperationRefused."""
        began_s = time.monotonic()
        main = [
            str(dispatch_job(self._request.key, path.workload.metadata.topic, partition))
            for partition in range(path.partitions[0])
        ]
        while True:
            # An earlier heartbeat may show the state before the pause.
            statuses = self._planner.statuses(began_s + HEARTBEAT_S)
            active = [
                f"{job} ({_why(statuses.get(job))})"
                for job in {*main, *statuses}
                if (status := statuses.get(job)) is None or status.state != "paused" or status.in_flight
            ]
            if not active:
                return
            if time.monotonic() > began_s + SETTLE_TIMEOUT_S:
                raise OperationRefused(
                    f"after {SETTLE_TIMEOUT_S:.0f} s {len(active)} jobs are not at rest: "
                    f"{', '.join(sorted(active)[:3])}; nothing was moved. Move again "
                    "once they are (workload describe shows what is in flight)"
                )
            await asyncio.sleep(MOVE_POLL_INTERVAL_S)

    # -- steps ---------------------------------------------------------------------------------------

    async def _prepare(self, path: MovePath, seen: MoveView) -> dict[str, StartOffsets]:
        """Creates the topics needed there; returns the start offsets of all but the main topic (rule 2)."""
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
        own_topics = [topic for topic in (*moved.retry_topics(), *candidates(moved)) if topic in present]
        ids = await client.topic_ids(own_topics)
        found = await ends(client, [(topic, p) for topic in own_topics for p in range(present[topic])])
        return {
            topic: StartOffsets(ids.get(topic, ""), [found[topic, p] for p in range(present[topic])])
            for topic in own_topics
        }

    async def _copy(
        self, path: MovePath, seen: MoveView, merges: Sequence[PastOperation], report_progress: ReportProgress
    ) -> tuple[int, int, int]:
        """Copies waiting messages and dead letters. Returns both numbers, and letters without values."""
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
        """Rule 3. Returns all recorded merges and purges."""
        client, workload = path.source.client, path.workload
        if workload.dlq_topic() not in await client.topics():
            return []
        await end_merges(client, workload)
        operations = await merges_of(client, workload, await queue_ends(client, workload.dlq_topic()))
        return [merge.past() for merge in operations.values()]

    async def _commit(self, path: MovePath, seen: MoveView, others: Mapping[str, StartOffsets]) -> None:
        """Commits the start offsets there, over any former commit. Raises OperationRefused."""
        topic, group = path.moved.metadata.topic, path.moved.metadata.group
        wanted = {(topic, p): offset for p, offset in enumerate(seen.begins.offsets)}
        wanted |= {(name, p): offset for name, at in others.items() for p, offset in enumerate(at.offsets)}
        if refused := await path.target.committer.commit(group, wanted):
            at, why = next(iter(refused.items()))
            raise OperationRefused(f"{self._request.to} refuses a commit of {at[0]}-{at[1]}: {why}")

    async def _switch(self, path: MovePath, move: str, actor: str, start: StartRecorded) -> None:
        """Writes the record of rule 1. Raises OperationRefused: another operation was faster."""
        put = WorkloadPut(
            at_ms=now_ms(), key=start.key, definition=path.moved.to_wire(), etag=path.moved.etag(),
            actor=actor, expected=path.put.etag, deployment=path.put.deployment, move=move, begun=start,
        )  # fmt: skip
        offset = await self._control.append(put)
        if not self._control.counted(offset):
            raise OperationRefused(
                f"{start.key} was resumed, changed or moved by another operation meanwhile; nothing was moved"
            )

    async def _give_up(self, move: str, actor: str) -> None:
        """Resumes the workload where it is, unless another operation has changed it meanwhile."""
        key = self._request.key
        under_way = self._control.view.moves.get(key)
        if under_way is not None and under_way.move == move:
            try:
                await self._control.append(Moving(at_ms=now_ms(), key=key, move="", to="", actor=actor))
            except (KafkaError, TimeoutError) as error:
                log.error("a failed move left a workload paused; resume it", workload=key, error=repr(error))


def _why(status: JobStatus | None) -> str:
    if status is None:
        return "no recent heartbeat"
    return f"{status.state}, {status.in_flight} in flight" + f": {status.trouble}" * bool(status.trouble)
