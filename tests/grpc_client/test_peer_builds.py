"""Peers are built once, whole, and within a time; a missing tool is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.dev.yard.jars import HOME_VARIABLE
from tests.grpc_client import peers
from tests.grpc_client.peers import build
from tests.grpc_client.peers.build import BuildFailed, Steps

LANGUAGE = "python"  # needs no compiler


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what this test builds."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    return tmp_path / "peers"


def use(monkeypatch: pytest.MonkeyPatch, build_peer: Callable[[Steps], Path]) -> None:
    """Replaces what builds the peer."""
    monkeypatch.setitem(build.RECIPES, LANGUAGE, replace(build.RECIPES[LANGUAGE], build=build_peer))


def whole_builds(home: Path) -> list[Path]:
    return list(home.glob(f"{LANGUAGE}-*"))


def test_a_peer_is_built_at_the_first_use_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = build.command(LANGUAGE)
    (folder,) = whole_builds(home)
    assert command[-1] == str(folder / "server.py")
    assert (folder / "interop.binpb").stat().st_size > 0

    def unexpected(_steps: Steps) -> Path:
        raise AssertionError("built again")

    use(monkeypatch, unexpected)
    assert build.command(LANGUAGE) == command


def test_a_build_that_fails_says_why_and_leaves_no_peer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(steps: Steps) -> Path:
        steps.run("sh", "-c", "echo no such compiler; exit 3")
        return steps.folder

    use(monkeypatch, failing)
    with pytest.raises(BuildFailed, match=r"python: sh .* ended with 3:\nno such compiler"):
        build.command(LANGUAGE)
    assert not whole_builds(home)


def test_a_build_that_takes_too_long_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(steps: Steps) -> Path:
        steps.run("sleep", "infinity")
        return steps.folder

    use(monkeypatch, endless)
    monkeypatch.setattr(build, "BUILD_TIMEOUT_S", 0.1)
    with pytest.raises(BuildFailed, match="took longer"):
        build.command(LANGUAGE)
    assert not whole_builds(home)


def test_a_missing_tool_skips_a_test_and_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert peers.missing("go") == "the peer in go needs go on PATH; install Go 1.26"
    assert peers.missing("python") is None
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install Go"):
        peers.require("go")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install Go"):
        peers.require("go")
