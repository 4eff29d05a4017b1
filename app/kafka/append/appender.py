"""Appends finished record batches to the partitions of one cluster, as an idempotent producer (acks=all).

    lanes (a queue of batches per partition) -> per broker: one batch of each lane -> ProduceRequest
                                             <- acknowledged, or repaired by the lane (`lane`)

Rules (tests/kafka/append/test_appender.py)
1. A request has any number of partitions, with one batch each (brokers take no more). A broker remembers
   `IN_FLIGHT` batches per producer and partition, so at most this number of requests is in flight to it.
   Batches that become ready meanwhile share the next request.
2. Lanes take turns: a served lane goes to the end of the line.
3. A batch is copied and stamped only when it is sent (`kafka.records.verbatim_copy`); the sender's bytes
   stay unchanged. So at most `REQUEST_BYTES` (or one batch) per request in flight are copies.
4. A request to a silent broker that is no longer the leader is given up, and its lanes send to the new
   leader. Sequence numbers prevent duplicates.
5. While `may_send` is false nothing is sent; queued batches wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine

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
BROKER_MS = 5_000  # how long a broker waits for its replicas; below the client's timeout (REQUEST_MS)
SEEK_S, SILENT_S = 0.25, 2.0
NOT_ALLOWED_DELAY_S = 0.05
CONNECTION = "append"


class Appender:
    """`report_incident` takes the `AppendIncident` of lanes without their own; neither may raise."""

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
        self._ready: dict[AppendLane, None] = {}  # in turn order
        self._in_flight: Counter[int] = Counter()  # requests per broker
        self._requests: set[asyncio.Task[None]] = set()
        # requests in flight: broker, when they were sent, lanes
        self._unanswered: dict[asyncio.Timeout, tuple[int, float, list[AppendLane]]] = {}
        self._woken = False
        self._stopped = True
        self._seeking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to send; the cluster's client must have been started."""
        self._stopped = False
        self._seeking = asyncio.get_running_loop().create_task(self._seek_leaders())

    async def stop(self) -> None:
        """Closes all lanes. Drain them first if their batches are to arrive."""
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
        on_epoch_bump: Callable[[AppendLane], None] | None = None,
    ) -> AppendLane:
        """A lane to a partition.

        Args:
            producer: An id and epoch that has not appended to this partition yet (see
                `app.kafka.producers.ids`); None: a new id.
            report_incident, on_epoch_bump: See `AppendLane`.

        Raises:
            ClusterUnreachable, KafkaError: No producer id is available.
            LaneClosed: The appender is stopped.
        """
        producer = producer or await new_producer(self.cluster)
        at = topic, partition
        floor = (await self.cluster.offsets([at], LATEST)).get(at, -1)
        if self._stopped:
            raise LaneClosed(f"the appender to {self.cluster.name} is stopped")
        lane = AppendLane(self, topic, partition, producer, floor, report_incident, on_epoch_bump)
        self._lanes[lane] = None
        return lane

    # -- called by lanes ---------------------------------------------------------------------------

    def ready(self, lane: AppendLane) -> None:
        """Registers a lane that may have something to send, in the next turn of the event loop."""
        self._ready[lane] = None
        self._wake()

    def look_up(self, lane: AppendLane) -> None:
        """Finds out which of the lane's batches are in the log, and calls `AppendLane.looked_up`."""
        self._begin(self._look_up(lane))

    def forget(self, lane: AppendLane) -> None:
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
            if not lane.has_in_flight:
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
        """Sends the next batch of as many lanes as fit into a request; returns the lanes for the next one."""
        batches: dict[str, list[tuple[int, bytearray]]] = {}
        sent: dict[tuple[str, int], tuple[AppendLane, PendingBatch]] = {}
        size = 0
        waiting: list[AppendLane] = []
        served: list[AppendLane] = []
        for lane in lanes:
            at = lane.topic, lane.partition
            if size >= REQUEST_BYTES or at in sent:  # two lanes may have one partition
                waiting.append(lane)
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
                self._ready[lane] = None  # moves to the end
                served.append(lane)
        if sent:
            self._in_flight[node] += 1
            self._begin(self._request(node, batches, sent))
        return waiting + served

    async def _request(
        self,
        node: int,
        batches: dict[str, list[tuple[int, bytearray]]],
        sent: dict[tuple[str, int], tuple[AppendLane, PendingBatch]],
    ) -> None:
        answers: dict[tuple[str, int], AppendAnswer] = {}
        unanswered = AppendAnswer(NO_ANSWER, -1, f"broker {node} did not answer for this partition")
        try:
            async with asyncio.timeout(None) as timeout:
                since_s = asyncio.get_running_loop().time()
                self._unanswered[timeout] = node, since_s, [lane for lane, _ in sent.values()]
                try:
                    request = AppendRequest(batches, BROKER_MS)
                    answers = answers_of(await self.cluster.send(node, request, CONNECTION))
                finally:
                    del self._unanswered[timeout]
        except (KafkaError, OSError, TimeoutError) as error:
            unanswered = AppendAnswer(NO_ANSWER, -1, f"broker {node}: {error!r}")
        except Exception as error:
            log.exception("an append failed unexpectedly", cluster=self.cluster.name)
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
        if self._ready:  # lanes that waited for this request
            self._wake()

    async def _look_up(self, lane: AppendLane) -> None:
        try:
            found, last = await self._in_log(lane)
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            if isinstance(error, TooFewReplicas):
                lane.failed(NOT_ENOUGH_REPLICAS, str(error))
                return
            code = NOT_AUTHORISED if isinstance(error, TopicAuthorizationFailedError) else NO_LEADER
            lane.failed(code, f"the log of {lane.topic}-{lane.partition} cannot be read: {error!r}")
            return
        except Exception as error:
            log.exception("reading a log failed unexpectedly", cluster=self.cluster.name)
            lane.failed(UNEXPECTED, repr(error))
            return
        lane.looked_up(found, last)

    async def _in_log(self, lane: AppendLane) -> tuple[list[BatchHeader], ProducerStamp | None]:
        """The producer's batches from the lane's floor on, as far as the log still has them.

        If the log has lost its end, the floor is lowered. Batches sent before that lie right before the
        end, unless others write there; later ones lie behind it.

        If the log no longer reaches back to the floor, the second value is the stamp after the producer's
        last batch. The leader remembers it even if the log has deleted that batch.
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
                lane.floor = max(0, end - lane.doubtful_records)
                seen = await own(self.cluster, *at, producer, lane.floor, None, take)
        if seen.start <= lane.floor:
            return found, None
        _, last = await last_of(self.cluster, *at, producer)  # from the present leader
        return found, last

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    # -- leaders -----------------------------------------------------------------------------------

    async def _seek_leaders(self) -> None:
        while True:
            await asyncio.sleep(SEEK_S)
            silent_since_s = asyncio.get_running_loop().time() - SILENT_S
            if not any(since_s < silent_since_s for _, since_s, _ in self._unanswered.values()):
                continue
            try:
                await self.cluster.client.force_metadata_update()
            except (KafkaError, OSError, TimeoutError) as error:
                log.debug("metadata cannot be updated", cluster=self.cluster.name, error=repr(error))
            for timeout, (node, since_s, lanes) in list(self._unanswered.items()):
                if since_s < silent_since_s and any(
                    self.cluster.is_led_by_another(lane.topic, lane.partition, node) for lane in lanes
                ):
                    timeout.reschedule(0.0)
