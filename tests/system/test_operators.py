"""What operators do, on real workers under load: every message is counted, and every act is told."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import SentMessage, messages, produce, read_all
from tests.system.fleet import run_command, together
from tests.system.test_delivery import GROUP, SETTLE_S, Scene, owners, spread

pytestmark = pytest.mark.system

STUCK_MS = 600_000
PER_SECOND = 400


class Desk:
    """An operator at a worker's API."""

    def __init__(self, play: Scene, worker: Process) -> None:
        self.play, self.worker = play, worker
        self.path = f"{worker.url}/api/v1/workloads/{GROUP}/{play.topic}"

    def ask(self, act: str, body: Any = None) -> Any:
        """The answer, once it is another one than "ask again"."""
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(http("POST", f"{self.path}/{act}", body or {}, timeout_s=30))
            return bool(answers[-1][0] != 503)

        wait_until(answered, SETTLE_S, lambda: str(answers[-1]), 0.5)
        status, told = answers[-1]
        assert status == 200, told
        return told

    def reset(self, where: dict[str, Any]) -> Any:
        """Until every partition is reset: one that moves is asked for again."""
        told: list[Any] = []

        def done() -> bool:
            told.append(self.ask("reset", {**where, "execute": True}))
            return all(row["done"] for row in told[-1]["partitions"])

        wait_until(done, SETTLE_S, lambda: str(told[-1]), 0.5)
        return told[-1]

    def states(self, topic: str | None = None) -> set[str]:
        _, told = http("GET", self.path)
        wanted = topic or self.play.topic
        return {row["state"] for row in told["partitions"] if row["topic"] == wanted}

    def wait_states(self, *wanted: str) -> None:
        wait_until(lambda: self.states() == set(wanted), SETTLE_S, lambda: str(self.states()))

    def acts(self, event: str) -> list[Any]:
        _, told = http("GET", f"{self.worker.url}/api/v1/activity?limit=500")
        return [item for item in told["items"] if item["event"] == event]

    def delivered(self) -> Counter[str]:
        """How often each message was taken."""
        return Counter(d["id"] for d in self.play.stage.deliveries() if d["outcome"] == "ok")

    def wait_delivered(self, wanted: Counter[str]) -> None:
        """Until exactly these were taken so often."""
        wait_until(
            lambda: sum(self.delivered().values()) >= sum(wanted.values()),
            SETTLE_S,
            lambda: str(len(self.delivered())),
        )
        assert self.delivered() == wanted


@pytest.fixture
def scene(stage: DemoStage, topic_name: str) -> Callable[..., Scene]:
    return lambda total, **rest: Scene(stage, topic_name, total, **rest)


def plain(count: int, prefix: str = "m") -> list[SentMessage]:
    return [SentMessage(message.id, "ok") for message in messages(count, prefix)]


def ids(sent: list[SentMessage]) -> Counter[str]:
    return Counter(message.id for message in sent)


@pytest.mark.deep(minutes=0.4)
def test_while_paused_nothing_is_delivered_and_after_resuming_everything_once(
    scene: Callable[..., Scene],
) -> None:
    play = scene(0)
    first, _ = together(play.stage)
    play.stage.deploy(first, play.definition())
    spread(first, 8)
    desk = Desk(play, first)  # some of the partitions are the other worker's
    with play.load((SentMessage(one.id, "ok") for one in messages(1_000_000)), PER_SECOND):
        wait_until(lambda: len(play.stage.deliveries()) >= PER_SECOND, SETTLE_S, play._so_far)
        assert desk.ask("pause") == {
            "key": f"{GROUP}/{play.topic}",
            "changed": True,
            "all": True,
            "partitions": [],
        }
        desk.wait_states("paused")
        wait_until(lambda: not in_flight(desk), SETTLE_S, lambda: str(in_flight(desk)))
        before, there = len(play.stage.deliveries()), len(play.sent)
        wait_until(lambda: len(play.sent) >= there + 2 * PER_SECOND, SETTLE_S, play._so_far)
        assert len(play.stage.deliveries()) == before
    committed = play.committed()
    done = len({d["id"] for d in play.stage.deliveries() if d["outcome"] == "ok"})
    assert sum(offset or 0 for offset, _ in committed.values()) <= done, "commits never run ahead"
    assert desk.ask("resume")["changed"]
    desk.wait_delivered(ids(play.sent))
    play.wait_committed()
    assert [(act["partition"], act["paused"]) for act in desk.acts("paused")] == [(-1, False), (-1, True)]


