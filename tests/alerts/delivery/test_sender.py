"""Each kind of channel sends to a real server: what the server receives, and how a failure is reported."""

from __future__ import annotations

import shlex
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.alerts.channel_definition import Channel
from app.alerts.delivery import sender as delivery_sender
from app.alerts.delivery.message_bodies import alertmanager, webhook
from app.alerts.delivery.notice import AlertNotice, commands, describe_window
from app.alerts.delivery.sender import NoticeSender, NotTaken
from app.cli.main import switchyard
from app.controllog.alert_state import AlertWindow
from app.kernel.clock import now_ms
from tests.alerts.delivery.receivers import AT_MS, channel, hooks, notice

ENV = {"SWITCHYARD_ALERT_TOKEN": "s3cret"}


async def send(to: Channel, alert_notice: AlertNotice, env: dict[str, str] | None = None) -> None:
    sender = NoticeSender(ENV if env is None else env)
    try:
        await sender.send(to, alert_notice)
    finally:
        await sender.close()


async def test_a_webhook_gets_the_whole_alert_as_json_with_an_id() -> None:
    async with hooks() as receiver:
        hook = channel(
            "webhook", url=f"{receiver.url}/in", headers={"Authorization": "env:SWITCHYARD_ALERT_TOKEN"}
        )
        await send(hook, notice())
        await send(hook, notice())
    (path, headers, body), (_, repeated_headers, _) = receiver.taken
    assert (path, headers["Authorization"], headers["Idempotency-Key"]) == ("/in", "s3cret", "f00-1-1")
    assert repeated_headers["Idempotency-Key"] == headers["Idempotency-Key"]
    assert (body["id"], body["alert"], body["status"], body["severity"]) == (
        "f00-1-1", "f00-1", "firing", "critical",
    )  # fmt: skip
    assert (body["topic"], body["from_tier"], body["to_tier"]) == ("orders", "regional", "aggregate")
    (window,) = body["windows"]
    assert (window["missing"], window["start_ms"], window["lag_ms"]) == (2, AT_MS - 120_000, 1500)
    assert body["title"].startswith("[FIRING critical] orders, regional to aggregate: 2 of 100 records lost")
    window = "--topic orders --start 2027-01-15T07:58:00Z --from-tier regional --to-tier aggregate"
    missing = f"switchyard audit missing {window}"
    assert any(line.startswith(missing) for line in body["todo"])


async def test_alertmanager_gets_the_same_labels_always_and_an_end() -> None:
    async with hooks() as receiver:
        for url in (receiver.url, f"{receiver.url}/api/v2/alerts"):
            await send(channel("alertmanager", url=url), notice())
        over = notice(2, state="resolved", over_ms=AT_MS + 5, resolved_ms=AT_MS + 10)
        await send(channel("alertmanager", url=receiver.url), over)
    assert [path for path, _, _ in receiver.taken] == ["/api/v2/alerts"] * 3
    ((first,), (_,), (last,)) = receiver.bodies
    assert first["labels"] == last["labels"]
    assert (first["labels"]["alertname"], first["labels"]["topic"]) == ("orders-lost", "orders")
    assert first["startsAt"] == last["startsAt"] == "2027-01-15T08:00:00.000+00:00"
    assert first["endsAt"] > "2026-11"
    assert last["endsAt"] == "2027-01-15T08:00:00.010+00:00"
    (repeated,) = alertmanager(notice(), now_ms())
    assert repeated["labels"] == first["labels"]


async def test_a_test_notice_says_that_it_is_a_test() -> None:
    async with hooks() as receiver:
        await send(channel("webhook", url=receiver.url), notice()._replace(is_test=True))
    assert receiver.bodies[0]["test"] is True
    assert receiver.bodies[0]["title"].startswith("[TEST]")


