"""Tokens from files: what is one, whose they are, and what counts while a file is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.grpc_client.credentials import Credentials, PemFiles
from app.grpc_client.tokens import MAX_TOKEN_BYTES, TokenFile, Tokens


@pytest.mark.parametrize(
    "content", [b"", b"  \n", b"a\nb", b"\xff", "ü".encode(), b"a" * (MAX_TOKEN_BYTES + 1)]
)
def test_a_token_is_one_line_of_printable_text_and_a_wrong_one_leaves_the_former(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" first token\r\n")
    tokens = Tokens({"billing": TokenFile(str(file), ["billing"])})
    tokens.load()
    tokens.check("billing", "billing")
    version = tokens.version
    file.write_bytes(content)
    tokens.load()
    assert (tokens["billing"], tokens.version) == ("first token", version)
    assert str(file) in tokens.problems["billing"]
    file.write_bytes(b"a" * MAX_TOKEN_BYTES)
    tokens.load()
    assert (tokens["billing"], tokens.problems) == ("a" * MAX_TOKEN_BYTES, {})
    assert tokens.version > version


def test_tokens_that_cannot_be_had_say_why_and_what_to_do(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = {"missing": tmp_path / "missing", "pipe": tmp_path / "pipe"}
    tokens = Tokens({name: TokenFile(str(path), ["billing"]) for name, path in paths.items()}, "the settings")
    credentials = Credentials(tokens=tokens)
    with pytest.raises(ValueError, match="token 'missing': it is not read yet"):
        tokens.check("missing", "billing")
    credentials.load()
    with pytest.raises(ValueError, match=r"token 'missing': file .*missing: No such file"):
        tokens.check("missing", "billing")
    with pytest.raises(ValueError, match="it is no file; name a readable file"):
        tokens.check("pipe", "billing")
    with pytest.raises(ValueError, match="is not for payments; add it to its groups in the settings"):
        tokens.check("pipe", "payments")
    with pytest.raises(ValueError, match="there is no token 'other'; add it to the settings"):
        tokens.check("other", "billing")
    assert credentials.problems == {}


def test_wrong_certificates_do_not_keep_a_token_from_being_renewed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    tokens = Tokens({"billing": TokenFile(str(file), ["billing"])})
    bundle = tmp_path / "missing.pem"
    credentials = Credentials({"billing": PemFiles(str(bundle))}, tokens=tokens)
    credentials.load()
    file.write_text("second")
    credentials.load()
    assert tokens["billing"] == "second"
    assert "missing.pem" in credentials.problems["billing"]
