"""Audits beside JSON pages: files, one row for each topic, and changes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from app.audit.api import cli_watch
from app.audit.jobs.books import AuditBook
from app.audit.jobs.report_sender import audit_partition
from app.web.http.exports import csv_lines
from tests.audit.api.plans import AWAY, HOME, AuditedTopics, every_state, plan
from tests.audit.query.test_time_index import Audit as Indexed
from tests.cli.shell import InProcess
from tests.web.client import Console

ALL = "from=24h&state=ok&state=provisional&state=lossy&state=late&state=duplicated&state=corrupted"


@pytest.fixture
def audited(console: Console) -> AuditedTopics:
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    return every_state(console)


def test_lists_are_files_of_all_rows_in_csv_or_json_lines(console: Console, audited: AuditedTopics) -> None:
    for path in ("windows?from=24h", f"loss?{ALL}", "topics?from=24h"):
        page = console.ask("GET", f"/api/v1/audit/{path}&limit=1000").json["items"]
        lines = console.ask("GET", f"/api/v1/audit/{path}&format=ndjson")
        assert [json.loads(line) for line in lines.text.splitlines()] == page
        assert lines.headers["Content-Type"] == "application/x-ndjson"
        file = console.ask("GET", f"/api/v1/audit/{path}&format=csv")
        assert file.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert file.headers["X-Content-Type-Options"] == "nosniff"
        rows = list(csv.DictReader(io.StringIO(file.text)))
        assert [list(row) for row in rows] == [list(page[0])] * len(page)
        assert [row["topic"] for row in rows] == [row["topic"] for row in page]
        assert [row.get("start_ms") for row in rows] == [
            row.get("start_ms") and str(row["start_ms"]) for row in page
        ]
        accepted = console.ask("GET", f"/api/v1/audit/{path}", Accept="text/csv;q=0.9, */*")
        assert accepted.text == file.text
    assert console.ask("GET", "/api/v1/audit/windows", Accept="*/*").json["items"]
    refused = console.ask("GET", "/api/v1/audit/windows?format=xml")
    assert (refused.status, "csv" in refused.json["detail"]) == (400, True)
    assert console.ask("GET", "/api/v1/audit/windows?format=csv&limit=5").status == 400


def test_no_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    lines = csv_lines(
        [["=1+1", "+1", "-1", "@x", "\tx", 'a"b', "a,b", -1, -0.5, None, True, ["=1", "b"], []]]
    )
    assert next(csv.reader(io.StringIO(lines.decode()))) == [
        "'=1+1", "'+1", "'-1", "'@x", "'\tx", 'a"b', "a,b", "-1", "-0.5", "", "true", "'=1; b", "",
    ]  # fmt: skip


def test_a_topic_has_its_worst_state(console: Console, audited: AuditedTopics) -> None:
    for tier in (HOME, AWAY):
        audited.count("payments", tier, 5, range(10))
    audited.count("alone", HOME, 5, range(10))
    audited.close("payments", HOME, AWAY)
    rows = {row["topic"]: row for row in console.ask("GET", "/api/v1/audit/topics?from=24h").json["items"]}
    orders, payments = rows["orders"], rows["payments"]
    assert (orders["state"], orders["missing"], orders["extra"], orders["late"]) == ("lossy", 77, 3, 315)
    assert (orders["windows"], orders["incomplete"], orders["tiers"]) == (25, 1, ["regional", "aggregate"])
    assert {state: n for state, n in orders["states"].items() if n} == {
        "ok": 18, "provisional": 1, "lossy": 2, "duplicated": 1, "corrupted": 1, "late": 1,
    }  # fmt: skip
    assert (payments["state"], payments["silent"], rows["alone"]["state"]) == ("ok", [], "not-compared")
    recent = console.ask("GET", f"/api/v1/audit/topics?from={audited.start_ms(3)}").json["items"]
    assert [row["state"] for row in recent] == ["not-compared", "ok", "not-compared"]


def test_a_tier_without_reports_is_silent_and_its_topic_not_lossy(
    console: Console, audited: AuditedTopics
) -> None:
    for tier, silent in ((HOME, False), (AWAY, True)):
        audited.count("refunds", tier, 7, range(10), silent=silent)
    audited.close("refunds", HOME, AWAY, back=7)
    audited.count("refunds", HOME, 5, range(10))
    audited.count("refunds", AWAY, 5, range(4), silent=True)
    audited.close("refunds", HOME)
    found = console.ask("GET", "/api/v1/audit/topics?from=24h").json["items"][-1]
    assert (found["topic"], found["state"], found["missing"]) == ("refunds", "absent-audit", 0)
    assert (found["states"]["ok"], found["states"]["absent-audit"]) == (1, 1)
    assert (found["absent"], found["silent"]) == (["aggregate"], ["aggregate/east"])


def row(start_ms: int, state: str, **changed: Any) -> dict[str, Any]:
    known = {
        "topic": "orders", "group": None, "from_tier": "regional", "to_tier": "aggregate",
        "start_ms": start_ms, "end_ms": start_ms + 1, "start": f"t{start_ms}", "state": state,
        "from_count": 10, "to_count": 8,
        "missing": 0, "extra": 0, "by": "count", "absent": [], "lag_ms": None, "behind_ms": 0,
    }  # fmt: skip
    return known | changed


def test_changes_are_reported_once_and_growing_windows_are_none() -> None:
    def step(known: Any, *rows: dict[str, Any]) -> tuple[Any, list[str]]:
        printed = [cli_watch.line(change) for change in cli_watch.changes(known, rows)]
        return {cli_watch.name_of(one): one for one in rows}, printed

    known, printed = step(None, row(2, "provisional"), row(1, "lossy", missing=2), row(0, "ok"))
    assert printed == ["t1 orders regional -> aggregate: lossy, 2 of 10 are missing"]
    known, printed = step(
        known, row(2, "provisional", to_count=9), row(1, "lossy", missing=2), row(3, "provisional")
    )
    assert printed == ["t3 orders regional -> aggregate: provisional, 8 of 10"]
    known, printed = step(known, row(2, "absent-audit", absent=["aggregate"]), row(1, "lossy", missing=1))
    assert printed == [
        "t1 orders regional -> aggregate: lossy, 1 of 10 are missing",
        "t2 orders regional -> aggregate: provisional -> absent-audit: nothing is known of aggregate",
    ]
    _, printed = step(known, row(2, "corrupted", by="ids"), row(1, "ok"))
    assert printed[0] == "t1 orders regional -> aggregate: lossy -> ok, 8 of 10"
    assert "but not the same (ids differ)" in printed[1]


def test_groups_are_distinguished_in_changes() -> None:
    rows = [
        row(1, "lossy", to_tier="consumer", group=group, missing=n) for n, group in enumerate(("web", "ads"))
    ]
    known = {cli_watch.name_of(one): one for one in rows}
    assert cli_watch.changes(known, rows) == []
    printed = [cli_watch.line(change) for change in cli_watch.changes(None, rows)]
    assert printed[1] == "t1 orders regional -> consumer (ads): lossy, 1 of 10 are missing"


def test_watch_prints_changes_and_exits_by_the_last_states(
    console: Console, audited: AuditedTopics, tmp_path: Path
) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    watch = ("audit", "watch", "--every", "0.1")
    lost = shell(*watch, "--topic", "orders", "--from", "24h", "--until-ok", "0", "-o", "json")
    assert lost.returncode == 8
    changes = [json.loads(line) for line in lost.stdout.splitlines()]
    assert sorted(one["state"] for one in changes) == ["corrupted", "duplicated", "late", "lossy", "lossy"]
    assert {one["before"] for one in changes} == {None}
    assert "the time is over: of " in lost.stderr
    assert "1 corrupted, 1 duplicated, 1 late, 2 lossy" in lost.stderr
    file = shell(*watch, "--topic", "orders", "--from", "24h", "--until-ok", "0", "--csv")
    rows = list(csv.DictReader(io.StringIO(file.stdout)))
    assert (file.returncode, tuple(rows[0])) == (8, cli_watch.COLUMNS)
    assert [(one["state"], one["start"], one["before"]) for one in rows] == [
        (one["state"], one["start"], "") for one in changes
    ]
    for tier in (HOME, AWAY):
        audited.count("payments", tier, 5, range(10))
    unknown = shell(*watch, "--topic", "payments", "--until-ok", "0.3")
    assert (unknown.returncode, unknown.stdout) == (0, ""), "the same at both, and over"
    nothing = shell(*watch, "--topic", "none", "--until-ok", "0.3")
    assert (nothing.returncode, nothing.stdout) == (6, "")
    assert nothing.stderr == "the time is over: there is nothing to compare\n"
    assert shell(*watch, "--until-ok", "0", SWITCHYARD_URL="http://127.0.0.1:1").returncode == 7


def test_commands_explain_an_empty_answer(console: Console, tmp_path: Path) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    for verb in ("report", "loss"):
        ended = shell("audit", verb, "--json")
        assert (ended.returncode, json.loads(ended.stdout)) == (0, [])
        assert "there is no audit plan" in ended.stderr
    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    for verb in ("report", "loss"):
        assert "plan all: no such records were counted in this time;" in shell("audit", verb).stderr
    made = AuditedTopics(console)
    for tier in (HOME, AWAY):
        made.count("payments", tier, 5, range(10))
    assert shell("audit", "loss").stderr == "no window that is over has a difference\n"
    assert shell("audit", "report").stderr == ""


def test_the_audit_gives_the_offsets_of_a_time_if_a_cluster_does_not_answer(
    console: Console, tmp_path: Path
) -> None:
    path = "/api/v1/offsets/at-time?topic=orders&time=1970-01-01T00:00:02.5&cluster=east"
    audit = Indexed("aggregate", "east")
    audit.count("t/0", (10, 100), (11, 2_500), (12, 3_900), mark_ms=3_000)
    audit.count("t/1", (70, 1_100), mark_ms=3_000)
    console.fed.audit_books.books[audit_partition("orders")] = AuditBook(audit.position, audit.collector)
    (unplanned,) = console.ask("GET", path).json["topics"]
    assert (unplanned["by"], unplanned["partitions"]) == ("timestamps", [])
    assert "east does not answer" in unplanned["error"]

    assert console.ask("PUT", "/api/v1/audit/plans/all", plan()).status == 201
    (topic,) = console.ask("GET", path).json["topics"]
    assert (topic["by"], topic["error"]) == ("audit", "")
    assert "the cluster does not answer" in topic["why"]
    unknown = {"timestamp_ms": None, "log_start": None, "log_end": None}
    assert topic["partitions"] == [
        {"partition": 0, "next_offset": 11, "note": "window", **unknown},
        {"partition": 1, "next_offset": 71, "note": "beyond-end", **unknown},
    ]
    shell = InProcess(console.url, console.fed, tmp_path)
    table = shell("offsets", "at-time", "orders", "1970-01-01T00:00:02.5", "--cluster", "east")
    assert (table.returncode, "the first offset of its audit window" in table.stdout) == (0, True)
    assert "the cluster does not answer" in table.stderr


def test_a_refused_search_for_records_says_why(console: Console, tmp_path: Path) -> None:
    path = "/api/v1/audit/records?topic=orders&cluster=east"
    for query, status, words in (
        ("", 400, "from: say since when"), ("&from=soon", 400, "from:"),
        ("&from=1h&to=2h", 400, "is not after"),
        ("&from=1h&limit=0", 400, "limit"), ("&from=1h&format=json", 400, "there are ndjson, csv"),
        ("&from=1h", 502, "east does not answer"),
    ):  # fmt: skip
        refused = console.ask("GET", path + query)
        assert (refused.status, words in refused.json["detail"]) == (status, True), refused.text
    unknown_cluster = console.ask("GET", "/api/v1/audit/records?topic=orders&cluster=mars&from=1h")
    assert (unknown_cluster.status, "knows east, west" in unknown_cluster.json["detail"]) == (404, True)
    shell = InProcess(console.url, console.fed, tmp_path)
    ended = shell("audit", "records", "--topic", "orders", "--cluster", "east", "--from", "1h")
    assert (ended.returncode, "east does not answer" in ended.stderr) == (7, True)
