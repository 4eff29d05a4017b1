"""Placement over REST: an operator reads a plan before it is applied unchanged, and every move has its
reason.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from app.controllog.events import Claim, Drain, MoveWish
from app.kernel.lease import Lease
from app.kernel.load import Load
from app.placement.inputs import PlacementInputs
from app.placement.leader import Leader
from app.worker.members.leadership import Leadership
from tests.web.client import Console
from tests.web.runtime_fake import ME, assigned, beat, definition, flowing, job, put, serving

PLAN, APPLY, RELEASE = (f"/api/v1/placement/{what}" for what in ("plan", "apply", "release"))


def lead(console: Console, *, loads: float = 0.01) -> None:
    """Makes this worker the leader of a region of two workers; it has both jobs."""
    fed = console.fed

    async def jobs() -> set[str]:
        return {job(0), job(1)}

    lease = Lease(3600.0)
    lease.renewed(time.monotonic())
    log: Any = fed.control
    fed.leader = Leader(
        Leadership(ME, log, lease),
        log,
        fed.members,
        jobs,
        PlacementInputs(fed.catalog.workloads.workload, lambda *_: None),
        dict,
    )
    fed.apply(Claim(at_ms=1, term=1, worker=ME), put(definition("billing", "orders")))
    fed.control.view.term = 0  # `assigned` writes events of term 0
    fed.apply(assigned(job(0)), assigned(job(1), reason="it had no owner"))
    load = Load(loads, 1 << 20, 1000)
    fed.observe(beat(flowing(job(0), load=load), flowing(job(1), load=load)))
    fed.observe(beat(worker="w2"))


def test_jobs_are_evened_only_on_request_and_by_the_plan_that_was_read(
    console: Console,
) -> None:
    lead(console)
    plain = console.ask("POST", PLAN, {})
    assert (plain.status, plain.json["moves"]) == (200, [])
    even = console.ask("POST", PLAN, {"even": True}).json
    (move,) = even["moves"]
    assert (move["from"], move["to"]) == (ME, "w2")
    assert "has 2 jobs" in move["reason"]

    assert console.ask("POST", APPLY, {"even": True, "plan": "another"}).status == 412
    assert console.fed.control.appended == []
    done = console.ask("POST", APPLY, {"even": True, "plan": even["plan"], "reason": "joined"})
    assert (done.status, done.json["wished"]) == (200, 1)
    (wish,) = console.fed.control.appended
    assert isinstance(wish, MoveWish)
    assert (wish.job, wish.worker, wish.why) == (move["job"], "w2", "joined")
    listed = {row["job"]: row for row in console.ask("GET", "/api/v1/assignments").json["items"]}
    assert listed[move["job"]]["wish"] == "w2"
    assert listed[job(1)]["reason"] == "it had no owner"
    assert listed[job(1)]["cpu_cores"] == 0.01


def test_a_job_is_moved_by_hand_and_an_impossible_move_names_the_field(console: Console) -> None:
    lead(console)
    made = console.ask("POST", PLAN, {"moves": [{"job": job(1), "to": "w2"}]}).json
    assert [(move["job"], move["to"]) for move in made["moves"]] == [(job(1), "w2")]
    for body, words in (
        ({"moves": [{"job": "dispatch:no/such:such:0", "to": "w2"}]}, "no worker owns"),
        ({"moves": [{"job": job(1), "to": "w9"}]}, "no worker 'w9' lives"),
        ({"moves": [{"job": job(1)}]}, "moves: write"),
        ({"moves": 7}, "must be a list"),
        ({"even": 1}, "even: must be true or false"),
        ({"evn": True}, "evn: no such field"),
    ):
        refused = console.ask("POST", PLAN, body)
        assert refused.status == 400
        assert words in refused.json["detail"]


def test_a_worker_over_capacity_is_shown_with_its_level(console: Console) -> None:
    lead(console, loads=0.6)
    made = console.ask("POST", PLAN, {}).json
    assert made["levels"][ME] < 1
    (move,) = made["moves"]
    assert "of its cpu" in move["reason"]


def test_a_drain_is_a_dry_run_until_it_is_executed_and_can_be_undone(console: Console) -> None:
    lead(console)
    path = "/api/v1/workers/{}/drain"
    assert console.ask("POST", path.format("w9"), {}).status == 404
    dry = console.ask("POST", path.format(ME), {}).json
    assert (dry["changed"], dry["jobs"], console.fed.control.appended) == (True, 2, [])
    assert console.ask("POST", path.format(ME), {"execute": True}).status == 200
    assert console.ask("POST", path.format("w2"), {"execute": True}).status == 200  # it has no jobs
    states = {row["worker"]: row["state"] for row in console.ask("GET", "/api/v1/workers").json["items"]}
    assert states == {ME: "drained", "w2": "drained"}
    assert console.ask("POST", path.format(ME), {"draining": False, "execute": True}).json["changed"]
    assert [event.draining for event in console.fed.control.appended if isinstance(event, Drain)] == [
        True,
        True,
        False,
    ]


def test_the_last_worker_with_jobs_is_not_drained(console: Console) -> None:
    lead(console)
    console.fed.apply(Drain(at_ms=1, worker="w2", draining=True, actor="me"))
    refused = console.ask("POST", f"/api/v1/workers/{ME}/drain", {"execute": True})
    assert refused.status == 409
    assert "start another worker first" in refused.json["detail"]


def test_the_last_worker_of_an_isolation_group_is_not_drained_while_it_has_jobs_of_it(
    console: Console,
) -> None:
    lead(console)
    fed = console.fed
    fed.apply(put(definition("billing", "orders", placement={"group": "gold"})))
    fed.observe(msgspec.structs.replace(beat(flowing(job(0)), flowing(job(1))), group="gold"))
    refused = console.ask("POST", f"/api/v1/workers/{ME}/drain", {})
    assert refused.status == 409
    assert "of the isolation group 'gold'" in refused.json["detail"]
    fed.observe(msgspec.structs.replace(beat(worker="w3"), group="gold"))
    assert console.ask("POST", f"/api/v1/workers/{ME}/drain", {}).json["jobs"] == 2


def test_a_wish_that_was_not_fulfilled_yet_can_be_taken_back(console: Console) -> None:
    lead(console)
    fed = console.fed
    fed.apply(MoveWish(at_ms=1, job=job(1), worker="w9", epoch=1, actor="me"))
    assert console.ask("POST", PLAN, {}).json["notices"][0]["kind"] == "wish-impossible"
    dry = console.ask("POST", RELEASE, {"job": job(1)})
    assert dry.json == {"job": job(1), "wish": "w9", "changed": True, "execute": False}
    assert fed.control.appended == []
    done = console.ask("POST", RELEASE, {"job": job(1), "reason": "it ended", "execute": True})
    assert done.json["changed"] is True
    (event,) = fed.control.appended
    assert (event.job, event.worker, event.why) == (job(1), "", "it ended")
    assert console.ask("POST", PLAN, {}).json["notices"] == []
    repeated = console.ask("POST", RELEASE, {"job": job(1), "execute": True}).json
    assert (repeated["wish"], repeated["changed"]) == (None, False)
    assert len(fed.control.appended) == 1
    assert console.ask("POST", RELEASE, {"job": "dispatch:no/such:such:0"}).status == 404
    assert "job: missing" in console.ask("POST", RELEASE, {}).json["detail"]


def test_every_worker_answers_with_the_leaders_answer(console: Console) -> None:
    lead(console)
    follower = type(console.fed)()
    follower.leader.leads = False
    follower.control.view = console.fed.control.view
    leading = beat(flowing(job(0)), flowing(job(1)), url=console.url)
    with serving(follower) as url:
        follower.worker = "w2"
        follower.observe(leading)
        follower.observe(beat(worker="w2"))
        answer = Console(url, follower).ask("POST", PLAN, {"even": True})
    assert answer.status == 200
    assert [move["to"] for move in answer.json["moves"]] == ["w2"]
