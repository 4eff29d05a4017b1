"""Audits by REST and commands: plans, windows and differences, with pages."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.audit.jobs.books import AuditBook
from app.audit.jobs.report_sender import audit_partition
from app.audit.query import book_share
from app.controllog import codec
from switchyard.audit import outputs
from switchyard.audit.model.client_counter import MOST_WINDOWS, ClientAudit
from switchyard.audit.model.reports import Scope, client_report
from switchyard.audit.model.tally import RecordArrays
from switchyard.audit.model.totals import Totals
from tests.audit.query.test_view import AWAY, HOME, WIDTH_MS, counted_at_both
from tests.cli.shell import InProcess
from tests.web.client import Console
from tests.web.runtime_fake import beat


def definition(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "all"},
        "spec": {"topics": ["orders"], "window": "1m", "clusters": ["east-regional", "east"], **spec},
    }  # fmt: skip


def with_loss(console: Console, lost: int = 2) -> None:
    """Two tiers have closed a window; the second one lacks some records."""
    region = counted_at_both(lost=lost)
    for tier in (HOME, AWAY):
        region.close(tier)
    book = AuditBook(region.position, region.collector)
    console.fed.audit_books.books[audit_partition("orders")] = book


def test_a_plan_is_defined_changed_and_deleted(console: Console) -> None:
    path = "/api/v1/audit/plans/all"
    assert console.ask("PUT", f"{path}?dry_run=true", definition()).json["changed"]
    assert console.ask("GET", path).status == 404
    created = console.ask("PUT", path, definition())
    assert (created.status, created.json["key"]) == (201, "audit:all")
    again = console.ask("PUT", path, definition())
    assert (again.status, again.json["changed"]) == (200, False)
    changed = console.ask("PUT", path, definition(window="5m"))
    assert "other windows" in changed.json["warnings"][-1]
    found = console.ask("GET", path).json
    assert (found["clusters"], found["jobs"], found["definition"]["spec"]["window"]) == (
        ["east", "east-regional"], 0, "5m",
    )  # fmt: skip
    assert [one["name"] for one in console.ask("GET", "/api/v1/audit/plans").json["items"]] == ["all"]
    refused = console.ask("PUT", path, definition(window="0s"))
    assert refused.status == 422
    assert console.ask("PUT", "/api/v1/audit/plans/other", definition()).status == 422
    assert console.ask("DELETE", path).json["deleted"]
    assert console.ask("DELETE", path).status == 404


def test_windows_are_listed_by_place_and_time_page_by_page(console: Console) -> None:
    with_loss(console)

    def listed(query: str = "") -> list[tuple[str, int]]:
        page = console.ask("GET", f"/api/v1/audit/windows?{query}").json
        return [(row["tier"], row["count"]) for row in page["items"]]

    assert listed() == [("aggregate", 18), ("regional", 20)]
    assert listed("tier=regional") == listed("cluster=east-regional") == [("regional", 20)]
    assert listed("topic=payments") == listed("from=2h") == []
    assert listed("limit=1&cursor=1") == [("regional", 20)]
    refused = console.ask("GET", "/api/v1/audit/windows?from=yesterday")
    assert (refused.status, refused.json["detail"][:5]) == (400, "from:")


def test_loss_lists_missing_records(console: Console) -> None:
    with_loss(console)
    console.ask("PUT", "/api/v1/audit/plans/all", definition())
    (row,) = console.ask("GET", "/api/v1/audit/loss").json["items"]

    assert (row["state"], row["missing"], row["from_count"], row["to_count"]) == ("lossy", 2, 20, 18)
    assert (row["from_tier"], row["to_tier"], row["start_ms"]) == ("regional", "aggregate", WIDTH_MS)
    assert console.ask("GET", "/api/v1/audit/loss?state=ok").json["items"] == []
    assert console.ask("GET", "/api/v1/audit/loss?state=fine").status == 400


def test_a_clients_deviation_from_the_plan_is_a_remark(console: Console) -> None:
    with_loss(console)
    console.ask("PUT", "/api/v1/audit/plans/all", definition())
    book = console.fed.audit_books.books[audit_partition("orders")]
    scope = Scope("orders", "consumer", "east", WIDTH_MS // 2)
    one = client_report(scope, "app@1", 0, {WIDTH_MS: Totals(1)}, at_ms=5, watermark_ms=5)
    book.collector.apply(one, 100)
    rows = console.ask("GET", "/api/v1/audit/windows").json["items"]
    remarks = {row["tier"]: row["remark"] for row in rows}
    assert "its client needs window_ms=60000" in remarks.pop("consumer")
    assert remarks == {"regional": "", "aggregate": ""}


def test_a_note_says_which_windows_of_a_large_topic_are_left_out(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_share, "MOST_WINDOWS", 1)
    with_loss(console)
    for what in ("windows", "loss"):
        answer = console.ask("GET", f"/api/v1/audit/{what}").json
        assert (answer["items"], answer["notes"][0].split()[:2]) == ([], ["topic", "orders"])
    ended = InProcess(console.url, console.fed, tmp_path)("audit", "loss", "--from", "1970-01-01")
    assert "topic orders has more windows" in ended.stderr


def test_clients_reports_are_taken_all_or_none(console: Console) -> None:
    path, kind = "/api/v1/audit/reports", {"Content_Type": "application/x-ndjson"}
    scope = Scope("orders", "proxy-client", "home", WIDTH_MS)
    made = [client_report(scope, "app@1", n, {0: Totals(n)}, at_ms=5, watermark_ms=5) for n in range(3)]
    lines = [codec.encode(report) for report in made]

    assert console.ask("POST", path, b"\n".join(lines) + b"\n", **kind).json == {"taken": 3}
    assert console.fed.audit_sender.sent == made
    changes: list[dict[str, Any]] = [{"id": "x"}, {"topic": "a/b"}, {"tier": ""}, {"complete_ms": 5}]
    wrong = [codec.encode(msgspec.structs.replace(made[0], **change)) for change in changes]
    for bad in (b"{}", b"no json", *wrong):
        refused = console.ask("POST", path, b"\n".join([*lines, bad]), **kind)
        assert (refused.status, refused.json["type"]) == (422, outputs.BAD_REPORT)
    deep = b'{"type":"report","topic":"orders","x":' + b"[" * 200_000
    refused = console.ask("POST", path, b"\n".join([*lines, deep]), **kind)
    assert (refused.status, "too deeply; nothing was taken" in refused.json["detail"]) == (400, True)
    assert console.ask("POST", path, lines[0], Content_Type="text/plain").status == 415
    assert len(console.fed.audit_sender.sent) == 3


def test_a_report_of_many_windows_is_taken(console: Console) -> None:
    path, kind = "/api/v1/audit/reports", {"Content_Type": "application/x-ndjson"}
    first_ms = 1_700_000_000_000 // WIDTH_MS * WIDTH_MS
    client = ClientAudit(Scope("orders", "consumer", "home", WIDTH_MS), "app@1", 30_000)
    for window in range(MOST_WINDOWS):  # a client that returns after two days counts them within seconds
        times = np.full(1_000, first_ms + window * WIDTH_MS)
        client.add(RecordArrays(times, np.full(1_000, 10)), times + np.arange(1_000) ** 2)
    (report,) = client.reports(first_ms + MOST_WINDOWS * WIDTH_MS)
    line = codec.encode(report)
    assert len(line) > 65_536 * 4
    assert console.ask("POST", path, line, **kind).json == {"taken": 1}
    assert console.fed.audit_sender.sent == [report]
    refused = console.ask("POST", path, b"x" * 1_100_000, **kind)
    assert (refused.status, "at most 1048576 bytes" in refused.json["detail"]) == (413, True)


def test_no_partial_answer_while_tables_are_read(console: Console) -> None:
    async def missing_partitions(_: object) -> list[int]:
        return [3]

    console.fed.audit_books.missing_partitions = missing_partitions  # type: ignore[method-assign]
    answer = console.ask("GET", "/api/v1/audit/windows")
    assert (answer.status, answer.json["title"]) == (503, "Being read")


def test_no_partial_answer_if_a_worker_does_not_answer(console: Console) -> None:
    console.fed.observe(beat(worker="away", url="http://127.0.0.1:1"))
    for path in ("windows", "loss", "topics"):
        answer = console.ask("GET", f"/api/v1/audit/{path}")
        assert (answer.status, answer.json["title"]) == (502, "Not known")
        assert "away at http://127.0.0.1:1 does not answer" in answer.json["detail"]


def test_commands_show_the_same_and_exit_with_eight_if_records_are_missing(
    console: Console, tmp_path: Path
) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    with_loss(console)
    console.ask("PUT", "/api/v1/audit/plans/all", definition())
    report = shell("audit", "report", "--topic", "orders", "--from", "1970-01-01", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(report.stdout)))
    assert [(row["tier"], row["count"]) for row in rows] == [("aggregate", "18"), ("regional", "20")]
    lost = shell("audit", "loss", "--from", "1970-01-01")
    assert (lost.returncode, "lossy" in lost.stdout) == (8, True)
    assert "at least 2 records are missing, in 1 window\n" in lost.stderr
    with_loss(console, lost=0)
    assert shell("audit", "loss", "--from", "1970-01-01", "-o", "json").returncode == 0
    sound = shell("audit", "loss", "--from", "1970-01-01", "--all", "-o", "yaml")
    assert "state: ok" in sound.stdout


def test_plans_are_deployed_and_exported_with_the_other_definitions(console: Console, tmp_path: Path) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    (tmp_path / "plan.yaml").write_text(
        "apiVersion: switchyard/v1\nkind: AuditPlan\nmetadata: {name: all}\nspec: {topics: [orders]}\n"
    )
    deploy = ("config", "deploy", "-f", "plan.yaml", "--execute", "--yes")
    assert shell(*deploy).returncode == 0
    assert "nothing to change" in shell(*deploy).stderr
    assert "kind: AuditPlan" in shell("config", "export").stdout
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "route.yaml").write_text(
        "apiVersion: switchyard/v1\nkind: Route\nmetadata: {name: r}\n"
        "spec: {from: east, to: west, topics: [x]}\n"
    )
    assert (
        shell("config", "deploy", "-f", "none", "--prune", "--allow-empty", "--execute", "--yes").returncode
        == 0
    )
    assert console.ask("GET", "/api/v1/audit/plans").json["items"] == []
