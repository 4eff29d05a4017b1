"""Credentials from files that are renewed, wrong, or missing."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from app.grpc_client.credentials import SYSTEM, Credentials, PemFiles
from app.grpc_client.small_files import MAX_BYTES
from tests.grpc_client.peers.certificates import Certificates, make


@pytest.fixture
def first(tmp_path: Path) -> Certificates:
    return make(tmp_path / "first")


def files_of(certificates: Certificates) -> PemFiles:
    return PemFiles(str(certificates.authority), str(certificates.client), str(certificates.client_key))


def authorities(context: ssl.SSLContext) -> set[bytes]:
    return set(context.get_ca_certs(binary_form=True))


def test_content_that_did_not_change_keeps_its_context_and_a_renewed_file_gets_another(
    tmp_path: Path, first: Certificates
) -> None:
    credentials = Credentials({"billing": PemFiles(*first.install(tmp_path))})
    credentials.load()
    former, former_pem = credentials.context("billing"), credentials.pem("billing")
    credentials.load()
    assert credentials.context("billing") is former

    make(tmp_path / "second").install(tmp_path)
    credentials.load()
    assert authorities(credentials.context("billing")).isdisjoint(authorities(former))
    assert credentials.pem("billing") != former_pem
    assert credentials.problems == {}


@pytest.mark.parametrize("wrong", ["missing", "empty", "other key", "huge"])
def test_wrong_content_is_told_with_the_file_and_the_former_stays_until_it_is_repaired(
    wrong: str, tmp_path: Path, first: Certificates
) -> None:
    credentials = Credentials({"billing": files_of(first), "other": PemFiles()})
    credentials.load()
    former, key = credentials.context("billing"), first.client_key.read_bytes()
    match wrong:
        case "missing":
            first.client_key.unlink()
        case "empty":
            first.client_key.write_bytes(b"")
        case "other key":
            first.client_key.write_bytes(make(tmp_path / "second").client_key.read_bytes())
        case "huge":
            first.client_key.write_bytes(b"." * (MAX_BYTES + 1))
    credentials.load()
    assert credentials.context("billing") is former
    assert list(credentials.problems) == ["billing"]
    assert str(first.client_key) in credentials.problems["billing"]
    first.client_key.write_bytes(key)
    credentials.load()
    assert credentials.problems == {}


def test_credentials_that_cannot_be_had_say_why_and_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    files = {"billing": PemFiles(str(missing)), "payments": PemFiles(users=("payments",))}
    credentials = Credentials(files, "receivers.credentials")
    with pytest.raises(ValueError, match="credentials 'billing': they are not read yet"):
        credentials.check("billing", "billing")
    credentials.load()
    with pytest.raises(ValueError, match=r"credentials 'billing': ca .*missing\.pem: No such file.*; check"):
        credentials.check("billing", "billing")
    with pytest.raises(ValueError, match=r"no credentials 'biling'; add them to receivers\.credentials"):
        credentials.check("biling", "billing")
    with pytest.raises(ValueError, match=r"'payments' are not for billing; add it"):
        credentials.check("payments", "billing")
    credentials.check("payments", "payments")
    credentials.check(SYSTEM, "billing")


def test_without_a_name_there_are_the_authorities_of_the_system() -> None:
    credentials = Credentials()
    credentials.load()
    assert credentials.context(SYSTEM).verify_mode is ssl.CERT_REQUIRED
    assert (credentials.pem(SYSTEM).cert, credentials.pem(SYSTEM).key) == (None, None)


def test_the_authorities_of_the_system_are_read_again(
    first: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(first.authority.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    credentials = Credentials()
    credentials.load()
    former = credentials.context(SYSTEM)
    assert credentials.pem(SYSTEM).ca == first.authority.read_bytes()
    bundle.write_bytes(make(tmp_path / "second").authority.read_bytes())
    credentials.load()
    assert credentials.context(SYSTEM) is not former
    assert credentials.pem(SYSTEM).ca != first.authority.read_bytes()


def test_a_pipe_is_no_file_and_no_representation_has_the_key(first: Certificates, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    credentials = Credentials({"pipe": PemFiles(str(tmp_path / "pipe")), "billing": files_of(first)})
    credentials.load()
    assert "it is no file" in credentials.problems["pipe"]
    assert "PRIVATE" not in repr(credentials.pem("billing"))