def in_flight(desk: Desk) -> int:
    _, told = http("GET", desk.path)
    return int(told["status"]["in_flight"])


@pytest.mark.deep(minutes=0.3)
def test_one_partition_is_paused_and_the_others_flow(scene: Callable[..., Scene]) -> None:
    play = scene(400)
    play.sent = plain(400)
    worker = play.stage.worker()
    play.stage.deploy(worker, play.definition())
    desk = Desk(play, worker)
    desk.wait_states("flowing")
    assert desk.ask("pause", {"partitions": [2]})["partitions"] == [2]
    play.produce()
    ends = {p: end for p, (_, end) in play.committed().items()}
    others = sum(end for p, end in ends.items() if p != 2)
    wait_until(lambda: len(play.stage.deliveries()) >= others, SETTLE_S, lambda: str(play.committed()))
    time.sleep(1.0)
    assert 2 not in {d["partition"] for d in play.stage.deliveries()}
    assert not desk.ask("pause", {"partitions": [2]})["changed"]
    desk.ask("resume", {"partitions": [2]})
    desk.wait_delivered(ids(play.sent))


@pytest.mark.deep(minutes=0.5)
def test_a_reset_to_earliest_delivers_everything_once_more_and_survives_its_worker(
    scene: Callable[..., Scene],
) -> None:
    play = scene(2_000)
    play.sent = plain(2_000)
    first, second = together(play.stage)
    play.stage.deploy(first, play.definition())
    spread(first, 8)
    play.produce()
    desk = Desk(play, first)
    desk.wait_delivered(ids(play.sent))
    play.wait_committed()
    foreseen = desk.ask("reset", {"to": "earliest"})
    assert (foreseen["execute"], foreseen["done"]) == (False, 0)
    assert sum(row["again"] for row in foreseen["partitions"]) == 2_000
    assert all(done == end for done, end in play.committed().values()), "a look changes nothing"
    desk.ask("pause")  # so that the commit can be seen to go back
    desk.wait_states("paused")
    told = desk.reset({"to": "earliest"})
    assert told["done"] == play.partitions
    assert {done for done, _ in play.committed().values()} == {0}, "the group's commit followed"
    assert {row["to"] for row in told["partitions"]} == {0}
    second.kill()  # whoever takes over knows the new position, not the old commit
    wait_until(lambda: len(owners(first)) == 1, SETTLE_S, lambda: str(owners(first)))
    desk.wait_states("paused")
    assert desk.delivered() == ids(play.sent), "nothing is delivered while it is paused"
    desk.ask("resume")
    desk.wait_delivered(Counter({message.id: 2 for message in play.sent}))
    play.wait_committed()
    acts = [act for act in desk.acts("operator-act") if act["action"] == "reset"]
    assert len(acts) >= play.partitions
    assert all("again" in act["detail"] and act["actor"] for act in acts)


@pytest.mark.deep(minutes=0.4)
def test_a_reset_forward_passes_over_what_lies_between_and_beyond_the_end_is_clamped_and_told(
    scene: Callable[..., Scene],
) -> None:
    play = scene(0, partitions=1)
    worker = play.stage.worker()
    play.stage.deploy(worker, play.definition())
    desk = Desk(play, worker)
    desk.wait_states("flowing")
    desk.ask("pause")
    desk.wait_states("paused")
    play.sent = plain(300)
    play.produce()
    asked = ["workload", "reset", f"{GROUP}/{play.topic}", "--offset", "0:250", "-o", "json"]
    foreseen = switchyard(worker, *asked)["partitions"]
    assert [(row["to"], row["skipped"]) for row in foreseen] == [(250, 250)]
    told = switchyard(worker, *asked, "--execute", "--yes")["partitions"]
    assert [(row["from"], row["to"], row["skipped"], row["done"]) for row in told] == [(0, 250, 250, True)]
    desk.ask("resume")
    desk.wait_delivered(ids(play.sent[250:]))
    play.wait_committed()
    (row,) = desk.ask("reset", {"offsets": {"0": 1_000_000}})["partitions"]
    assert (row["to"], "only" in row["note"]) == (300, True)
    (row,) = desk.ask("reset", {"at": "1h"})["partitions"]
    assert (row["to"], row["again"]) == (0, 300)
    (row,) = desk.ask("reset", {"at": "2100-01-01"})["partitions"]
    assert (row["to"], "end" in row["note"]) == (300, True)


