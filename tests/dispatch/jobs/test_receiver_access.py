"""A workload that may not reach its receiver from a worker is told what is missing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.receiver_rules import NO_RULES, ReceiverRules
from app.dispatch.jobs.receiver_access import check_access
from app.grpc_client.credentials import Credentials, PemFiles
from app.grpc_client.tokens import TokenFile, Tokens
from tests.dispatch.pump.rig import GROUP, definition

METADATA = {"authorization": "Bearer secret:billing", "x-zone": "header:zone"}


def access(target: dict[str, object], groups: tuple[str, ...], rules: ReceiverRules, folder: Path) -> None:
    (folder / "token").write_text("secret")
    tokens = Tokens({"billing": TokenFile(str(folder / "token"), groups)}, "the settings")
    credentials = Credentials({"private": PemFiles(users=("payments",))}, "the settings", tokens)
    credentials.load()
    check_access(definition("billing:443", target=target), credentials, rules)


def test_a_worker_that_has_all_may_begin(tmp_path: Path) -> None:
    access({"tls": {}, "metadata": METADATA}, (GROUP,), NO_RULES, tmp_path)
    access({"metadata": METADATA}, (GROUP,), ReceiverRules(allow=("x-*", "authorization")), tmp_path)
    access({}, (), ReceiverRules(allow=()), tmp_path)


@pytest.mark.parametrize(
    ("target", "groups", "rules", "words"),
    [
        ({"metadata": METADATA}, ("payments",), NO_RULES, f"is not for {GROUP}"),
        ({"metadata": {"x-key": "secret:other"}}, (GROUP,), NO_RULES, "no token 'other'"),
        ({"metadata": METADATA}, (GROUP,), ReceiverRules(deny=("x-*",)), "allows no metadata 'x-zone'"),
        ({"metadata": METADATA}, (GROUP,), ReceiverRules(allow=()), "receivers.metadata"),
        ({"tls": {"credentials": "private"}}, (GROUP,), NO_RULES, f"are not for {GROUP}"),
    ],
)
def test_a_worker_that_has_not_says_what_is_missing(
    target: dict[str, object], groups: tuple[str, ...], rules: ReceiverRules, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        access(target, groups, rules, tmp_path)
