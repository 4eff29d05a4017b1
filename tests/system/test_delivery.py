"""Whole workers on real brokers: every message is counted, whichever process is killed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from app.dev.demo.report import StoryReport, count
from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, messages, produce, read_all
from app.dispatch.definition import Workload
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from tests.system.fleet import assignments, id_of, incidents, most_deliveries_within, start_workers

pytestmark = pytest.mark.system

CLUSTER = "east-aggregate"
GROUP = "billing"
MAX_IN_FLIGHT = 100
RETRY = [{"delay": "500ms", "attempts": 3}]
SETTLE_S = 90.0
LATENCY_MS = 500
UNSAVED_MS = 600.0  # a snapshot interval, and the delay that the lease allows


class DeliveryScenario:
    """A topic, a receiver, and a known set of messages on a stage."""

    def __init__(
        self, stage: DemoStage, topic: str, total: int, partitions: int = 4, latency_ms: int = 0
    ) -> None:
        self.stage, self.topic = stage, topic
        self.bootstrap = stage.yard.bootstrap(CLUSTER)
        asyncio.run(create_topic(self.bootstrap, topic, partitions))
        self.partitions = partitions
        self.sent: list[SentMessage] = list(messages(total))
        self.receiver = stage.receiver(GROUP, topic, extra=("--latency-ms", str(latency_ms)))

    def definition(self, **spec: Any) -> dict[str, Any]:
        flow = {"max_inflight": MAX_IN_FLIGHT}
        return workload(
            GROUP, self.topic, CLUSTER, self.receiver.address, **{"retry": RETRY, "flow": flow, **spec}
        )

    def produce(self) -> None:
        asyncio.run(produce(self.bootstrap, self.topic, self.sent))

    @contextmanager
    def load(self, endless: Iterable[SentMessage], per_second: float) -> Iterator[None]:
        """Produces these at an even rate while the block lasts."""
        ended = threading.Event()

        def until_ended() -> Iterator[SentMessage]:
            for message in endless:
                if ended.is_set():
                    return
                self.sent.append(message)
                yield message

        producing = threading.Thread(
            target=lambda: asyncio.run(
                produce(self.bootstrap, self.topic, until_ended(), per_second=per_second)
            )
        )
        producing.start()
        try:
            yield
        finally:
            ended.set()
            producing.join()

    def wait_delivered_share(self, share: float) -> None:
        """Waits until this share of the messages has been delivered."""
        wanted = int(len(self.sent) * share)
        wait_until(lambda: len(self.stage.deliveries()) >= wanted, SETTLE_S, self._progress)

    def settle(self) -> StoryReport:
        """Waits until every message has an end, poison in the DLQ; returns the report."""
        wanted = {message.id for message in self.sent}
        poison = {message.id for message in self.sent if message.behaviour == "poison"}

        def settled() -> bool:
            final = {d["id"] for d in self.stage.deliveries() if d["outcome"] in {"ok", "poison"}}
            return wanted <= final

        wait_until(settled, SETTLE_S, self._progress, 0.3)
        wait_until(lambda: poison <= {*self.dead()}, SETTLE_S, self._progress, 0.3)
        time.sleep(1.5)  # repetitions arrive now
        return count(self.sent, self.stage.deliveries(), self.dead())

    def dead(self) -> list[str]:
        """Ids in the DLQ."""
        records = asyncio.run(read_all(self.bootstrap, f"{self.topic}__{GROUP}__dlq"))
        return [orjson.loads(record.value)["id"] for record in records]

    def copies(self) -> Counter[str]:
        """How often each id is in the DLQ and the retry topics."""
        deployed = Workload.model_validate(self.definition())
        records = [
            asyncio.run(read_all(self.bootstrap, t)) for t in (deployed.dlq_topic(), *deployed.retry_topics())
        ]
        return Counter(orjson.loads(record.value)["id"] for record in chain.from_iterable(records))

    def failures(self, jobs: set[str]) -> set[tuple[str, float]]:
        """Message id and time (ms) of every call of these jobs that failed."""
        return {
            (one["id"], one["at_ms"])
            for one in self.stage.deliveries()
            if one["outcome"] in {"poison", "retryable"}
            and any(job.endswith(f":{one['topic']}:{one['partition']}") for job in jobs)
        }

    def committed(self) -> dict[int, tuple[int | None, int]]:
        """Partition -> (committed, end), as any Kafka tool sees it."""

        async def read() -> dict[int, tuple[int | None, int]]:
            client = ClusterClient(ClusterSpec("test", (self.bootstrap,)))
            await client.start()
            try:
                at = [(self.topic, p) for p in range(self.partitions)]
                committed = await OffsetCommitter(client).committed(GROUP, at)
                ends = await client.end_offsets(at)
                return {p: (committed[t, p], ends[t, p]) for t, p in at}
            finally:
                await client.stop()

        return asyncio.run(read())

    def wait_committed(self) -> None:
        """Waits until the group's lag is zero."""
        wait_until(
            lambda: all(done == end for done, end in self.committed().values()),
            SETTLE_S,
            lambda: str(self.committed()),
            0.5,
        )

    def _progress(self) -> str:
        logs = "\n".join(f"--- {p.name}\n{p.tail(12)}" for p in self.stage.processes)
        return f"{Counter(d['outcome'] for d in self.stage.deliveries())} of {len(self.sent)}\n{logs}"


