"""Files that are wrong are reported once, when a second look finds the same, until they are repaired."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.grpc_client.credentials import Credentials, PemFiles
from app.grpc_client.tokens import TokenFile, Tokens
from app.worker.runtime import credentials_watch as module
from app.worker.runtime.credentials_watch import CredentialsWatch
from tests.grpc_client.peers.certificates import make


class Reports:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.ends: list[Callable[[], bool]] = []

    def __call__(self, kind: str, message: str, remedy: str, is_over: Any) -> None:
        assert (kind, "reads it again" in remedy) == ("receiver-credentials", True)
        self.words.append(message)
        self.ends.append(is_over)


async def test_a_renewal_that_is_half_done_is_told_only_if_it_stays_so(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    key = certificates.client_key.read_bytes()
    files = str(certificates.client), str(certificates.client_key)
    reports: Any = Reports()
    watch = CredentialsWatch(Credentials({"billing": PemFiles(None, *files)}), reports)
    await watch.read()
    certificates.client_key.write_bytes(certificates.server_key.read_bytes())
    await watch.read()
    certificates.client_key.write_bytes(key)
    await watch.read()
    assert reports.words == []

    certificates.client_key.write_bytes(certificates.server_key.read_bytes())
    for _ in range(4):
        await watch.read()
    (reported,) = reports.words
    assert "credentials 'billing'" in reported
    assert files[1] in reported
    assert not reports.ends[0]()
    certificates.client_key.write_bytes(key)
    await watch.read()
    assert reports.ends[0]()


async def test_a_token_is_told_by_its_name_beside_credentials_of_the_same_name(tmp_path: Path) -> None:
    reports: Any = Reports()
    tokens = Tokens({"billing": TokenFile(str(tmp_path / "token"), ("billing",))})
    missing = PemFiles(str(tmp_path / "ca.pem"))
    watch = CredentialsWatch(Credentials({"billing": missing}, tokens=tokens), reports)
    for _ in range(3):
        await watch.read()
    assert sorted(words.partition(":")[0] for words in reports.words) == [
        "credentials 'billing' for receivers", "token 'billing' for receivers",
    ]  # fmt: skip
    (tmp_path / "token").write_text("first")
    await watch.read()
    assert [is_over() for is_over in reports.ends].count(True) == 1


async def test_files_that_cannot_be_read_do_not_keep_a_worker_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = threading.Event()
    credentials = Credentials()
    monkeypatch.setattr(credentials, "load", goes_on.wait)
    monkeypatch.setattr(module, "START_TIMEOUT_S", 0.1)
    reports: Any = Reports()
    try:
        async with asyncio.timeout(30):
            await CredentialsWatch(credentials, reports).on_start()
    finally:
        goes_on.set()
