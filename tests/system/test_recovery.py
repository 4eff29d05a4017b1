"""Workers and leaders that are lost, or come back too late: their jobs run elsewhere, nothing else moves."""

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
from tests.system.fleet import Journal, assignments, control_log, doubled, known_workers, most_within
from tests.system.test_delivery import MAX_IN_FLIGHT, UNSAVED_MS, Scene
from tests.system.test_no_storms import gaps, longest
from tests.system.waits import WaitSampler

pytestmark = pytest.mark.system

ENOUGH_S = 150.0
WARM, PER_SECOND = 500, 400
GAP_MS = 1_000  # a leader is missed for longer


class Cast:
    """Three workers under an even load; who of them leads is found out."""

    def __init__(self, stage: DemoStage, topic: str) -> None:
        self.play = Scene(stage, topic, 0, partitions=6)
        # What moves for want of room, on a machine that others use too, is not what is shown here.
        stage.settings["worker"] |= {"capacity": {"cpu": 16}}
        self.workers = [stage.worker(wait=False) for _ in range(3)]
        for worker in self.workers:
            stage.wait_ready(worker)
        stage.deploy(self.workers[0], self.play.definition())
        wait_until(self._all_at_work, ENOUGH_S, self._seen, 0.5)
        self.ids = {item["worker"]: self._at(item["url"]) for item in known_workers(self.workers[0])}

    def _at(self, url: str) -> Process:
        return next(worker for worker in self.workers if worker.url == url)

    def _all_at_work(self) -> bool:
        before = assignments(self.workers[0])
        time.sleep(1.0)
        owners = {owner for owner, _ in before.values()}
        return len(owners) == 3 and before == assignments(self.workers[0])

    def _seen(self) -> str:
        return f"{assignments(self.workers[0])}\n{self.workers[0].tail()}"

    def id_of(self, worker: Process) -> str:
        known: str = next(known for known, process in self.ids.items() if process is worker)
        return known

    def leader(self, seen_by: Process) -> Process | None:
        return next((self.ids[item["worker"]] for item in known_workers(seen_by) if item["leader"]), None)

    def leader_and_others(self) -> tuple[Process, list[Process]]:
        leader = self.leader(self.workers[0])
        assert leader is not None
        return leader, [worker for worker in self.workers if worker is not leader]

    @contextmanager
    def load(self) -> Iterator[None]:
        """Produces meanwhile."""
        with self.play.load(messages(1_000_000), PER_SECOND):
            wait_until(lambda: len(self.play.stage.deliveries()) >= WARM, ENOUGH_S, self._seen)
            yield

    @contextmanager
    def unbroken(self, seen_by: Process, without: Process) -> Iterator[None]:
        """No partition of others than this worker stops meanwhile: what is there is delivered.

        What a plain consumer waits for as well, and time without a core, does not count (`test_no_storms`).
        """
        stage, topic, receiver = self.play.stage, self.play.topic, self.play.receiver.popen.pid
        owners = {
            int(job.rpartition(":")[2]): self.ids[owner]
            for job, (owner, _) in assignments(seen_by).items()
            if f":{topic}:" in job and self.ids[owner] is not without
        }
        assert owners
        journal, witness = Journal(stage.journal), Journal(stage.home / "witness.jsonl")
        told = [self.play.bootstrap, topic, str(self.play.partitions), str(witness.path)]
        stage.start("witness", [sys.executable, "-m", "tests.system.witness", *told])
        wait_until(lambda: all(witness.read().taken[topic, p] for p in owners), ENOUGH_S, self._seen)
        with WaitSampler([receiver, *{owner.popen.pid for owner in owners.values()}]) as waits:
            began_ms = time.time_ns() / 1e6
            yield
            ended_ms = time.time_ns() / 1e6
        journal.read(), witness.read()
        for partition, owner in owners.items():
            taken, read = journal.taken[topic, partition], witness.taken[topic, partition]
            again = {*doubled(taken)}  # by way of the retry topic, whose partitions others may have
            there = {one.id: one.timestamp_ms for one in (*taken, *read)}
            seen = gaps(read, there)
            for ms, at_ms in gaps([one for one in taken if one not in again], there):
                starved_ms = sum(waits.waited(pid, at_ms - ms, at_ms) for pid in (receiver, owner.popen.pid))
                left_ms = ms - starved_ms - longest((ms, at_ms), seen)
                assert left_ms < GAP_MS or not began_ms <= at_ms <= ended_ms, (partition, ms, starved_ms)

    def wait_moved(self, gone: list[Process], seen_by: Process) -> None:
        """Until every job of these belongs to others, who deliver what comes in."""
        ids, jobs = {self.id_of(worker) for worker in gone}, set(assignments(seen_by))

        def moved() -> bool:
            now = assignments(seen_by)
            return set(now) == jobs and not ids & {owner for owner, _ in now.values()}

        wait_until(moved, ENOUGH_S, self._seen)
        self.wait_flow()

    def wait_flow(self) -> None:
        """Until every partition has delivered a message that was appended after now."""
        since_ms, wanted = time.time_ns() // 1_000_000, set(range(self.play.partitions))
        wait_until(
            lambda: (
                wanted
                <= {d["partition"] for d in self.play.stage.deliveries() if d["timestamp_ms"] > since_ms}
            ),
            ENOUGH_S,
            self._seen,
        )

    def end(self, deaths: int) -> None:
        """Every message has an end; what came twice was in flight or unsaved when a worker was lost."""
        report = self.play.settle()
        assert report.sound, report
        unsaved = most_within(self.play.stage.deliveries(), 2 * UNSAVED_MS)
        assert report.duplicates <= deaths * (MAX_IN_FLIGHT + unsaved), report
        self.play.wait_committed()


