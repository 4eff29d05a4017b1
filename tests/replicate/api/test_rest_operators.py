"""The REST interface of a route's reset and skip: requests, refusals, forwarding, answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.events import OperatorAct
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.job import JobId
from app.kernel.ranges import Range
from tests.dispatch.api.test_rest_operators import problem
from tests.web.client import Console
from tests.web.runtime_fake import FakeRuntime, assigned, beat, copying, flowing, put_route, route, serving

PATH = "/api/v1/routes/mirror"
RESET = f"{PATH}/reset"
SKIP = f"{PATH}/topics/orders/partitions/0/skip"


class StuckPump:
    """The parts of a replica that the skip's handler uses; [10, 12) and [15, 16) cannot be copied."""

    def __init__(self) -> None:
        self.job = JobId.parse(copying(0))
        self.epoch, self.closed, self.draining = 1, False, False
        self.lost, self.halted = "", None
        self.blocked_batch = SimpleNamespace(why="nobody can decode it")
        self.stuck: tuple[Range, ...] = ((10, 12), (15, 16))
        self.base = 10
        self.lineage, self.intake = 0, SimpleNamespace(new_lineage_at=None)

    def finish_by_operator(self, start: int, end: int) -> bool:
        self.stuck = tuple(one for one in self.stuck if one != (start, end))
        self.base = min((first for first, _ in self.stuck), default=40)
        return True


def acting(fed: FakeRuntime) -> StuckPump:
    """The route copies two partitions; this worker owns both and can act."""
    fed.apply(put_route(route()), assigned(copying(0)), assigned(copying(1)))
    fed.observe(beat(flowing(copying(0)), flowing(copying(1)), url=fed.url))
    fed.jobs.worker, fed.jobs.draining, fed.jobs.lease = fed.worker, False, fed.lease

    async def away(name: str) -> Any:
        raise ClusterUnreachable(f"{name} does not answer")

    fed.clusters.get = away  # type: ignore[method-assign]
    pump = fed.kinds.replicate.pumps[copying(0)] = StuckPump()  # type: ignore[assignment]
    return pump


@pytest.fixture
def pump(console: Console) -> StuckPump:
    return acting(console.fed)


def test_a_skip_shows_the_offsets_first_then_skips_them_and_is_in_the_activity(
    console: Console, pump: StuckPump
) -> None:
    answer = console.ask("POST", SKIP, {"start": 0, "end": 40, "reason": "bug 17"}).json
    assert (answer["skipped"], answer["count"], answer["execute"]) == ([[10, 12], [15, 16]], 3, False)
    assert answer["why"] == "nobody can decode it"
    assert (len(pump.stuck), console.fed.control.appended) == (2, []), "a dry run changes nothing"
    body = {"start": 0, "end": 40, "reason": "bug 17", "execute": True}
    answer = console.ask("POST", SKIP, body, X_Switchyard_Actor="ann").json
    assert (answer["count"], pump.stuck) == (3, ())
    (act,) = [event for event in console.fed.control.appended if isinstance(event, OperatorAct)]
    assert (act.subject, act.action, act.actor) == (copying(0), "skip", "ann")
    assert act.detail == "[10, 12) 15: 3 offsets are not copied (bug 17)"


def test_only_offsets_that_cannot_be_copied_are_skipped_and_each_range_as_a_whole(
    console: Console, pump: StuckPump
) -> None:
    problem(console.ask("POST", SKIP, {"start": 11, "end": 12, "execute": True}), 409, "[10, 12) waits")
    console.ask("POST", SKIP, {"start": 10, "end": 12, "execute": True})
    assert pump.stuck == ((15, 16),), "later offsets still wait"
    console.ask("POST", SKIP, {"start": 15, "end": 16, "execute": True})
    problem(console.ask("POST", SKIP, {"start": 15, "end": 16, "execute": True}), 409, "needs no skip")


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        (SKIP, {}, 400, "start, end"),
        (SKIP, {"start": 3, "end": 3}, 400, "start < end"),
        (SKIP, {"start": True, "end": 3}, 400, "start, end"),
        (SKIP, {"start": 1, "end": 3, "execute": "yes"}, 400, "true or false"),
        (SKIP, {"start": 1, "end": 3, "topic": "x"}, 400, "no such field"),
        (f"{PATH}/topics/orders/partitions/7/skip", {"start": 1, "end": 3}, 404, "no orders-7"),
        (f"{PATH}/topics/orders/partitions/x/skip", {"start": 1, "end": 3}, 404, "no orders-x"),
        (SKIP.replace("mirror", "none"), {"start": 1, "end": 3}, 404, "no route 'none'"),
        (RESET, {}, 400, "say where to"),
        (RESET, {"to": "earliest", "at": "2h"}, 400, "say where to"),
        (RESET, {"to": "newest"}, 400, "earliest or latest"),
        (RESET, {"at": "soon"}, 400, "is not a time"),
        (RESET, {"offsets": {"0": 5}}, 400, "topic"),
        (RESET, {"to": "latest", "partitions": [0]}, 400, "topic"),
        (RESET, {"to": "latest", "topic": 7}, 400, "topic"),
        (RESET, {"topic": "orders", "offsets": {"0": -1}}, 400, "offsets"),
        (RESET, {"topic": "orders", "to": "latest", "partitions": [7]}, 404, "no partition 7 of orders"),
        (RESET, {"topic": "other", "to": "latest"}, 404, "no topic other"),
        (RESET.replace("mirror", "none"), {"to": "latest"}, 404, "no route 'none'"),
        (RESET, {"to": "latest"}, 503, "east does not answer"),
    ],
)  # fmt: skip
def test_an_impossible_request_is_refused_with_a_remedy_and_writes_nothing(
    console: Console, pump: StuckPump, path: str, body: Any, status: int, word: str
) -> None:
    problem(console.ask("POST", path, body), status, word)
    assert not console.fed.control.appended


def test_a_request_for_a_job_of_another_worker_is_forwarded(console: Console) -> None:
    owner = FakeRuntime()
    with serving(owner) as url:
        pump = acting(owner)
        owner.worker = owner.jobs.worker = "worker-b"
        console.fed.apply(put_route(route()))
        for fed in (owner, console.fed):
            fed.apply(*(assigned(copying(p), "worker-b", epoch=2) for p in (0, 1)))
        pump.epoch = 2
        console.fed.observe(beat(worker="worker-b", url=url))
        answer = console.ask("POST", SKIP, {"start": 10, "end": 12, "execute": True}).json
        assert (answer["count"], pump.stuck) == (2, ((15, 16),))
        assert not console.fed.control.appended
        assert owner.control.appended