@pytest.fixture
def self_signed(tmp_path: Path) -> ssl.SSLContext:
    """The TLS context of a server at localhost with a self-signed certificate."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("makes a certificate with openssl, which is not here")
    key, certificate = tmp_path / "key.pem", tmp_path / "own.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1", "-nodes"]
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        *subject,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def test_an_error_of_tls_is_reported_without_the_address(self_signed: ssl.SSLContext) -> None:
    async def why(url: str) -> str:
        with pytest.raises(NotTaken) as caught:
            await send(channel("webhook", url=url), notice())
        return str(caught.value)

    async with hooks(self_signed) as receiver, hooks() as plain:
        assert await why(f"{receiver.url}/s3cret") == "cannot be reached: TLS: self-signed certificate"
        no_tls = await why(plain.url.replace("http:", "https:") + "/s3cret")
        assert no_tls.startswith("cannot be reached: TLS: ")
        assert "127.0.0.1" not in no_tls
        assert "s3cret" not in no_tls
        assert (receiver.request_count, plain.request_count) == (0, 0)


async def test_a_refused_notice_is_reported_without_any_secret() -> None:
    async def why(to: Channel, env: dict[str, str] | None = None) -> str:
        with pytest.raises(NotTaken) as caught:
            await send(to, notice(), env)
        assert "s3cret" not in str(caught.value)
        return str(caught.value)

    async with hooks() as receiver:
        hook = channel("webhook", url=f"{receiver.url}/s3cret")
        receiver.answers = [500, 404, 302]
        assert await why(hook) == "answered 500: not now"
        assert await why(hook) == "answered 404: not now"
        assert (await why(hook)).startswith("answered 302"), "a redirect was followed"
        receiver.answers, receiver.words = [401], "not {request.headers[X-Token]} at {request.path_qs}"
        headers = {"X-Token": "env:SWITCHYARD_ALERT_TOKEN"}
        echoing = channel("webhook", url=f"{receiver.url}/in/s3cret?k=s3cret2", headers=headers)
        assert await why(echoing) == "answered 401: not … at …?…"
        closed_port = channel("webhook", url="http://127.0.0.1:1/s3cret")
        assert await why(closed_port) == "cannot be reached: Connection refused", (
            "the error names the address"
        )
        invalid = channel("webhook", url="env:SWITCHYARD_ALERT_URL")
        assert (
            await why(invalid, {"SWITCHYARD_ALERT_URL": "s3cret"}) == "cannot be asked: InvalidUrlClientError"
        )
        assert "SWITCHYARD_ALERT_URL is not set here" in await why(invalid, {})
        removed = channel("slack", url="env:SWITCHYARD_ALERT_URL")
        assert (await why(removed)).startswith("no longer a channel")


async def test_a_redirect_is_not_followed() -> None:
    async with hooks() as receiver, hooks() as redirect_target:
        receiver.headers = {"Location": f"{redirect_target.url}/taken"}
        for status in (301, 302, 303, 307, 308):
            receiver.answers = [status]
            with pytest.raises(NotTaken, match=f"answered {status}"):
                await send(channel("webhook", url=receiver.url), notice())
    assert (receiver.request_count, redirect_target.request_count) == (5, 0)


@pytest.mark.parametrize("kind", ["webhook", "alertmanager"])
async def test_a_proxys_page_is_not_taken_for_the_receivers_answer(kind: str) -> None:
    async with hooks() as receiver:
        to = channel(kind, url="env:SWITCHYARD_ALERT_URL")
        env = {"SWITCHYARD_ALERT_URL": receiver.url}
        for page in ("<!DOCTYPE html>\n<title>Log in", "\n<!-- nginx -->\n<HTML>Maintenance</HTML>"):
            receiver.page = page
            with pytest.raises(NotTaken, match=r"answered 200 with a page for people, .*"):
                await send(to, notice(), env)
        for page in ("ok", "<ok>", "<htmlx>"):
            receiver.page = page
            await send(to, notice(), env)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "name.example"])
async def test_no_notice_is_sent_inside_where_that_is_refused_not_even_by_another_name(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = socket.getaddrinfo

    def looked_up(
        name: Any, *rest: Any, **more: Any
    ) -> Any:  # a name that its owner's DNS points at this machine
        return known("127.0.0.1" if name == "name.example" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    async with hooks() as receiver:
        url = receiver.url.replace("127.0.0.1", host)
        env = {"SWITCHYARD_ALERT_URL": f"{url}/s3cret"}
        to = channel("webhook", url="env:SWITCHYARD_ALERT_URL")
        for sender in (NoticeSender(env), NoticeSender(env, refuses_local=True)):
            if sender.refuses_local:
                with pytest.raises(NotTaken, match="leads to this machine, which this worker's") as caught:
                    await sender.send(to, notice())
                assert "s3cret" not in str(caught.value)
            else:
                await sender.send(to, notice())
            await sender.close()
        assert receiver.request_count == 1


async def test_no_proxy_is_used_if_internal_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_sender, "leads_inside", lambda _: "")
    async with hooks() as receiver, hooks() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(NotTaken, match="answered 404"):  # the proxy, which has no such address
            await send(channel("webhook", url=receiver.url), notice())
        assert receiver.request_count == 0
        sender = NoticeSender(ENV, refuses_local=True)
        await sender.send(channel("webhook", url=receiver.url), notice())
        await sender.close()
        assert receiver.request_count == 1


async def test_a_receiver_that_does_not_answer_times_out() -> None:
    async with hooks() as receiver:
        receiver.hangs = True
        sender = NoticeSender()
        with pytest.raises(NotTaken, match=r"did not answer within 0\.2 s"):
            await sender.send(channel("webhook", url=receiver.url), notice(), 0.2)
        await sender.close()


async def test_a_receivers_retry_after_is_respected() -> None:
    async with hooks() as receiver:
        receiver.answers, receiver.headers = [429], {"Retry-After": "7"}
        with pytest.raises(NotTaken) as caught:
            await send(channel("webhook", url=receiver.url), notice())
    assert caught.value.after_s == 7.0


@pytest.mark.parametrize(
    ("state", "kind", "says"),
    [
        ("absent-audit", "absent-audit", "the audit of aggregate is missing, nothing can be said of loss"),
        ("duplicated", "duplication", "3 records too many"),
        ("late", "late", "2 records have not come yet"),
        ("corrupted", "corruption", "contents differ although the counts are the same"),
    ],
)
def test_each_kind_of_alert_has_its_own_words(state: str, kind: str, says: str) -> None:
    missing, extra = {"late": (2, 0), "duplicated": (0, 3), "corrupted": (-1, -1)}.get(state, (5, 0))
    window = AlertWindow(0, 60_000, state, 10, 8, missing, extra, -1, ("aggregate",))
    alert_notice = notice(windows=(window,))._replace(on=(kind,))
    assert says in alert_notice.title
    assert "lost" not in alert_notice.title
    assert kind in describe_window(window)
    assert all(line.startswith("switchyard ") for line in commands((kind,), alert_notice.state))


def test_an_alert_of_a_consumer_names_its_group_and_only_possible_commands() -> None:
    alert_notice = notice(to_tier="consumer", reader="billing")
    assert "orders, regional to consumer (group billing): 2 of 100" in alert_notice.title
    assert not [line for line in alert_notice.todo if "copy-again" in line]
    assert [line for line in notice().todo if "copy-again" in line]
    assert (
        webhook(alert_notice)["group"] == alertmanager(alert_notice, AT_MS)[0]["labels"]["group"] == "billing"
    )
    assert "group" not in alertmanager(notice(), AT_MS)[0]["labels"]


@pytest.mark.parametrize("state", ["lossy", "duplicated", "corrupted", "late", "absent-audit"])
def test_every_command_in_a_notice_exists(state: str) -> None:
    window = AlertWindow(0, 60_000, state, 10, 8, 2)
    for line in commands((), notice(windows=(window,)).state):
        program, noun, verb, *options = shlex.split(line, comments=True)
        command = switchyard.commands[noun].commands[verb]  # type: ignore[attr-defined]
        assert program == "switchyard"
        known = {option for param in command.params for option in param.opts}
        assert {option for option in options if option.startswith("--")} <= known


def test_names_cannot_break_a_header_nor_a_command() -> None:
    alert_notice = notice(topic="a'; rm -rf x\r\nBcc: b")
    assert "\n" not in alert_notice.title
    assert "--topic 'a'\"'\"'; rm -rf x??Bcc: b'" in alert_notice.todo[0]