@pytest.fixture
def cast(stage: DemoStage, topic_name: str) -> Callable[[], Cast]:
    return lambda: Cast(stage, topic_name)


def test_a_worker_and_then_the_leader_killed_under_load_move_their_own_jobs_and_no_others(
    cast: Callable[[], Cast],
) -> None:
    play = cast()
    with play.load():
        leader, (worker, survivor) = play.leader_and_others()
        before = assignments(survivor)
        worker.kill()
        play.wait_moved([worker], survivor)
        between = assignments(survivor)
        lost = {job for job, (owner, _) in before.items() if owner == play.id_of(worker)}
        assert lost
        assert {job: held for job, held in between.items() if job not in lost} == {
            job: held for job, held in before.items() if job not in lost
        }
        leader.kill()
        play.wait_moved([worker, leader], survivor)
        assert play.leader(survivor) is survivor
        kept = {job: held for job, held in between.items() if held[0] == play.id_of(survivor)}
        assert kept
        assert kept.items() <= assignments(survivor).items()
    play.end(deaths=2)


@pytest.mark.deep(minutes=0.5)
def test_two_leaders_at_once_do_no_harm_and_nothing_stops_while_there_is_none(
    cast: Callable[[], Cast],
) -> None:
    play = cast()
    with play.load():
        first, others = play.leader_and_others()
        before = assignments(others[0])
        with play.unbroken(others[0], without=first):
            first.signal(signal.SIGSTOP)
            wait_until(lambda: play.leader(others[0]) in others, ENOUGH_S, play._seen)
            second = others[0] if play.leader(others[0]) is others[0] else others[1]
            play.wait_moved([first], second)
        after = assignments(second)
        stopped = play.id_of(first)
        for job, (owner, epoch) in before.items():  # each of its jobs moved once, the others did not
            assert after[job] == (owner, epoch) if owner != stopped else after[job][1] == epoch + 1
        first.signal(signal.SIGCONT)  # it believes that it leads, until it has read otherwise
        wait_until(lambda: play.leader(first) is second, ENOUGH_S, first.tail)
        play.wait_flow()
        decided = control_log(play.play.stage)
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
    play.end(deaths=1)
    assert first.running