def switchyard(worker: Process, *arguments: str, code: int = 0) -> Any:
    """What the command line prints."""
    ended = run_command(worker, *arguments)
    assert ended.returncode == code, ended.stderr
    return orjson.loads(ended.stdout)


def stuck(play: Scene, worker: Process, *, at: int) -> None:
    """Delivers a partition in order whose message at `at` never ends."""
    play.stage.deploy(worker, play.definition(ordering="partition", target={"timeout": "10m"}))
    play.sent = plain(60)
    stopper = SentMessage(play.sent[at].id, "slow")

    async def produce_all() -> None:
        await produce(play.bootstrap, play.topic, play.sent[:at])
        await produce(play.bootstrap, play.topic, [Stopper(stopper.id, "slow")])
        await produce(play.bootstrap, play.topic, play.sent[at + 1 :])

    asyncio.run(produce_all())


class Stopper(SentMessage):
    """A message whose handler does not come back."""

    def value(self) -> bytes:
        return orjson.dumps({"id": self.id, "behaviour": "slow", "ms": STUCK_MS})


@pytest.mark.parametrize("action", ["stash", pytest.param("skip", marks=pytest.mark.deep(minutes=0.3))])
def test_a_stuck_message_is_taken_out_of_the_way_and_the_partition_flows_on(
    scene: Callable[..., Scene], action: str
) -> None:
    play = scene(0, partitions=1)
    first, second = together(play.stage)
    stuck(play, first, at=20)
    desk = Desk(play, second)  # one of two partitions of the two topics: asked of either, it is handed on
    desk.wait_delivered(ids(play.sent[:20]))
    act = f"partitions/0/tracker/{action}"
    ranges = {"ranges": [[18, 22], [1_000, 1_001]]}
    # What is stuck, and what waits behind it, once that has been read.
    wait_until(
        lambda: desk.ask(act, ranges)["ended"] == [[20, 22]], SETTLE_S, lambda: f"{desk.ask(act, ranges)}"
    )
    look = desk.ask(act, ranges)
    assert look["refused"] == {"already finished": [[18, 20]], "not read yet": [[1_000, 1_001]]}
    assert len(desk.delivered()) == 20, "a look changes nothing"
    told = switchyard(
        second, "tracker", action, f"{GROUP}/{play.topic}", "0", "19-21", "--reason", "known bug 17",
        "--execute", "--yes", "-o", "json", code=6,
    )  # fmt: skip
    assert (told["ended"], told["refused"]) == ([[20, 21]], {"already finished": [[19, 20]]})
    desk.wait_delivered(ids(play.sent) - Counter([play.sent[20].id]))
    play.wait_committed()
    again = desk.ask(act, {"ranges": [[20, 21]], "execute": True})
    assert again["refused"] == {"already finished": [[20, 21]]}
    dead = asyncio.run(read_all(play.bootstrap, f"{play.topic}__{GROUP}__dlq"))
    if action == "skip":
        assert dead == []
    else:
        (letter,) = dead
        reason = dict(letter.headers)["switchyard-reason"].decode()
        assert reason.startswith("stashed by ")
        assert "known bug 17" in reason

    def done() -> list[Any]:
        return [item for item in desk.acts("operator-act") if item["action"] == action]

    wait_until(done, SETTLE_S, second.tail)  # it was told to this worker's log, by the other one maybe
    acts = done()
    assert "known bug 17" in acts[-1]["detail"]
    assert "1 ended" in acts[-1]["detail"]
