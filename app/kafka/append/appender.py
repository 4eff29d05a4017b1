"""Appends ready record batches to the partitions of one cluster, as an idempotent producer (acks=all).

    lanes (a queue of batches a partition) -> per broker: one batch of each lane -> ProduceRequest
                                           <- acknowledged, or mended by the lane (append_lane)

Rules
1. A request has at most one batch a partition (brokers take no more), of any number of partitions; so many
   requests are in flight at a broker as it keeps apart of one producer and partition (`IN_FLIGHT`). What gets
   ready while all are in flight shares the next one.
2. Lanes take turns; who was served goes to the end of the line.
3. Batches are stamped when they are sent (kafka.records.verbatim_copy); their senders' bytes are not changed
   and not copied before. At most `REQUEST_BYTES` (or one batch) a request are in flight as copies.
4. What is in flight at a broker that does not answer, and is not the leader any more, is given up: its lanes
   send it to the new one. The sequence numbers see to it that it is in the log once.
5. Nothing is sent while it `may_send` nothing; what is queued waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from app.kafka.append.errors import NO_ANSWER, NOT_ENOUGH_REPLICAS, UNEXPECTED, AppendIncident, LaneClosed
from app.kafka.append.lane import IN_FLIGHT, AppendLane
from app.kafka.append.pending_batch import PendingBatch
from app.kafka.append.protocol import AppendAnswer, AppendRequest, answers_of
from app.kafka.client.cluster import LATEST, NO_LEADER, ClusterClient, ClusterUnreachable
from app.kafka.client.permissions import NOT_AUTHORISED
from app.kafka.producers.history import TooFewReplicas, last_of, own
from app.kafka.producers.ids import ProducerId, new_producer
from app.kafka.records.batch import BatchHeader, RecordBatch
from app.kafka.records.checksum import crc32c
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import stamped

log = structlog.get_logger(__name__)

REQUEST_BYTES = 1024 * 1024
BROKER_MS = 5_000  # a broker waits so long for its replicas; below the client's own patience (REQUEST_MS)
SEEK_S, SILENT_S = 0.25, 2.0
NOT_ALLOWED_DELAY_S = 0.05
CONNECTION = "append"


class Appender:
    """See the module. `report_incident` takes the `AppendIncident` of lanes without a `report_incident` of
    their own; neither may raise."""

    def __init__(
        self,
        cluster: ClusterClient,
        report_incident: Callable[[AppendIncident], None] = lambda trouble: None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self.cluster = cluster
        self.report_incident = report_incident
        self._may_send = may_send
        self._lanes: dict[AppendLane, None] = {}
        self._ready: dict[AppendLane, None] = {}  # in the order of their turns
        self._in_flight: Counter[int] = Counter()  # requests of each broker
        self._requests: set[asyncio.Task[None]] = set()
        self._asked: dict[asyncio.Timeout, tuple[int, float, list[AppendLane]]] = {}  # broker, since when
        self._woken = False
        self._stopped = True
        self._seeking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to send; the cluster's client must have been started."""
        self._stopped = False
        self._seeking = asyncio.get_running_loop().create_task(self._seek_leaders())

    async def stop(self) -> None:
        """Closes all lanes. Drain them before, if what they hold is to arrive."""
        self._stopped = True
        for lane in list(self._lanes):
            lane.close()
        tasks = [*self._requests, *([self._seeking] if self._seeking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def lane(
        self,
        topic: str,
        partition: int,
        producer: ProducerId | None = None,
        report_incident: Callable[[AppendIncident], None] | None = None,
        bumped: Callable[[AppendLane], None] | None = None,
    ) -> AppendLane:
        """A way to append to a partition.

        Args:
            producer: an id and an epoch under which nobody has appended to this partition yet (see
                `app.kafka.producers.ids`); None: a new id.
            report_incident, bumped: see `AppendLane`.

        Raises:
            ClusterUnreachable; KafkaError: there is no id to be had. LaneClosed: the appender is stopped.
        """
        producer = producer or await new_producer(self.cluster)
        at = topic, partition
        floor = (await self.cluster.offsets([at], LATEST)).get(at, -1)
        if self._stopped:
            raise LaneClosed(f"the appender to {self.cluster.name} is stopped")
        lane = AppendLane(self, topic, partition, producer, floor, report_incident, bumped)
        self._lanes[lane] = None
        return lane

    # -- the lanes' --------------------------------------------------------------------------------

    def ready(self, lane: AppendLane) -> None:
        """`lane` may have something to send; so may others until the loop's next turn."""
        self._ready[lane] = None
        self._wake()

    def look_up(self, lane: AppendLane) -> None:
        """Tells `lane` which of its batches the log has."""
        self._begin(self._look_up(lane))

    def forget(self, lane: AppendLane) -> None:
        """`lane` has ended."""
        self._lanes.pop(lane, None)
        self._ready.pop(lane, None)

    # -- sending -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken and not self._stopped:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._woken = False
        if self._stopped:
            return
        if self._ready and not self._may_send():
            self._woken = True
            asyncio.get_running_loop().call_later(NOT_ALLOWED_DELAY_S, self._send)
            return
        by_node: dict[int, list[AppendLane]] = {}
        for lane in list(self._ready):
            if not lane.is_ready:
                del self._ready[lane]
                continue
            if not lane.is_flying:
                lane.node = self.cluster.known_leader(lane.topic, lane.partition)
            if lane.node is None:
                del self._ready[lane]
                lane.failed(*self.cluster.why_no_leader(lane.topic, lane.partition))
            elif self._in_flight[lane.node] < IN_FLIGHT:
                by_node.setdefault(lane.node, []).append(lane)
        for node, lanes in by_node.items():
            turns = lanes
            while turns and self._in_flight[node] < IN_FLIGHT:
                turns = self._send_one(node, turns)

    def _send_one(self, node: int, lanes: list[AppendLane]) -> list[AppendLane]:
        """Sends a request with the next batch of as many lanes as it has room for; who is to come next."""
        batches: dict[str, list[tuple[int, bytearray]]] = {}
        sent: dict[tuple[str, int], tuple[AppendLane, PendingBatch]] = {}
        size = 0
        later: list[AppendLane] = []
        served: list[AppendLane] = []
        for lane in lanes:
            at = lane.topic, lane.partition
            if size >= REQUEST_BYTES or at in sent:  # two lanes may lead to one partition
                later.append(lane)
                continue
            pending = lane.take()
            if pending is not None:
                producer = lane.producer
                data = stamped(pending.data, producer.id, producer.epoch, pending.sequence, crc32c)
                batches.setdefault(lane.topic, []).append((lane.partition, data))
                sent[at] = lane, pending
                size += len(data)
            del self._ready[lane]
            if lane.is_ready:
                self._ready[lane] = None  # at the end of the line
                served.append(lane)
        if sent:
            self._in_flight[node] += 1
            self._begin(self._request(node, batches, sent))
        return later + served

    async def _request(
        self,
        node: int,
        batches: dict[str, list[tuple[int, bytearray]]],
        sent: dict[tuple[str, int], tuple[AppendLane, PendingBatch]],
    ) -> None:
        answers: dict[tuple[str, int], AppendAnswer] = {}
        unanswered = AppendAnswer(NO_ANSWER, -1, f"broker {node} does not tell what became of it")
        try:
            async with asyncio.timeout(None) as patience:
                since_s = asyncio.get_running_loop().time()
                self._asked[patience] = node, since_s, [lane for lane, _ in sent.values()]
                try:
                    request = AppendRequest(batches, BROKER_MS)
                    answers = answers_of(await self.cluster.send(node, request, CONNECTION))
                finally:
                    del self._asked[patience]
        except (KafkaError, OSError, TimeoutError) as error:
            unanswered = AppendAnswer(NO_ANSWER, -1, f"broker {node}: {error!r}")
        except Exception as error:
            log.exception("an append failed in an unexpected way", cluster=self.cluster.name)
            unanswered = AppendAnswer(UNEXPECTED, -1, repr(error))
        finally:
            self._in_flight[node] -= 1
        trouble = False
        for at, (lane, pending) in sent.items():
            answer = answers.get(at, unanswered)
            trouble = trouble or answer.code != 0
            lane.answered(pending, *answer)
            if lane.is_ready:
                self.ready(lane)
        if trouble:
            self.cluster.client.force_metadata_update()
        if self._ready:  # who waited for room
            self._wake()

    async def _look_up(self, lane: AppendLane) -> None:
        try:
            found, last = await self._in_log(lane)
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            if isinstance(error, TooFewReplicas):
                lane.failed(NOT_ENOUGH_REPLICAS, str(error))
                return
            code = NOT_AUTHORISED if isinstance(error, TopicAuthorizationFailedError) else NO_LEADER
            lane.failed(code, f"{lane.topic}-{lane.partition} does not tell what it has: {error!r}")
            return
        except Exception as error:
            log.exception("a log was not looked up in an unexpected way", cluster=self.cluster.name)
            lane.failed(UNEXPECTED, repr(error))
            return
        lane.looked_up(found, last)

    async def _in_log(self, lane: AppendLane) -> tuple[list[BatchHeader], ProducerStamp | None]:
        """What its producer has written from its floor on, as far as the log still has it. Where the log has
        lost its end the floor is lowered: what was sent since lies right before the end, unless others write
        there; what will be, behind it.

        Where the log does not reach back to the floor any more, also behind the producer's last batch: the
        leader remembers that one although the log has deleted it.
        """
        at, found = (lane.topic, lane.partition), list[BatchHeader]()
        if lane.floor < 0:
            return found, None

        def take(batch: RecordBatch) -> None:
            found.append(batch.header)

        producer = lane.producer.id
        seen = await own(self.cluster, *at, producer, lane.floor, lane.known, take)
        if seen.end < 0:
            end = (await self.cluster.offsets([at], LATEST)).get(at, lane.floor)
            if end < lane.floor:
                lane.floor = max(0, end - lane.in_doubt)
                seen = await own(self.cluster, *at, producer, lane.floor, None, take)
        if seen.start <= lane.floor:
            return found, None
        _, last = await last_of(self.cluster, *at, producer)  # of who leads now: it may be another broker
        return found, last

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    # -- leaders -----------------------------------------------------------------------------------

    async def _seek_leaders(self) -> None:
        """Rule 4."""
        while True:
            await asyncio.sleep(SEEK_S)
            silent_since_s = asyncio.get_running_loop().time() - SILENT_S
            if not any(since_s < silent_since_s for _, since_s, _ in self._asked.values()):
                continue
            try:
                await self.cluster.client.force_metadata_update()
            except (KafkaError, OSError, TimeoutError) as error:
                log.debug("no metadata", cluster=self.cluster.name, error=repr(error))
            for patience, (node, since_s, lanes) in list(self._asked.items()):
                if since_s < silent_since_s and any(
                    self.cluster.is_led_by_another(lane.topic, lane.partition, node) for lane in lanes
                ):
                    patience.reschedule(0.0)
