"""Jobs stay with their workers until there is a reason to move them: with real workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import orjson
import pytest

from app.dev.demo.stage import DemoStage, Process, wait_until, workload
from app.dev.demo.traffic import create_topic
from tests.system.fleet import (
    Flow,
    Journal,
    OwnerByJob,
    assignments,
    counted_assignments,
    id_of,
    incidents,
    known_workers,
    repetitions,
    run_command,
)  # fmt: skip

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
PARTITIONS = 4
ENOUGH_S = 150.0
REST_S = 6.0  # a dozen of the leader's rounds


class PlacementScenario:
    """Workers, workloads without retries (one job a partition), a flow, and the command line."""

    def __init__(self, stage: DemoStage, topic: str) -> None:
        self.stage, self.topic = stage, topic
        self.bootstrap = stage.yard.bootstrap(CLUSTER)
        self.journal = Journal(stage.journal)

    def worker(self, *, wait: bool = True, **settings: Any) -> Process:
        # On a busy machine jobs could also move for want of capacity, which only one test covers.
        self.stage.settings["worker"] = {"grace": "10s", "capacity": {"cpu": 16}, **settings}
        return self.stage.worker(wait=wait)

    def deploy(self, worker: Process, *topics: str, **spec: Any) -> None:
        receiver = self.stage.receiver(GROUP, *topics)
        for topic in topics:
            asyncio.run(create_topic(self.bootstrap, topic, PARTITIONS))
            self.stage.deploy(worker, workload(GROUP, topic, CLUSTER, receiver.address, **spec))

    def flow(self, *topics: str, per_partition: float = 25.0) -> Flow:
        return Flow(self.bootstrap, dict.fromkeys(topics, PARTITIONS), per_partition)

    def wait_placed(self, worker: Process, jobs: int) -> OwnerByJob:
        wait_until(lambda: len(assignments(worker)) == jobs, ENOUGH_S, lambda: str(assignments(worker)))
        return assignments(worker)

    def wait_owners(self, worker: Process, wanted: dict[str, int]) -> OwnerByJob:
        """Waits until each worker has this many jobs."""

        def owns_wanted() -> bool:
            owned = Counter(owner for owner, _ in assignments(worker).values())
            return owned == wanted

        wait_until(owns_wanted, ENOUGH_S, lambda: f"{wanted}: {assignments(worker)}")
        return assignments(worker)

    def wait_flow(self, *topics: str) -> None:
        """Waits until every partition has delivered a message that was appended after the call."""
        since_ms = time.time_ns() / 1e6

        def flows() -> bool:
            self.journal.read()
            return all(
                any(one.timestamp_ms > since_ms for one in self.journal.entries[topic, p][-500:])
                for topic in topics
                for p in range(PARTITIONS)
            )

        wait_until(flows, ENOUGH_S, lambda: "\n".join(p.tail() for p in self.stage.processes))

    def wait_all(self, flow: Flow) -> None:
        """Waits until every message was delivered; no message may repeat."""
        wait_until(
            lambda: flow.sent.keys() <= self.journal.read().ids(),
            ENOUGH_S,
            lambda: f"{len(flow.sent.keys() - self.journal.ids())} are missing",
        )
        time.sleep(1.0)  # repetitions arrive now
        self.journal.read()
        for topic in flow.partitions:
            assert repetitions(self.journal.entries_of(topic)) == []


@pytest.fixture
def placement(stage: DemoStage, topic_name: str) -> PlacementScenario:
    return PlacementScenario(stage, topic_name)


def switchyard(worker: Process, *arguments: str, code: int = 0) -> Any:
    """Runs a command and returns its JSON, if any."""
    ended = run_command(worker, *arguments, "-o", "json")
    assert ended.returncode == code, ended.stderr
    return orjson.loads(ended.stdout) if ended.stdout else None


def reasons(worker: Process) -> dict[str, str]:
    """Job -> the reason for its placement."""
    return {row["job"]: row["reason"] for row in switchyard(worker, "placement", "show", "--why")}


@pytest.mark.deep(minutes=1.0)
def test_a_joining_worker_gets_jobs_only_from_an_operator_and_their_moves_repeat_no_message(
    placement: PlacementScenario,
) -> None:
    scenario, topic = placement, placement.topic
    first = scenario.worker()
    scenario.deploy(first, topic)
    scenario.wait_placed(first, PARTITIONS)
    with scenario.flow(topic) as flow:
        scenario.wait_flow(topic)
        before = assignments(first)
        second = scenario.worker()
        one, two = id_of(first), id_of(second, seen_by=first)
        time.sleep(REST_S)
        assert assignments(first) == before
        assert switchyard(first, "placement", "plan")["moves"] == []

        not_leader = second if is_leader(first) else first  # any worker forwards the request to the leader
        planned = switchyard(not_leader, "placement", "plan", "--even", code=10)
        assert [(move["from"], move["to"]) for move in planned["moves"]] == [(one, two)] * 2
        assert all("jobs" in move["reason"] for move in planned["moves"])
        assert assignments(first) == before, "a plan changes nothing"
        switchyard(not_leader, "placement", "plan", "--even", "--execute", "--yes")
        shared = scenario.wait_owners(first, {one: 2, two: 2})
        assert {job for job in shared if shared[job] != before[job]} == {m["job"] for m in planned["moves"]}
        scenario.wait_flow(topic)

        (job, *_) = sorted(job for job, (owner, _) in shared.items() if owner == one)
        switchyard(first, "placement", "move", job, "--to", two, "--reason", "by hand", "--execute", "--yes")
        scenario.wait_owners(first, {one: 1, two: 3})
        wait_until(lambda: "operator wants it" in reasons(second)[job], ENOUGH_S, second.tail)
        switchyard(first, "placement", "move", job, "--to", two, "--execute", "--yes", code=5)
        scenario.wait_flow(topic)

        drained = switchyard(first, "worker", "drain", two)
        assert (drained[0]["changed"], drained[0]["jobs"]) == (True, 3)
        assert len([o for o, _ in assignments(first).values() if o == two]) == 3, "it was a dry run"
        switchyard(first, "worker", "drain", two, "--execute", "--yes")
        scenario.wait_owners(first, {one: 4})
        assert f"{two} is draining" in reasons(first)[job]
        wait_until(lambda: state(first, two) == "drained", ENOUGH_S, first.tail)
        scenario.wait_flow(topic)
        switchyard(first, "worker", "drain", two, "--undo", "--execute", "--yes")
        wait_until(lambda: {state(w, two) for w in (first, second)} == {"running"}, ENOUGH_S, first.tail)
        assert switchyard(first, "placement", "plan")["moves"] == [], (
            "it may have jobs again, but gets none back by itself"
        )
        assert {
            move["to"] for move in switchyard(first, "placement", "plan", "--even", code=10)["moves"]
        } == {two}
    scenario.wait_all(flow)


def state(seen_by: Process, worker: str) -> str:
    return str(next(item["state"] for item in known_workers(seen_by) if item["worker"] == worker))


def is_leader(worker: Process) -> bool:
    return bool(next(item["leader"] for item in known_workers(worker) if item["url"] == worker.url))


@pytest.mark.deep(minutes=0.5)
def test_workers_of_an_isolation_group_run_its_jobs_and_no_others(placement: PlacementScenario) -> None:
    scenario = placement
    apart, common = f"{scenario.topic}-apart", f"{scenario.topic}-common"
    plain, gold = scenario.worker(wait=False), scenario.worker(wait=False, group="gold")
    for worker in (plain, gold):
        scenario.stage.wait_ready(worker)
    scenario.deploy(plain, apart, placement={"group": "gold"})
    scenario.deploy(plain, common)
    with scenario.flow(apart, common) as flow:
        scenario.wait_placed(plain, 2 * PARTITIONS)
        scenario.wait_flow(apart, common)
        owner_of = {apart: id_of(gold), common: id_of(plain)}
        before = assignments(plain)
        assert {job: owner for job, (owner, _) in before.items()} == {
            job: owner_of[job.split(":")[2]] for job in before
        }
        # Other workers do not run them, even when their workers are gone; an incident reports it.
        assert gold.terminate() == 0
        wait_until(lambda: incidents(plain, "no-worker"), ENOUGH_S, plain.tail)
        time.sleep(REST_S)
        kept = {job: held for job, held in before.items() if held[0] == owner_of[common]}
        assert assignments(plain) == kept
        assert "gold" in incidents(plain, "no-worker")[0]["message"]
        scenario.wait_flow(common)
        successor = scenario.worker(group="gold")
        scenario.wait_owners(plain, {owner_of[common]: PARTITIONS, id_of(successor): PARTITIONS})
        assert kept.items() <= assignments(plain).items()
        scenario.wait_flow(apart, common)
    scenario.wait_all(flow)


def test_an_overloaded_worker_gives_jobs_to_one_with_room_and_no_job_moves_back(
    placement: PlacementScenario,
) -> None:
    scenario, topic = placement, placement.topic
    small = scenario.worker(capacity={"cpu": 0.05})
    scenario.deploy(small, topic)
    before = scenario.wait_placed(small, PARTITIONS)
    with scenario.flow(topic, per_partition=50) as flow:
        scenario.wait_flow(topic)
        wait_until(lambda: incidents(small, "overloaded"), ENOUGH_S, small.tail)
        assert assignments(small) == before, "no other worker has room"
        large = scenario.worker()
        receives = id_of(large)

        def relieved() -> bool:
            return any(owner == receives for owner, _ in assignments(small).values())

        wait_until(relieved, ENOUGH_S, small.tail)
        shown = switchyard(small, "placement", "show", "--why")
        moved = {row["job"]: row["reason"] for row in shown if row["worker"] == receives}
        assert moved
        assert all("above 90 %" in why and "of its cpu" in why for why in moved.values()), moved
        wait_no_decisions(scenario, small)
        scenario.wait_flow(topic)
    scenario.wait_all(flow)
    times = Counter(event.job for event in counted_assignments(scenario.stage) if not event.release)
    assert max(times.values()) <= 2, "placed once, relieved once: nothing went to and fro"


def wait_no_decisions(scenario: PlacementScenario, worker: Process) -> None:
    """Waits until the leader decides nothing for a while."""

    def quiet() -> bool:
        before = len(counted_assignments(scenario.stage))
        time.sleep(REST_S)
        return len(counted_assignments(scenario.stage)) == before

    wait_until(quiet, ENOUGH_S, worker.tail)
