"""Operators' acts on real workers under load: every message is counted, and the activity log has every
act."""

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
from tests.system.fleet import run_command, start_workers
from tests.system.test_delivery import GROUP, SETTLE_S, DeliveryScenario, owners, wait_even_spread

pytestmark = pytest.mark.system

STUCK_MS = 600_000
PER_SECOND = 400


class Operator:
    """An operator at a worker's API."""

    def __init__(self, scenario: DeliveryScenario, worker: Process) -> None:
        self.scenario, self.worker = scenario, worker
        self.path = f"{worker.url}/api/v1/workloads/{GROUP}/{scenario.topic}"

    def ask(self, act: str, body: Any = None) -> Any:
        """Posts the act until the answer is not 503."""
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(http("POST", f"{self.path}/{act}", body or {}, timeout_s=30))
            return bool(answers[-1][0] != 503)

        wait_until(answered, SETTLE_S, lambda: str(answers[-1]), 0.5)
        status, answer = answers[-1]
        assert status == 200, answer
        return answer

    def reset(self, where: dict[str, Any]) -> Any:
        """Resets until every partition is reset: one that moves meanwhile is reset again."""
        answer: list[Any] = []

        def done() -> bool:
            answer.append(self.ask("reset", {**where, "execute": True}))
            return all(row["done"] for row in answer[-1]["partitions"])

        wait_until(done, SETTLE_S, lambda: str(answer[-1]), 0.5)
        return answer[-1]

    def states(self, topic: str | None = None) -> set[str]:
        _, answer = http("GET", self.path)
        wanted = topic or self.scenario.topic
        return {row["state"] for row in answer["partitions"] if row["topic"] == wanted}

    def wait_states(self, *wanted: str) -> None:
        wait_until(lambda: self.states() == set(wanted), SETTLE_S, lambda: str(self.states()))

    def acts(self, event: str) -> list[Any]:
        _, answer = http("GET", f"{self.worker.url}/api/v1/activity?limit=500")
        return [item for item in answer["items"] if item["event"] == event]

    def delivered(self) -> Counter[str]:
        """How often each message was acknowledged."""
        return Counter(d["id"] for d in self.scenario.stage.deliveries() if d["outcome"] == "ok")

    def wait_delivered(self, wanted: Counter[str]) -> None:
        """Waits until exactly these messages were acknowledged, this often."""
        wait_until(
            lambda: sum(self.delivered().values()) >= sum(wanted.values()),
            SETTLE_S,
            lambda: str(len(self.delivered())),
        )
        assert self.delivered() == wanted


@pytest.fixture
def make_scenario(stage: DemoStage, topic_name: str) -> Callable[..., DeliveryScenario]:
    return lambda total, **rest: DeliveryScenario(stage, topic_name, total, **rest)


def plain_messages(count: int, prefix: str = "m") -> list[SentMessage]:
    return [SentMessage(message.id, "ok") for message in messages(count, prefix)]


def ids(sent: list[SentMessage]) -> Counter[str]:
    return Counter(message.id for message in sent)


