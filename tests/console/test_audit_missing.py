"""Drill-downs by REST: what is wrong with a question is said before any log is read (tests/system does)."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import urlencode

import pytest

from app.console import audit_missing
from tests.audit.test_view import WIDTH_MS
from tests.console.client import Answer, Console
from tests.console.test_audit import definition, with_loss

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
    ("changed", "status", "said"),
    [
        ({"topic": None}, 400, "topic: say which"),
        ({"start": None}, 400, "start: say which"),
        ({"start": "yesterday"}, 400, "yesterday"),
        ({"format": "xml"}, 400, "format"),
        ({"to_tier": "consumer"}, 409, "told by clients, who keep no log, and plan all names no id"),
        ({"to_tier": "regional"}, 409, "name two tiers"),
        ({"topic": "payments"}, 409, "no audit plan counts topic 'payments' at tier regional"),
        ({"start": START + 1}, 409, "windows are 60000 ms long"),
    ],
)  # fmt: skip
def test_a_question_that_no_log_answers_is_told_at_once(
    counted: Console, changed: dict[str, Any], status: int, said: str
) -> None:
    answer = ask(counted, **changed)
    assert (answer.status, said in answer.json["detail"]) == (status, True), answer.text


def test_a_cluster_that_cannot_be_read_is_told(counted: Console) -> None:
    counted.fed.clusters.specs["east-regional"] = None
    answer = ask(counted)
    assert (answer.status, answer.json["title"]) == (502, "Not read")
    assert "does not answer" in answer.json["detail"]


def test_nothing_is_copied_again_while_the_audit_is_not_sure(counted: Console) -> None:
    for execute in (False, True):
        body = {**QUESTION, "execute": execute}  # nothing was counted there
        answer = counted.ask("POST", "/api/v1/audit/copy-again", body)
        assert (answer.status, answer.json["title"]) == (409, "Not final"), answer.text
    assert not [act for act in counted.fed.control.appended if getattr(act, "action", "")]
    unknown = counted.ask("POST", "/api/v1/audit/copy-again", {**QUESTION, "yes": True})
    assert (unknown.status, "no such field" in unknown.json["detail"]) == (400, True)


def test_no_cell_of_a_file_becomes_a_formula() -> None:
    """Ids and keys are those of whoever writes records."""
    place = {"cluster": "east-regional", "topic": "orders", "partition": 0, "offset": 7}
    row = {"kind": "missing", "id": "=1+1", "key": '@"x",\n', "at_ms": 0, "at": "-", "source": place,
           "copy": None, "one_of": 1, "why": ""}  # fmt: skip
    answer = audit_missing._csv([row])
    assert isinstance(answer.body, bytes)
    head, cells = csv.reader(io.StringIO(answer.body.decode(), newline=""))
    assert tuple(head) == audit_missing.COLUMNS
    assert cells[:8] == ["missing", "'=1+1", '\'@"x",\n', "'-", "east-regional", "orders", "0", "7"]
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"


def test_the_leader_is_asked(counted: Console) -> None:
    counted.fed.leader.leads = False
    counted.fed.control.view.leader = "elsewhere"
    answer = ask(counted)
    assert (answer.status, answer.json["title"]) == (503, "Worker away")
