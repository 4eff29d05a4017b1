"""Alerts by REST and commands: definitions, firing alerts and their notices, test notices, metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.controllog.alert_state import AlertState, AlertWindow, LastNotice
from app.controllog.events import AlertPut
from app.definitions.registry import parse_alert
from tests.alerts.delivery.receivers import WebhookServer, hooks
from tests.cli.shell import InProcess
from tests.web.client import Console
from tests.web.runtime_fake import FakeRuntime

PATH = "/api/v1/alerts/orders-lost"
AT_MS = 1_800_000_000_000
SOUND = {"webhook": {"url": "https://alerts.example/hook"}}


def definition(*channels: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "switchyard/v1", "kind": "Alert", "metadata": {"name": "orders-lost", "owner": "data"},
        "spec": {"on": ["loss"], "topics": ["orders"], "channels": list(channels), **spec},
    }  # fmt: skip


def alert_of(fed: FakeRuntime, alert: str = "f00-1", rule: str = "orders-lost", **changes: Any) -> AlertState:
    """A firing alert of the current term."""
    window = AlertWindow(AT_MS, AT_MS + 60_000, "lossy", 100, 98, 2)
    fields: dict[str, Any] = {
        "state": "firing",
        "fired_ms": AT_MS + 5,
        "notice": 1,
        "topic": "orders",
        "from_tier": "regional",
        "to_tier": "aggregate",
        "windows": (window,),
        **changes,
    }
    return AlertState(
        at_ms=AT_MS + 5, id=alert, term=fed.control.view.term, rule=rule, since_ms=AT_MS, **fields,
    )  # fmt: skip


@contextmanager
def receiving() -> Iterator[WebhookServer]:
    """Runs a receiver in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opened = hooks()
    found = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(30)
    try:
        yield found
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def test_an_alert_is_defined_changed_and_deleted(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = {"webhook": {"url": {"env": "SWITCHYARD_ALERT_HOOK"}}}
    assert console.ask("PUT", f"{PATH}?dry_run=true", definition(hook)).json["changed"]
    assert console.ask("GET", PATH).status == 404
    created = console.ask("PUT", PATH, definition(hook))
    assert (created.status, created.json["key"]) == (201, "alert:orders-lost")
    assert "SWITCHYARD_ALERT_HOOK is not set" in created.json["warnings"][-1]
    monkeypatch.setenv("SWITCHYARD_ALERT_HOOK", "https://hooks.example/x")
    again = console.ask("PUT", PATH, definition(hook))
    assert (again.status, again.json["changed"], again.json["warnings"]) == (200, False, [])
    found = console.ask("GET", PATH)
    (channel,) = found.json["definition"]["spec"]["channels"]
    assert channel["webhook"]["url"] == "env:SWITCHYARD_ALERT_HOOK"
    assert "hooks.example" not in found.text
    assert [one["name"] for one in console.ask("GET", "/api/v1/alert-rules").json["items"]] == ["orders-lost"]
    refused = console.ask("PUT", PATH, definition(hook, above="30s"))
    assert (refused.status, refused.json["errors"][0]["field"]) == (422, "spec.above")
    assert console.ask("PUT", "/api/v1/alerts/other", definition()).status == 422
    etag = found.headers["ETag"]
    console.ask("PUT", PATH, definition(hook, above=3))
    assert console.ask("DELETE", PATH, If_Match=etag).status == 412
    assert console.ask("DELETE", PATH).json["deleted"]
    assert console.ask("DELETE", PATH).status == 404


def test_firing_alerts_are_listed_with_windows_channels_and_remedies(console: Console) -> None:
    console.ask("PUT", PATH, definition({"webhook": {"url": "https://a.example/secret"}}))
    (channel,) = console.fed.alerts.definitions()[0].spec.channels
    console.fed.apply(alert_of(console.fed))
    console.fed.apply(alert_of(console.fed, "f00-2", state="pending", notice=0, fired_ms=0, topic="payments"))
    console.fed.apply(
        alert_of(
            console.fed,
            "f00-3",
            state="resolved",
            notice=2,
            resolved_ms=AT_MS + 9,
            told={channel.key: LastNotice(2, 7)},
        )
    )

    def listed(query: str = "") -> list[tuple[str, str]]:
        page = console.ask("GET", f"/api/v1/alerts?{query}").json
        return [(row["state"], row["topic"]) for row in page["items"]]

    assert listed() == [("firing", "orders"), ("pending", "payments"), ("resolved", "orders")]
    assert listed("state=pending&state=firing") == [("firing", "orders"), ("pending", "payments")]
    assert listed("topic=payments") == [("pending", "payments")]
    assert listed("name=other") == []
    assert listed("limit=1&cursor=1") == [("pending", "payments")]
    assert console.ask("GET", "/api/v1/alerts?state=quiet").status == 400
    row, _, resolved = console.ask("GET", "/api/v1/alerts").json["items"]
    assert row["what"] == "2 of 100 records lost (1 window)"
    assert row["windows"][0]["missing"] == 2
    assert row["todo"][0].startswith("switchyard audit loss --topic orders --from 2027-01-15T08:00:00Z")
    (waits,) = row["channels"]
    assert (waits["place"], waits["waits"], waits["notice"]) == ("https://a.example", True, None)
    assert (resolved["channels"][0]["waits"], resolved["todo"]) == (False, [])
    console.fed.apply(alert_of(console.fed, told={channel.key: LastNotice(0, 0, 5, "answered 503")}))
    assert console.ask("GET", PATH).json["channels"][0]["trouble"] == "answered 503"
    assert (console.ask("GET", PATH).json["firing"], console.ask("GET", PATH).json["pending"]) == (1, 1)


def test_a_test_notice_is_sent_by_the_worker_that_gets_the_request_with_a_result_for_each_channel(
    console: Console, tmp_path: Path
) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    assert console.ask("POST", f"{PATH}/test").status == 404
    assert shell("alert", "test", "orders-lost").returncode == 4
    with receiving() as receiver:
        manager = {"alertmanager": {"url": "env:SWITCHYARD_ALERT_MANAGER"}}
        hook = {"webhook": {"url": receiver.url}}
        console.ask("PUT", PATH, definition(manager, hook))
        answer = console.ask("POST", f"{PATH}/test").json
        assert [(one["channel"], one["taken"]) for one in answer["channels"]] == [
            ("alertmanager", False), ("webhook", True),
        ]  # fmt: skip
        assert "SWITCHYARD_ALERT_MANAGER is not set here" in answer["channels"][0]["why"]
        done = shell("alert", "test", "orders-lost")
        assert (done.returncode, "1 of 2 channels did not take it" in done.stderr) == (6, True)
        console.fed.env["SWITCHYARD_ALERT_MANAGER"] = receiver.url
        assert shell("alert", "test", "orders-lost", "-o", "json").returncode == 0
        receiver.down = True
        assert shell("alert", "test", "orders-lost").returncode == 1
        assert [path for path, _, _ in receiver.taken].count("/api/v2/alerts") == 1
        assert receiver.bodies[0]["title"].startswith("[TEST] test-topic")
    assert not console.ask("GET", "/api/v1/alerts").json["items"], "a test notice fired an alert"
    console.ask("PUT", PATH, definition())
    assert "it has no channels" in shell("alert", "test", "orders-lost").stderr


def test_a_stored_alert_with_channels_that_are_gone_is_shown_exported_and_replaced(
    console: Console, tmp_path: Path
) -> None:
    """An earlier version deployed it. Pages and commands read it; a file with such a channel is refused."""
    shell = InProcess(console.url, console.fed, tmp_path)
    stored = parse_alert(definition(SOUND))[0].to_wire()
    slack = {"slack": {"url": "env:SWITCHYARD_ALERT_SLACK"}}
    stored["spec"] |= {"channels": [slack, SOUND], "repeat": "4h"}
    put = AlertPut(at_ms=1, key="alert:orders-lost", definition=stored, etag="e", actor="test")
    console.fed.apply(put, alert_of(console.fed))
    (row,) = console.ask("GET", "/api/v1/alerts").json["items"]
    gone, hook = row["channels"]
    assert [(one["channel"], one["waits"]) for one in (gone, hook)] == [("slack", True), ("webhook", True)]
    assert hook["trouble"] == ""
    assert gone["trouble"].startswith("no longer a channel")
    assert "route it through Alertmanager" in gone["trouble"]
    assert "slack: no longer a channel" in shell("alert", "list").stdout
    assert "channel slack (removed): no longer a channel" in shell("alert", "describe", "orders-lost").stdout
    assert re.search(r'channel_failing{alert="orders-lost",channel="slack-\w+"} 1.0', console.metrics())
    (tmp_path / "a.yaml").write_text(shell("config", "export").stdout)
    refused = shell("config", "plan", "-f", "a.yaml")
    assert refused.returncode == 3
    for part in ("spec.channels.0.slack: no longer a channel", "email_configs in Alertmanager's"):
        assert part in refused.stderr
    answer = console.ask("PUT", PATH, stored)
    assert (answer.status, answer.json["errors"][0]["field"]) == (422, "spec.channels.0.slack")
    (tmp_path / "a.yaml").write_text(json.dumps(definition(SOUND, repeat="4h")))
    deployed = shell("config", "deploy", "-f", "a.yaml", "--execute", "--yes")
    assert (deployed.returncode, "spec.repeat: has no effect" in deployed.stderr) == (0, True)
    (row,) = console.ask("GET", "/api/v1/alerts").json["items"]
    assert [one["channel"] for one in row["channels"]] == ["webhook"]


def test_commands_answer_the_questions_of_people_on_call(console: Console, tmp_path: Path) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    console.ask("PUT", PATH, definition({"webhook": {"url": "https://a.example/x"}}, **{"for": "5m"}))
    console.fed.apply(alert_of(console.fed))
    listed = shell("alert", "list", "--state", "firing")
    assert listed.returncode == 0
    for part in ("orders-lost", "firing", "warning", "regional to aggregate", "2 of 100 records lost"):
        assert part in listed.stdout
    (row,) = json.loads(shell("alert", "list", "-o", "json").stdout)
    assert row["windows"][0]["start_ms"] == AT_MS
    described = shell("alert", "describe", "orders-lost").stdout
    for part in (
        "loss for 5m, topics orders, any two tiers, warning", "1 fire, 0 are pending",
        "channel webhook https://a.example: has a notice to take", "holds since 2027-01-15 08:00:00 UTC",
        "lossy  100 before, 98 after", "> switchyard audit missing --topic orders",
    ):  # fmt: skip
        assert part in described
    assert shell("alert", "describe", "none").returncode == 4
    whole = json.loads(shell("alert", "describe", "orders-lost", "-o", "json").stdout)
    assert (whole["firing"], len(whole["alerts"])) == (1, 1)


def test_addresses_that_lead_inside_are_refused_if_so_configured(console: Console) -> None:
    inside = {"alertmanager": {"url": "http://169.254.169.254/s3cret"}}
    warned = console.ask("PUT", PATH, definition(inside))
    assert warned.status == 201
    assert "leads to a cloud's metadata service" in warned.json["warnings"][0]
    assert "s3cret" not in warned.text
    console.fed.alerts.refuses_local = True
    for query in ("", "?dry_run=true"):
        refused = console.ask("PUT", f"{PATH}{query}", definition(SOUND, inside, above=3))
        assert (refused.status, refused.json["title"]) == (422, "Refused address")
        assert refused.json["detail"].startswith("spec.channels.1.alertmanager.url: the address leads to")
        assert "s3cret" not in refused.text
    assert console.ask("PUT", PATH, definition(SOUND)).status == 200


def test_a_worker_without_alerts_says_why_it_has_none(console: Console, tmp_path: Path) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    assert "no alert is defined, so no person learns of missing records" in shell("alert", "list").stderr
    console.ask("PUT", PATH, definition(SOUND))
    assert shell("alert", "list").stderr == "none, of 1 that are defined\n"


def test_metrics_show_which_alerts_fire(console: Console) -> None:
    console.ask("PUT", PATH, definition({"webhook": {"url": "https://a.example"}}, severity="critical"))
    console.fed.apply(alert_of(console.fed))
    console.fed.apply(alert_of(console.fed, "f00-2", state="pending", notice=0))
    text = console.metrics()
    tiers = 'group="",severity="critical",to_tier="aggregate",topic="orders"'
    labels = f'alert="orders-lost",from_tier="regional",{tiers}'
    assert f"switchyard_alerts_firing{{{labels}}} 1.0" in text
    assert 'switchyard_alerts_pending{alert="orders-lost"} 1.0' in text
    assert "switchyard_alert_channel_failing" in text


def test_alerts_are_deployed_and_exported_with_the_other_definitions(
    console: Console, tmp_path: Path
) -> None:
    shell = InProcess(console.url, console.fed, tmp_path)
    (tmp_path / "alert.yaml").write_text(
        "apiVersion: switchyard/v1\nkind: Alert\nmetadata: {name: a}\n"
        "spec: "
        "{on: loss, topics: [orders], above: 0.1%, channels: [{alertmanager: {url: 'http://am:9093'}}]}\n"
    )
    deploy = ("config", "deploy", "-f", "alert.yaml", "--execute", "--yes")
    assert shell("config", "validate", "-f", "alert.yaml").returncode == 0
    assert shell("config", "plan", "-f", "alert.yaml").returncode == 10
    assert shell(*deploy).returncode == 0
    assert "nothing to change" in shell(*deploy).stderr
    exported = shell("config", "export").stdout
    assert "kind: Alert" in exported
    (tmp_path / "again.yaml").write_text(exported)
    assert shell("config", "plan", "-f", "again.yaml").returncode == 0
    (tmp_path / "alert.yaml").write_text(
        "apiVersion: switchyard/v1\nkind: Alert\nmetadata: {name: a}\nspec: {on: loss, topics: [x]}\n"
    )
    assert "spec.above" in shell("config", "diff", "-f", "alert.yaml").stdout
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "plan.yaml").write_text(
        "apiVersion: switchyard/v1\nkind: AuditPlan\nmetadata: {name: p}\nspec: {topics: [x]}\n"
    )
    assert (
        shell("config", "deploy", "-f", "none", "--prune", "--allow-empty", "--execute", "--yes").returncode
        == 0
    )
    assert console.ask("GET", "/api/v1/alert-rules").json["items"] == []