@pytest.mark.deep(minutes=0.4)
def test_a_paused_workload_delivers_nothing_and_after_resuming_each_message_once(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(0)
    first, _ = start_workers(scenario.stage)
    scenario.stage.deploy(first, scenario.definition())
    wait_even_spread(first, 8)
    operator = Operator(scenario, first)  # the other worker owns some of the partitions
    with scenario.load((SentMessage(one.id, "ok") for one in messages(1_000_000)), PER_SECOND):
        wait_until(lambda: len(scenario.stage.deliveries()) >= PER_SECOND, SETTLE_S, scenario._progress)
        assert operator.ask("pause") == {
            "key": f"{GROUP}/{scenario.topic}",
            "changed": True,
            "all": True,
            "partitions": [],
        }
        operator.wait_states("paused")
        wait_until(lambda: not in_flight(operator), SETTLE_S, lambda: str(in_flight(operator)))
        before, sent_before = len(scenario.stage.deliveries()), len(scenario.sent)
        wait_until(lambda: len(scenario.sent) >= sent_before + 2 * PER_SECOND, SETTLE_S, scenario._progress)
        assert len(scenario.stage.deliveries()) == before
    committed = scenario.committed()
    done = len({d["id"] for d in scenario.stage.deliveries() if d["outcome"] == "ok"})
    assert sum(offset or 0 for offset, _ in committed.values()) <= done, "commits never run ahead"
    assert operator.ask("resume")["changed"]
    operator.wait_delivered(ids(scenario.sent))
    scenario.wait_committed()
    assert [(act["partition"], act["paused"]) for act in operator.acts("paused")] == [(-1, False), (-1, True)]


def in_flight(operator: Operator) -> int:
    _, answer = http("GET", operator.path)
    return int(answer["status"]["in_flight"])


@pytest.mark.deep(minutes=0.3)
def test_one_partition_is_paused_and_the_others_flow(make_scenario: Callable[..., DeliveryScenario]) -> None:
    scenario = make_scenario(400)
    scenario.sent = plain_messages(400)
    worker = scenario.stage.worker()
    scenario.stage.deploy(worker, scenario.definition())
    operator = Operator(scenario, worker)
    operator.wait_states("flowing")
    assert operator.ask("pause", {"partitions": [2]})["partitions"] == [2]
    scenario.produce()
    ends = {p: end for p, (_, end) in scenario.committed().items()}
    unpaused_messages = sum(end for p, end in ends.items() if p != 2)
    wait_until(
        lambda: len(scenario.stage.deliveries()) >= unpaused_messages,
        SETTLE_S,
        lambda: str(scenario.committed()),
    )
    time.sleep(1.0)
    assert 2 not in {d["partition"] for d in scenario.stage.deliveries()}
    assert not operator.ask("pause", {"partitions": [2]})["changed"]
    operator.ask("resume", {"partitions": [2]})
    operator.wait_delivered(ids(scenario.sent))


@pytest.mark.deep(minutes=0.5)
def test_a_reset_to_earliest_delivers_every_message_again_and_survives_a_killed_worker(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(2_000)
    scenario.sent = plain_messages(2_000)
    first, second = start_workers(scenario.stage)
    scenario.stage.deploy(first, scenario.definition())
    wait_even_spread(first, 8)
    scenario.produce()
    operator = Operator(scenario, first)
    operator.wait_delivered(ids(scenario.sent))
    scenario.wait_committed()
    foreseen = operator.ask("reset", {"to": "earliest"})
    assert (foreseen["execute"], foreseen["done"]) == (False, 0)
    assert sum(row["again"] for row in foreseen["partitions"]) == 2_000
    assert all(done == end for done, end in scenario.committed().values()), "a look changes nothing"
    operator.ask("pause")  # so that the commit can be seen to go back
    operator.wait_states("paused")
    result = operator.reset({"to": "earliest"})
    assert result["done"] == scenario.partitions
    assert {done for done, _ in scenario.committed().values()} == {0}, "the group's commit followed"
    assert {row["to"] for row in result["partitions"]} == {0}
    second.kill()  # the next owner knows the new position, not the old commit
    wait_until(lambda: len(owners(first)) == 1, SETTLE_S, lambda: str(owners(first)))
    operator.wait_states("paused")
    assert operator.delivered() == ids(scenario.sent), "nothing is delivered while it is paused"
    operator.ask("resume")
    operator.wait_delivered(Counter({message.id: 2 for message in scenario.sent}))
    scenario.wait_committed()
    acts = [act for act in operator.acts("operator-act") if act["action"] == "reset"]
    assert len(acts) >= scenario.partitions
    assert all("again" in act["detail"] and act["actor"] for act in acts)


@pytest.mark.deep(minutes=0.4)
def test_a_reset_forward_skips_messages_and_a_reset_beyond_the_end_is_clamped_with_a_note(
    make_scenario: Callable[..., DeliveryScenario],
) -> None:
    scenario = make_scenario(0, partitions=1)
    worker = scenario.stage.worker()
    scenario.stage.deploy(worker, scenario.definition())
    operator = Operator(scenario, worker)
    operator.wait_states("flowing")
    operator.ask("pause")
    operator.wait_states("paused")
    scenario.sent = plain_messages(300)
    scenario.produce()
    command = ["workload", "reset", f"{GROUP}/{scenario.topic}", "--offset", "0:250", "-o", "json"]
    foreseen = switchyard(worker, *command)["partitions"]
    assert [(row["to"], row["skipped"]) for row in foreseen] == [(250, 250)]
    rows = switchyard(worker, *command, "--execute", "--yes")["partitions"]
    assert [(row["from"], row["to"], row["skipped"], row["done"]) for row in rows] == [(0, 250, 250, True)]
    operator.ask("resume")
    operator.wait_delivered(ids(scenario.sent[250:]))
    scenario.wait_committed()
    (row,) = operator.ask("reset", {"offsets": {"0": 1_000_000}})["partitions"]
    assert (row["to"], "only" in row["note"]) == (300, True)
    (row,) = operator.ask("reset", {"at": "1h"})["partitions"]
    assert (row["to"], row["again"]) == (0, 300)
    (row,) = operator.ask("reset", {"at": "2100-01-01"})["partitions"]
    assert (row["to"], "end" in row["note"]) == (300, True)


def switchyard(worker: Process, *arguments: str, code: int = 0) -> Any:
    """Runs a command and returns its JSON."""
    ended = run_command(worker, *arguments)
    assert ended.returncode == code, ended.stderr
    return orjson.loads(ended.stdout)


def deploy_with_stuck_message(scenario: DeliveryScenario, worker: Process, *, at: int) -> None:
    """Deploys an ordered workload and produces messages; the handler of the one at `at` never returns."""
    scenario.stage.deploy(worker, scenario.definition(ordering="partition", target={"timeout": "10m"}))
    scenario.sent = plain_messages(60)
    stuck = SentMessage(scenario.sent[at].id, "slow")

    async def produce_all() -> None:
        await produce(scenario.bootstrap, scenario.topic, scenario.sent[:at])
        await produce(scenario.bootstrap, scenario.topic, [StuckMessage(stuck.id, "slow")])
        await produce(scenario.bootstrap, scenario.topic, scenario.sent[at + 1 :])

    asyncio.run(produce_all())


class StuckMessage(SentMessage):
    """A message whose handler does not return."""

    def value(self) -> bytes:
        return orjson.dumps({"id": self.id, "behaviour": "slow", "ms": STUCK_MS})


@pytest.mark.parametrize("action", ["stash", pytest.param("skip", marks=pytest.mark.deep(minutes=0.3))])
def test_a_stuck_message_can_be_stashed_or_skipped_and_its_partition_flows_again(
    make_scenario: Callable[..., DeliveryScenario], action: str
) -> None:
    scenario = make_scenario(0, partitions=1)
    first, second = start_workers(scenario.stage)
    deploy_with_stuck_message(scenario, first, at=20)
    operator = Operator(scenario, second)  # either worker forwards the act to the owner
    operator.wait_delivered(ids(scenario.sent[:20]))
    act = f"partitions/0/tracker/{action}"
    ranges = {"ranges": [[18, 22], [1_000, 1_001]]}
    # The stuck message and the one behind it, once that has been read.
    wait_until(
        lambda: operator.ask(act, ranges)["ended"] == [[20, 22]],
        SETTLE_S,
        lambda: f"{operator.ask(act, ranges)}",
    )
    preview = operator.ask(act, ranges)
    assert preview["refused"] == {"already finished": [[18, 20]], "not read yet": [[1_000, 1_001]]}
    assert len(operator.delivered()) == 20, "a look changes nothing"
    result = switchyard(
        second, "tracker", action, f"{GROUP}/{scenario.topic}", "0", "19-21", "--reason", "known bug 17",
        "--execute", "--yes", "-o", "json", code=6,
    )  # fmt: skip
    assert (result["ended"], result["refused"]) == ([[20, 21]], {"already finished": [[19, 20]]})
    operator.wait_delivered(ids(scenario.sent) - Counter([scenario.sent[20].id]))
    scenario.wait_committed()
    repeated = operator.ask(act, {"ranges": [[20, 21]], "execute": True})
    assert repeated["refused"] == {"already finished": [[20, 21]]}
    dead = asyncio.run(read_all(scenario.bootstrap, f"{scenario.topic}__{GROUP}__dlq"))
    if action == "skip":
        assert dead == []
    else:
        (letter,) = dead
        reason = dict(letter.headers)["switchyard-reason"].decode()
        assert reason.startswith("stashed by ")
        assert "known bug 17" in reason

    def done() -> list[Any]:
        return [item for item in operator.acts("operator-act") if item["action"] == action]

    wait_until(done, SETTLE_S, second.tail)  # the act may come from the other worker
    acts = done()
    assert "known bug 17" in acts[-1]["detail"]
    assert "1 ended" in acts[-1]["detail"]
