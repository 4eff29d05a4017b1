"""Drill-downs by REST: a wrong question is refused before any log is read. tests/system reads logs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from app.audit.api import rest_drilldown
from app.audit.definition import AuditPlan
from app.audit.drilldown import search as drilled_down
from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.partition_repair import RefusedCopy
from app.audit.drilldown.prints import EventTimeWindow
from app.audit.drilldown.repair import CopiedAgain
from app.audit.drilldown.search import SearchResult as Answered
from app.audit.drilldown.sides import NotReadable, Question
from app.audit.jobs.region_query import own_share
from app.audit.jobs.report_sender import audit_partition
from app.audit.query.view import WindowQuery, joined
from app.cli.client import EXIT_PARTIAL
from app.cli.main import switchyard
from app.controllog.events import AuditPut, OperatorAct
from app.web.http.forwarding import HOP_HEADER
from switchyard.audit.model.fingerprint import ids_of, of_ids
from tests.audit.api.plans import AWAY, HOME, WEST, AuditedTopics, plan
from tests.audit.api.test_rest import definition, with_loss
from tests.audit.query.test_view import WIDTH_MS
from tests.web.client import Answer, Console
from tests.web.runtime_fake import definition as workload
from tests.web.runtime_fake import put

START = 10**12 - 10**12 % WIDTH_MS
QUESTION = {"topic": "orders", "from_tier": "regional", "to_tier": "aggregate", "start": START}


def ask(console: Console, **changed: Any) -> Answer:
    query = {name: value for name, value in {**QUESTION, **changed}.items() if value is not None}
    return console.ask("GET", f"/api/v1/audit/missing?{urlencode(query)}")


@pytest.fixture
def counted(console: Console) -> Console:
    """Two tiers that a plan counts."""
    with_loss(console)
    assert console.ask("PUT", "/api/v1/audit/plans/all", definition()).status == 201
    return console


@pytest.mark.parametrize(
    ("changed", "status", "detail"),
    [
        ({"topic": None}, 400, "topic: say which"),
        ({"start": None}, 400, "start: say which"),
        ({"start": "yesterday"}, 400, "yesterday"),
        ({"format": "xml"}, 400, "format"),
        ({"to_tier": "consumer"}, 409, "tier consumer has no log, only reports, and plan all names no id"),
        ({"to_tier": "regional"}, 409, "name two tiers"),
        ({"topic": "payments"}, 409, "no audit plan counts topic 'payments' at tier regional"),
        ({"start": START + 1}, 409, "windows are 60000 ms long"),
    ],
)  # fmt: skip
def test_a_question_that_no_log_answers_is_refused_at_once(
    counted: Console, changed: dict[str, Any], status: int, detail: str
) -> None:
    answer = ask(counted, **changed)
    assert (answer.status, detail in answer.json["detail"]) == (status, True), answer.text


def test_an_unreadable_cluster_is_reported(counted: Console) -> None:
    counted.fed.clusters.specs["east-regional"] = None
    answer = ask(counted)
    assert (answer.status, answer.json["title"]) == (502, "Not read")
    assert "does not answer" in answer.json["detail"]


@pytest.mark.parametrize(
    "timestamp",
    [
        {"source": "json", "field": 'x"ts'},  # earlier versions took it
        {"source": "avro", "field": "ts", "schema": "gone.avsc"},
        {"source": "protobuf", "field": "ts", "descriptor": "gone.binpb", "message": "shop.Order"},
    ],
)
def test_a_stored_plan_with_an_unusable_time_answers_with_a_remedy(
    counted: Console, timestamp: dict[str, Any]
) -> None:
    data = definition()
    data["spec"]["timestamp"] = timestamp
    stored = AuditPlan.model_validate(data)
    counted.fed.apply(
        AuditPut(at_ms=1, key=stored.key, definition=stored.to_wire(), etag=stored.etag(), actor="test")
    )
    answer = ask(counted)
    assert (answer.status, answer.json["title"]) == (409, "Not to be read"), answer.text
    assert "this worker cannot read the event time of plan all: " in answer.json["detail"]
    assert answer.json["detail"].endswith("change the plan")


def test_nothing_is_copied_again_before_the_verdict_is_final(counted: Console) -> None:
    for execute in (False, True):
        body = {**QUESTION, "execute": execute}  # nothing was counted there
        answer = counted.ask("POST", "/api/v1/audit/copy-again", body)
        assert (answer.status, answer.json["title"]) == (409, "Not final"), answer.text
    assert not [act for act in counted.fed.control.appended if getattr(act, "action", "")]
    unknown = counted.ask("POST", "/api/v1/audit/copy-again", {**QUESTION, "yes": True})
    assert (unknown.status, "no such field" in unknown.json["detail"]) == (400, True)


def test_no_cell_of_a_file_becomes_a_formula() -> None:
    """Producers choose ids and keys."""
    place = {"cluster": "east-regional", "topic": "orders", "partition": 0, "offset": 7}
    row = {"kind": "missing", "id": "=1+1", "key": '@"x",\n', "at_ms": 0, "at": "-", "source": place,
           "copy": None, "one_of": 1, "why": ""}  # fmt: skip
    answer = rest_drilldown._file("csv", [row])
    assert isinstance(answer.body, bytes)
    head, cells = csv.reader(io.StringIO(answer.body.decode(), newline=""))
    assert tuple(head) == rest_drilldown.COLUMNS
    assert cells[:8] == ["missing", "'=1+1", '\'@"x",\n', "'-", "east-regional", "orders", "0", "7"]
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"


def finished(console: Console, **lacks: set[int]) -> tuple[AuditedTopics, int]:
    """Groups that have each finished one cluster's records, and lack some ids."""
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan(id={"header": "message-id"})).status == 201
    for group in lacks:
        data = workload(group)
        data["metadata"]["cluster"] = HOME[1]
        console.fed.apply(put(data))
    audited = AuditedTopics(console)
    places = [HOME, WEST, *(("consumer", f"{HOME[1]}:{group}") for group in lacks)]
    for back in (6, 5, 4):
        audited.count("orders", HOME, back, range(10))
        audited.count("orders", WEST, back, range(100, 110))
        for place, missing in zip(places[2:], lacks.values(), strict=True):
            audited.count("orders", place, back, [one for one in range(10) if one not in missing])
    audited.close("orders", *places, back=4)
    return audited, audited.start_ms(5)