@pytest.fixture
def make_scenario(stage: DemoStage, topic_name: str) -> Callable[..., DeliveryScenario]:
    return lambda total, **rest: DeliveryScenario(stage, topic_name, total, **rest)


def owners(worker: Process) -> Counter[str]:
    """The number of jobs of each owner, from a worker's API."""
    _, body = http("GET", f"{worker.url}/api/v1/assignments?limit=1000")
    return Counter(item["worker"] for item in body["items"] if item["worker"])


def wait_even_spread(worker: Process, jobs: int) -> None:
    """Waits until both workers own their share of the jobs and nothing moves."""
    wait_until(
        lambda: sorted(owners(worker).values()) == [jobs // 2, jobs // 2],
        SETTLE_S,
        lambda: str(owners(worker)),
    )
    time.sleep(1.0)


def test_every_message_is_delivered_or_dead_lettered_with_its_origin_and_reason(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(1_000)
    worker = scenario.stage.worker()
    scenario.stage.deploy(worker, scenario.definition())
    scenario.produce()
    report = scenario.settle()
    assert report.sound, report
    assert (report.delivered, report.dead_lettered, report.retried, report.duplicates) == (990, 10, 20, 0)
    scenario.wait_committed()
    records = asyncio.run(read_all(scenario.bootstrap, f"{scenario.topic}__{GROUP}__dlq"))
    for record in records:
        headers = dict(record.headers)
        assert headers["source"] == b"demo"
        assert record.key == orjson.loads(record.value)["id"].encode()
        assert headers["switchyard-origin-topic"] == scenario.topic.encode()
        assert headers["switchyard-code"] == b"FAILED_PRECONDITION"
        assert {"switchyard-reason", "switchyard-attempt", "switchyard-origin-offset"} <= headers.keys()
    status, shown = http("GET", f"{worker.url}/api/v1/dlq/{GROUP}/{scenario.topic}/messages?limit=3")
    assert status == 200
    assert len(shown["items"]) == 3
    assert shown["next"]


@pytest.mark.deep(minutes=0.4)
def test_sigterm_of_a_worker_under_load_delivers_nothing_twice(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(6_000)
    first, second = start_workers(scenario.stage)
    scenario.stage.deploy(first, scenario.definition())
    wait_even_spread(first, 8)
    scenario.produce()
    scenario.wait_delivered_share(0.3)
    assert second.terminate() == 0
    report = scenario.settle()
    assert report.sound, report
    assert report.duplicates == 0
    scenario.wait_committed()


def test_a_draining_worker_that_gets_more_partitions_of_control_topics_takes_them_and_ends_well(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(6_000, partitions=1)
    first, second = start_workers(scenario.stage)
    scenario.stage.deploy(first, scenario.definition(retry=[]))
    scenario.produce()
    scenario.wait_delivered_share(0.1)
    scenario.receiver.signal(signal.SIGSTOP)  # so the drain waits for the messages in flight
    try:
        (owner,) = owners(first)
        draining, leaving = (first, second) if id_of(first) == owner else (second, first)
        draining.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in draining.log.read_text(), SETTLE_S, draining.tail)
        tables_read = draining.log.read_text().count("Worker ready")
        assert leaving.terminate() == 0
        assert draining.running, draining.tail(60)
        wait_until(
            lambda: draining.log.read_text().count("Worker ready") > tables_read or not draining.running,
            SETTLE_S,
            draining.tail,
        )
    finally:
        scenario.receiver.signal(signal.SIGCONT)
    assert draining.popen.wait(SETTLE_S) == 0, draining.tail(60)
    scenario.stage.worker()
    report = scenario.settle()
    assert report.sound, report
    scenario.wait_committed()


def test_kill_9_of_a_worker_loses_nothing_and_repeats_only_what_was_in_flight_or_unsaved(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(6_000)
    first = scenario.stage.worker()
    second = scenario.stage.worker()
    scenario.stage.deploy(first, scenario.definition())
    wait_even_spread(first, 8)
    scenario.produce()
    scenario.wait_delivered_share(0.3)
    second.kill()
    report = scenario.settle()
    assert report.sound, report
    assert report.duplicates <= MAX_IN_FLIGHT + most_deliveries_within(
        scenario.stage.deliveries(), 2 * UNSAVED_MS
    )
    scenario.wait_committed()


@pytest.mark.deep(minutes=0.5)
def test_while_the_receiver_is_down_only_poison_is_dead_lettered_and_delivery_resumes_afterwards(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(3_000)
    worker = scenario.stage.worker()
    scenario.stage.deploy(worker, scenario.definition())
    scenario.produce()
    scenario.wait_delivered_share(0.2)
    scenario.receiver.kill()
    time.sleep(6.0)

    def breaker() -> str:
        _, shown = http("GET", f"{worker.url}/api/v1/workloads/{GROUP}/{scenario.topic}")
        return str(shown["status"]["breaker"])

    wait_until(lambda: breaker() in {"open", "half-open"}, SETTLE_S, breaker)
    before = len(scenario.dead())
    scenario.stage.receiver(GROUP, scenario.topic, port=scenario.receiver.port)
    report = scenario.settle()
    assert report.sound, report
    assert before <= 30
    assert report.dead_lettered == 30


@pytest.mark.deep(minutes=0.5)
def test_a_worker_that_wakes_with_an_old_epoch_copies_no_message_that_the_new_owner_finished(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(0, latency_ms=LATENCY_MS)
    # Half of the messages in flight at the stop fail, so the worker has copies to make when it wakes.
    behaviours = ("ok", "poison", "ok", "retryable")
    scenario.sent += [SentMessage(f"m-{number:05}", behaviours[number % 4]) for number in range(3_000)]
    first = scenario.stage.worker()
    second = scenario.stage.worker()
    scenario.stage.deploy(first, scenario.definition())
    wait_even_spread(first, 8)
    jobs_of_second = {job for job, (owner, _) in assignments(first).items() if owner == id_of(second)}
    scenario.produce()
    # The second may own topics of retries only: their first messages come later than a share of all.
    wait_until(lambda: scenario.failures(jobs_of_second), SETTLE_S, scenario._progress)
    second.signal(signal.SIGSTOP)
    stopped_ms = time.time_ns() / 1e6
    wait_until(lambda: len(owners(first)) == 1, SETTLE_S, lambda: str(owners(first)))
    report = scenario.settle()
    assert report.sound, report
    scenario.wait_committed()
    # Failures that the stopped worker did not read; the messages failed again at the new owner.
    # Calls in flight end within some calls' time; the jobs move only after the lease ends.
    until_ms = stopped_ms + 5 * LATENCY_MS
    failures = scenario.failures(jobs_of_second)
    unanswered_failures = {one for one, at_ms in failures if stopped_ms < at_ms < until_ms}
    assert unanswered_failures, "nothing failed in flight: the test shows nothing"
    delivered, copies = len(scenario.stage.deliveries()), scenario.copies()
    second.signal(signal.SIGCONT)
    wait_until(lambda: assignments(second).items() <= assignments(first).items(), SETTLE_S, second.tail)
    time.sleep(4.0)
    # It starts no call: only calls that it had given to gRPC before the pause may still leave. It copies no
    # failure since then: only records that its producer had before. No commit goes back; it keeps running.
    assert len(scenario.stage.deliveries()) - delivered <= MAX_IN_FLIGHT
    new_copies = scenario.copies() - copies
    assert not unanswered_failures & new_copies.keys(), "the new owner has finished these"
    assert new_copies.total() <= MAX_IN_FLIGHT
    assert all(done == end for done, end in scenario.committed().values())
    assert second.running
    assert len(owners(first)) >= 1


def test_a_deleted_workload_stops_and_continues_when_it_is_deployed_again(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(500)
    worker = scenario.stage.worker()
    scenario.produce()
    scenario.stage.deploy(worker, scenario.definition())
    assert scenario.settle().sound
    url = f"{worker.url}/api/v1/workloads/{GROUP}/{scenario.topic}"
    status, _ = http("DELETE", url)
    assert status == 200
    wait_until(lambda: not owners(worker), SETTLE_S, lambda: str(owners(worker)))
    scenario.wait_committed()
    done = len(scenario.stage.deliveries())
    asyncio.run(produce(scenario.bootstrap, scenario.topic, messages(50, prefix="later")))
    time.sleep(2.0)
    assert len(scenario.stage.deliveries()) == done
    scenario.stage.deploy(worker, scenario.definition())
    wait_until(lambda: len(scenario.stage.deliveries()) >= done + 50, SETTLE_S, scenario._progress)


@pytest.mark.deep(minutes=1.4)
def test_killed_brokers_of_data_and_control_topics_lose_no_message(
    killable_stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(killable_stage, topic_name, 4_000)
    worker = scenario.stage.worker()
    scenario.stage.deploy(worker, scenario.definition())
    scenario.produce()
    scenario.wait_delivered_share(0.2)
    for cluster in (CLUSTER, "east-regional"):
        scenario.stage.yard.kill(cluster)
        time.sleep(1.0)
        scenario.stage.yard.start(cluster)
    report = scenario.settle()
    assert report.sound, report
    scenario.wait_committed()


@pytest.mark.deep(minutes=0.7)
def test_a_recreated_topic_is_delivered_from_its_start_and_an_incident_reports_it(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(300, partitions=1)
    worker = scenario.stage.worker()
    scenario.produce()
    scenario.stage.deploy(worker, scenario.definition())
    assert scenario.settle().sound
    scenario.wait_committed()

    async def recreate_topic() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=scenario.bootstrap)
        await admin.start()
        await admin.delete_topics([scenario.topic])
        async with asyncio.timeout(SETTLE_S):
            while scenario.topic in await admin.list_topics():  # noqa: ASYNC110 - a broker learns late of it
                await asyncio.sleep(0.05)
        await admin.close()
        await asyncio.sleep(2.0)
        await create_topic(scenario.bootstrap, scenario.topic, 1)
        await produce(scenario.bootstrap, scenario.topic, messages(40, prefix="anew"))

    asyncio.run(recreate_topic())
    wanted = {message.id for message in messages(40, prefix="anew")}
    wait_until(lambda: wanted <= {d["id"] for d in scenario.stage.deliveries()}, SETTLE_S, scenario._progress)
    wait_until(lambda: incidents(worker, "log-begun-anew"), SETTLE_S, scenario._progress)
    # A worker that takes over afterwards knows the new lineage, not the old commit.
    scenario.wait_committed()
    assert worker.terminate() == 0
    scenario.stage.worker()
    asyncio.run(produce(scenario.bootstrap, scenario.topic, messages(20, prefix="after")))
    later_ids = {message.id for message in messages(20, prefix="after")}
    wait_until(
        lambda: later_ids <= {d["id"] for d in scenario.stage.deliveries()}, SETTLE_S, scenario._progress
    )
    acknowledged = [d["id"] for d in scenario.stage.deliveries() if d["outcome"] == "ok"]
    assert len(acknowledged) == len(set(acknowledged))
