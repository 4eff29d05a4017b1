"""Workers and leaders are lost, or return too late: other workers take over their jobs, and no other job
moves."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from app.controllog.events import Assignment, Claim
from app.dev.demo.stage import DemoStage, Process, wait_until
from app.dev.demo.traffic import messages
from tests.system.fleet import (
    Journal,
    assignments,
    control_log,
    known_workers,
    most_deliveries_within,
    repetitions,
)
from tests.system.test_delivery import MAX_IN_FLIGHT, UNSAVED_MS, DeliveryScenario
from tests.system.test_no_storms import gaps, longest_witness_gap
from tests.system.waits import WaitSampler

pytestmark = pytest.mark.system

ENOUGH_S = 150.0
WARM, PER_SECOND = 500, 400
GAP_MS = 1_000  # less than a region is without a leader


class RecoveryScenario:
    """Three workers under an even load, one of which leads."""

    def __init__(self, stage: DemoStage, topic: str) -> None:
        self.delivery = DeliveryScenario(stage, topic, 0, partitions=6)
        # On a busy machine jobs could also move for want of capacity, which this test does not cover.
        stage.settings["worker"] |= {"capacity": {"cpu": 16}}
        self.workers = [stage.worker(wait=False) for _ in range(3)]
        for worker in self.workers:
            stage.wait_ready(worker)
        stage.deploy(self.workers[0], self.delivery.definition())
        wait_until(self._is_placed, ENOUGH_S, self._progress, 0.5)
        self.ids = {item["worker"]: self._at(item["url"]) for item in known_workers(self.workers[0])}

    def _at(self, url: str) -> Process:
        return next(worker for worker in self.workers if worker.url == url)

    def _is_placed(self) -> bool:
        before = assignments(self.workers[0])
        time.sleep(1.0)
        owners = {owner for owner, _ in before.values()}
        return len(owners) == 3 and before == assignments(self.workers[0])

    def _progress(self) -> str:
        return f"{assignments(self.workers[0])}\n{self.workers[0].tail()}"

    def id_of(self, worker: Process) -> str:
        worker_id: str = next(worker_id for worker_id, process in self.ids.items() if process is worker)
        return worker_id

    def leader(self, seen_by: Process) -> Process | None:
        return next((self.ids[item["worker"]] for item in known_workers(seen_by) if item["leader"]), None)

    def leader_and_others(self) -> tuple[Process, list[Process]]:
        leader = self.leader(self.workers[0])
        assert leader is not None
        return leader, [worker for worker in self.workers if worker is not leader]

    @contextmanager
    def load(self) -> Iterator[None]:
        """Produces while the block lasts."""
        with self.delivery.load(messages(1_000_000), PER_SECOND):
            wait_until(lambda: len(self.delivery.stage.deliveries()) >= WARM, ENOUGH_S, self._progress)
            yield

    @contextmanager
    def check_no_gap(self, seen_by: Process, except_for: Process) -> Iterator[None]:
        """Checks that the partitions of other workers than `except_for` have no gap while the block lasts.

        Times in which a plain consumer waits as well, or a process has no core, do not count
        (`test_no_storms`).
        """
        stage, topic, receiver = self.delivery.stage, self.delivery.topic, self.delivery.receiver.popen.pid
        owners = {
            int(job.rpartition(":")[2]): self.ids[owner]
            for job, (owner, _) in assignments(seen_by).items()
            if f":{topic}:" in job and self.ids[owner] is not except_for
        }
        assert owners
        journal, witness = Journal(stage.journal), Journal(stage.home / "witness.jsonl")
        arguments = [self.delivery.bootstrap, topic, str(self.delivery.partitions), str(witness.path)]
        stage.start("witness", [sys.executable, "-m", "tests.system.witness", *arguments])
        wait_until(lambda: all(witness.read().entries[topic, p] for p in owners), ENOUGH_S, self._progress)
        with WaitSampler([receiver, *{owner.popen.pid for owner in owners.values()}]) as waits:
            began_ms = time.time_ns() / 1e6
            yield
            ended_ms = time.time_ns() / 1e6
        journal.read(), witness.read()
        for partition, owner in owners.items():
            entries, witness_entries = journal.entries[topic, partition], witness.entries[topic, partition]
            repeated = {*repetitions(entries)}  # by the retry topic, whose partitions other workers may own
            available_ms = {one.id: one.timestamp_ms for one in (*entries, *witness_entries)}
            witness_gaps = gaps(witness_entries, available_ms)
            for ms, at_ms in gaps([one for one in entries if one not in repeated], available_ms):
                starved_ms = sum(waits.waited(pid, at_ms - ms, at_ms) for pid in (receiver, owner.popen.pid))
                left_ms = ms - starved_ms - longest_witness_gap((ms, at_ms), witness_gaps)
                assert left_ms < GAP_MS or not began_ms <= at_ms <= ended_ms, (partition, ms, starved_ms)

    def wait_moved(self, lost_workers: list[Process], seen_by: Process) -> None:
        """Waits until other workers own every job of these and deliver new messages."""
        ids, jobs = {self.id_of(worker) for worker in lost_workers}, set(assignments(seen_by))

        def moved() -> bool:
            current = assignments(seen_by)
            return set(current) == jobs and not ids & {owner for owner, _ in current.values()}

        wait_until(moved, ENOUGH_S, self._progress)
        self.wait_flow()

    def wait_flow(self) -> None:
        """Waits until every partition has delivered a message that was appended after the call."""
        since_ms, wanted = time.time_ns() // 1_000_000, set(range(self.delivery.partitions))
        wait_until(
            lambda: (
                wanted
                <= {d["partition"] for d in self.delivery.stage.deliveries() if d["timestamp_ms"] > since_ms}
            ),
            ENOUGH_S,
            self._progress,
        )

    def check_end(self, deaths: int) -> None:
        """Every message has an end; repetitions were in flight or unsaved when a worker was lost."""
        report = self.delivery.settle()
        assert report.sound, report
        unsaved = most_deliveries_within(self.delivery.stage.deliveries(), 2 * UNSAVED_MS)
        assert report.duplicates <= deaths * (MAX_IN_FLIGHT + unsaved), report
        self.delivery.wait_committed()


@pytest.fixture
def make_scenario(stage: DemoStage, topic_name: str) -> Callable[[], RecoveryScenario]:
    return lambda: RecoveryScenario(stage, topic_name)


def test_only_the_jobs_of_a_killed_worker_and_a_killed_leader_move(
    make_scenario: Callable[[], RecoveryScenario],
) -> None:
    scenario = make_scenario()
    with scenario.load():
        leader, (worker, survivor) = scenario.leader_and_others()
        before = assignments(survivor)
        worker.kill()
        scenario.wait_moved([worker], survivor)
        between = assignments(survivor)
        lost = {job for job, (owner, _) in before.items() if owner == scenario.id_of(worker)}
        assert lost
        assert {job: held for job, held in between.items() if job not in lost} == {
            job: held for job, held in before.items() if job not in lost
        }
        leader.kill()
        scenario.wait_moved([worker, leader], survivor)
        assert scenario.leader(survivor) is survivor
        kept = {job: held for job, held in between.items() if held[0] == scenario.id_of(survivor)}
        assert kept
        assert kept.items() <= assignments(survivor).items()
    scenario.check_end(deaths=2)


@pytest.mark.deep(minutes=0.5)
def test_two_leaders_assign_no_job_twice_and_deliveries_continue_without_a_leader(
    make_scenario: Callable[[], RecoveryScenario],
) -> None:
    scenario = make_scenario()
    with scenario.load():
        old_leader, others = scenario.leader_and_others()
        before = assignments(others[0])
        with scenario.check_no_gap(others[0], except_for=old_leader):
            old_leader.signal(signal.SIGSTOP)
            wait_until(lambda: scenario.leader(others[0]) in others, ENOUGH_S, scenario._progress)
            new_leader = others[0] if scenario.leader(others[0]) is others[0] else others[1]
            scenario.wait_moved([old_leader], new_leader)
        after = assignments(new_leader)
        stopped = scenario.id_of(old_leader)
        for job, (owner, epoch) in before.items():  # each job of the stopped leader moved once, no other did
            assert after[job] == (owner, epoch) if owner != stopped else after[job][1] == epoch + 1
        old_leader.signal(signal.SIGCONT)  # it believes that it leads until it reads the new term
        wait_until(lambda: scenario.leader(old_leader) is new_leader, ENOUGH_S, old_leader.tail)
        scenario.wait_flow()
        decided = control_log(scenario.delivery.stage)
        terms = [event.term for counted, event in decided if counted and isinstance(event, Claim)]
        assert terms == sorted(set(terms))
        owners: dict[tuple[str, int], str] = {}
        term = 0
        for counted, event in decided:
            if counted and isinstance(event, Claim):
                term = event.term
            if counted and isinstance(event, Assignment) and event.worker:
                assert event.term == term, "what a deposed leader writes does not count"
                assert owners.setdefault((event.job, event.epoch), event.worker) == event.worker
    scenario.check_end(deaths=1)
    assert old_leader.running