def test_a_groups_missing_ids_are_the_difference_from_its_own_cluster(console: Console) -> None:
    _, start_ms = finished(console, billing={7})
    runtime: Any = console.fed
    known = joined([asyncio.run(own_share(runtime.audit_books, WindowQuery("orders")))], audit_partition)
    question = Question("orders", "regional", "consumer", start_ms)
    assert rest_drilldown._ids(known, question, "billing") == of_ids(ids_of([b"7"]))


def test_a_question_must_name_one_of_several_groups(console: Console) -> None:
    _, start_ms = finished(console, billing={7}, web=set())
    answer = ask(console, to_tier="consumer", start=start_ms)
    assert (answer.status, answer.json["title"]) == (409, "Not to be read"), answer.text
    assert "groups billing, web are compared there separately" in answer.json["detail"]


def test_a_drill_down_uses_the_difference_of_the_named_group(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other group's difference does not matter."""
    _, start_ms = finished(console, billing={7}, web={3, 4})
    questions: list[tuple[str, int, Any]] = []

    async def drill(_: Any, question: Question, *__: Any, difference: Any, **___: Any) -> Any:
        questions.append((question.group, difference.surplus, difference.ids))
        raise NotReadable("far enough")

    monkeypatch.setattr(rest_drilldown, "drill", drill)
    for group in ("billing", "web"):
        ask(console, to_tier="consumer", start=start_ms, group=group)
    assert questions == [("billing", 1, of_ids(ids_of([b"7"]))), ("web", 2, of_ids(ids_of([b"3", b"4"])))]
    answer = ask(console, to_tier="consumer", start=start_ms, group="none")
    assert (answer.status, "compared are: billing, web" in answer.json["detail"]) == (409, True), answer.text


def test_an_answer_removed_from_the_cache_is_read_again(
    counted: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying again removes it, and so do the answers to many other questions."""

    async def drilled(self: rest_drilldown.AuditMissingRoutes, *_: Any) -> Any:
        sides: Any = None
        answer = Answered(
            Question("orders", "regional", "aggregate", START),
            EventTimeWindow(0, 1),
            [],
            {},
            1,
            0,
            [],
            [],
            sides,
            is_known=False,
        )
        return rest_drilldown.CachedAnswer(answer, rest_drilldown.AuditedWindow(None, False, None, 0), 0, 0.0)

    monkeypatch.setattr(rest_drilldown.AuditMissingRoutes, "_drill", drilled)
    monkeypatch.setattr(drilled_down, "result_fields", lambda _: {})
    answer = ask(counted)
    assert (answer.status, answer.json["state"]) == (202, "done"), answer.text


def test_only_the_leader_copies(console: Console) -> None:
    """A worker may have lost the lead when it gets the request."""
    audited = AuditedTopics(console)
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    for back in (6, 5, 4):
        audited.count("orders", HOME, back, range(10))
        audited.count("orders", AWAY, back, range(9))
    audited.close("orders", HOME, AWAY, back=4)
    console.fed.leader.leads = False
    body = {**QUESTION, "start": audited.start_ms(5), "execute": True}
    answer = console.ask("POST", "/api/v1/audit/copy-again", body, **{HOP_HEADER: "1"})
    assert (answer.status, answer.json["title"]) == (503, "Not the leader"), answer.text


def test_refused_records_are_in_the_commands_output_and_in_the_control_log(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/audit/drilldown tests the copying."""
    audited = AuditedTopics(console)
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    for back in (6, 5, 4):
        audited.count("orders", HOME, back, range(10))
        audited.count("orders", AWAY, back, range(7))
    audited.close("orders", HOME, AWAY, back=4)
    start_ms, place = audited.start_ms(5), ClusterPartition("east-regional", "orders", 0)
    why = "error 10 (TOO_LARGE): raise it"

    async def drilled(self: rest_drilldown.AuditMissingRoutes, question: Question, *_: Any) -> Any:
        sides: Any = None
        answer = Answered(question, EventTimeWindow(start_ms, 1), [], {}, 1, 0, [], [], sides)
        verdict = rest_drilldown.AuditedWindow("lossy", True, None, 0)
        cached = self._cache[question] = rest_drilldown.CachedAnswer(answer, verdict, 0, time.monotonic())
        return cached

    async def copied(*_: Any) -> CopiedAgain:
        named = tuple(RefusedCopy(place, offset, why) for offset in (7, 9))
        return CopiedAgain(1, 0, 0, 3, named)

    fields = {**QUESTION, "start": start_ms, "complete": True}
    for module, name, made in (
        (rest_drilldown.AuditMissingRoutes, "_drill", drilled),
        (rest_drilldown, "copy_again", copied),
        (rest_drilldown, "targets", lambda _: {}),
        (rest_drilldown, "missing_records", lambda _: {place: dict.fromkeys(range(4))}),
        (drilled_down, "result_fields", lambda _: fields),
    ):
        monkeypatch.setattr(module, name, made)
    options = ["--topic", "orders", "--start", str(start_ms), "--url", console.url, "--execute", "--yes"]
    done = CliRunner().invoke(switchyard, ["audit", "copy-again", *options, "-o", "json"])
    assert done.exit_code == EXIT_PARTIAL, done.output
    answer = json.loads(done.stdout[done.stdout.index("{\n") :])  # behind what the worker logs
    assert (answer["copied"], answer["left"], answer["refused"]) == (1, 0, 3)
    assert answer["refused_records"][0] == {
        **place._asdict(),
        "offset": 7,
        "why": why,
    }
    assert f"refused: east-regional/orders/0/7: {why}" in done.stderr
    assert "and 1 others" in done.stderr
    (act,) = [one for one in console.fed.control.appended if isinstance(one, OperatorAct)]
    assert "1 of 4 missing records" in act.detail
    assert f"; the destination refused 3: orders-0 of east-regional, offset 7: {why}; orders-0" in act.detail


def test_a_question_goes_to_the_leader(counted: Console) -> None:
    counted.fed.leader.leads = False
    counted.fed.control.view.leader = "elsewhere"
    answer = ask(counted)
    assert (answer.status, answer.json["title"]) == (503, "Worker away")
