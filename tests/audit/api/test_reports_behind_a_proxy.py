"""The audit library and the report API with a real proxy (nginx) between them, which has its own limits."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.audit.folds.collector import Collector
from app.dev.demo.stage import free_port, wait_until
from switchyard.audit import HttpOutput, SyncAudit, background_thread, write_ahead_log
from switchyard.audit.outputs import read_lines
from tests.web.client import Console

ENOUGH_S = 150.0
TOPICS, PER_TOPIC = 15, 100
CONFIG = """
daemon off; pid %(folder)s/pid; error_log %(folder)s/error.log; worker_processes 1;
events {}
http {
  access_log %(folder)s/access.log;
  client_body_buffer_size 1m; client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/fastcgi; uwsgi_temp_path %(folder)s/uwsgi; scgi_temp_path %(folder)s/scgi;
  server {
    listen 127.0.0.1:%(port)d%(listen)s; %(server)s
    location / { proxy_pass %(upstream)s; }
  }
}
"""


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_thread, "BACKOFF_S", 0.005)
    monkeypatch.setattr(background_thread, "MOST_BACKOFF_S", 0.02)


@contextmanager
def nginx(folder: Path, upstream: str, port: int, server: str, listen: str = "") -> Iterator[Path]:
    """nginx in front of `upstream`, with these lines; its log of requests."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")  # Debian's place
    if found is None:
        pytest.skip("nginx is not here; as root: apt-get install nginx-light")
    folder.mkdir(exist_ok=True)
    names = {"folder": folder, "port": port, "upstream": upstream, "server": server, "listen": listen}
    (folder / "nginx.conf").write_text(CONFIG % names)
    log = folder / "access.log"
    log.touch()
    process = subprocess.Popen(
        [found, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_until((folder / "pid").exists, ENOUGH_S, (folder / "error.log").read_text)
        yield log
    finally:
        process.terminate()
        process.communicate(timeout=ENOUGH_S)


def auditing(port: int, folder: Path, output: HttpOutput | None = None, report_s: float = 0.01) -> SyncAudit:
    return SyncAudit(
        origin="billing", tier="proxy-client", cluster="east", window_ms=1_000, wal=folder,
        log_interval_s=0.01, output=output or HttpOutput(f"http://127.0.0.1:{port}/api/v1/audit/reports"),
        report_interval_s=report_s,
    )  # fmt: skip


def counted(console: Console) -> int:
    collector = Collector()
    for position, report in enumerate(console.fed.audit_sender.sent):
        collector.apply(report, position)
    return sum(record.totals.count for record in collector.windows.values())


def until(condition: Callable[[], Any], words: Callable[[], Any]) -> None:
    end_s = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < end_s, words()
        time.sleep(0.005)


def test_reports_too_large_for_a_proxy_arrive_in_parts(console: Console, tmp_path: Path) -> None:
    """Some batches are too large, and one report alone: all counts arrive once."""
    port, width_ms, many = free_port(), 1_000, 120
    with nginx(tmp_path / "nginx", console.url, port, "client_max_body_size 8k;") as log:
        audit = auditing(port, tmp_path / "wal", report_s=3_600.0)
        with audit:
            for topic in range(TOPICS):
                for record in range(PER_TOPIC):
                    audit.sent(f"topic-{topic}", record % 7 * width_ms, 10, b"%d" % record)
            for record in range(many):
                audit.sent("of-many-windows", record * width_ms, 10)
            assert audit.close(60), audit.stats
        assert counted(console) == TOPICS * PER_TOPIC + many
        assert audit.stats.wrong == {}
        assert (audit.stats.refused, audit.stats.waiting) == (0, 0)
        assert " 413 " in log.read_text()
    assert any(
        len(report.windows) < many for report in console.fed.audit_sender.sent if "many" in report.topic
    )


def test_plain_http_on_a_proxys_tls_port_loses_no_report(
    console: Console, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """nginx answers 400; then its configuration is corrected."""
    port, folder = free_port(), tmp_path / "nginx"
    tls = f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};"
    with auditing(port, tmp_path / "wal") as audit:
        with nginx(folder, console.url, port, tls, " ssl") as log:
            for topic in range(TOPICS):
                audit.sent(f"topic-{topic}", 5, 10)
            until(lambda: log.read_text().count(" 400 ") > TOPICS, lambda: audit.stats)
            wrong = audit.stats.wrong
            assert "400 Bad Request" in next(iter(wrong.values()))
            assert not audit.close(0.05)
        assert (audit.stats.refused, audit.stats.acknowledged) == (0, 0)
    context = ssl.create_default_context(cafile=str(certificate[0]))
    output = HttpOutput(f"https://localhost:{port}/api/v1/audit/reports", tls=context)
    with (
        nginx(folder, console.url, port, tls, " ssl"),
        auditing(port, tmp_path / "wal", output=output) as audit,
    ):
        until(lambda: counted(console) == TOPICS, lambda: audit.stats)
        assert audit.close(60), audit.stats


def test_a_proxys_page_is_no_answer_and_a_blocked_report_does_not_hold_up_the_others(
    console: Console, tmp_path: Path
) -> None:
    port, folder = free_port(), tmp_path / "nginx"
    pages = "location = /api/v1/audit/reports { return 200 '<html>Down for maintenance</html>'; }"
    with auditing(port, tmp_path / "wal") as audit:
        with nginx(folder, console.url, port, pages) as log:
            audit.sent("orders", 5, 10)
            until(lambda: log.read_text().count(" 200 ") > 3, lambda: audit.stats)
            assert "not Switchyard's answer" in audit.stats.wrong["the output"]
        with nginx(folder, console.url, port, "client_max_body_size 420;"):
            audit.sent("a-topic-with-a-long-name-so-that-no-report-of-it-passes" * 4, 5, 10)
            audit.sent("payments", 5, 10)
            until(lambda: counted(console) == 2, lambda: audit.stats)
            until(lambda: "the way to the receiver" in audit.stats.wrong, lambda: audit.stats)
            assert "others are sent" in audit.stats.wrong["the way to the receiver"]
        with nginx(folder, console.url, port, ""):
            until(lambda: counted(console) == 3 and not audit.stats.wrong, lambda: audit.stats)
            assert audit.close(60), audit.stats


def test_refused_reports_are_kept_and_reported_at_the_end(console: Console, tmp_path: Path) -> None:
    """A client that uses a tier of the workers', past the library's own check."""
    port = free_port()
    with nginx(tmp_path / "nginx", console.url, port, ""):
        audit = auditing(port, tmp_path / "wal")
        audit._tier = audit._tier._replace(tier="regional")
        with audit:
            audit.sent("orders", 5, 10)
            until(lambda: audit.stats.refused, lambda: audit.stats)
            audit._tier = audit._tier._replace(tier="proxy-client")
            audit.sent("payments", 5, 10)
            until(lambda: counted(console) == 1, lambda: audit.stats)
            assert not audit.close(60)
        assert "/refused has it: 422" in audit.stats.wrong["the receiver of reports"]
        kept = list(read_lines((tmp_path / "wal" / write_ahead_log.REFUSED).read_bytes()))
        assert sum(one.totals.count for report in kept for one in report.windows) == 1
        assert {report.topic for report in kept} == {"orders"}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("makes a certificate with openssl, which is not here")
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    options = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1", "-nodes"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-keyout", str(key), "-out", str(own), *options]
    subprocess.run(made, check=True, capture_output=True)
    return own, key
