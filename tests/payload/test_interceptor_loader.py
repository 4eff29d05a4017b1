"""Interceptors are loaded by name at start, or refused with a remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.payload.interceptor_loader import MAX_INTERCEPTORS, InterceptorError, load_interceptors
from app.payload.interceptors import InterceptorChain, Message, Outgoing, Reject

MESSAGE = Message("orders", 0, 0, None, b"value")
SOURCE = """
from app.payload.interceptors import Reject, Send

class Upper:
    def before(self, message):
        return Send(message.value.upper())

class Refuse:
    def __init__(self, reason):
        self.reason = reason
    def before(self, message):
        return Reject(self.reason)

class Many:
    refuse = Refuse("never")

refuse = Refuse("no")
number = 7

class Waits:
    async def before(self, message):
        return Send()

class Nothing:
    def before(self):
        return Send()

class Broken:
    def __init__(self):
        raise OSError("no disk")
"""

Module = Callable[[str, str], None]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """A function that writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def _chain(names: list[str]) -> InterceptorChain:
    return InterceptorChain(load_interceptors(names))


def _refused(*names: str) -> str:
    with pytest.raises(InterceptorError) as caught:
        load_interceptors(names)
    return str(caught.value)


def test_a_class_an_instance_and_a_nested_name_are_loaded_in_order(write_module: Module) -> None:
    write_module("yard_good", SOURCE)
    chain = _chain(["yard_good:Upper", "yard_good:refuse"])
    assert [link.name for link in chain._links] == ["yard_good:Upper", "yard_good:refuse"]
    assert chain.before(MESSAGE) == Reject("interceptor yard_good:refuse: no")
    assert _chain(["yard_good:Upper"]).before(MESSAGE) == Outgoing(b"VALUE", ())
    assert _chain(["yard_good:Many.refuse"]).before(MESSAGE) == Reject(
        "interceptor yard_good:Many.refuse: never"
    )
    assert load_interceptors([]) == []


def test_an_entry_point_is_loaded_by_its_name(write_module: Module, tmp_path: Path) -> None:
    write_module("yard_plugin", SOURCE)
    info = tmp_path / "yard_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: yard-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[switchyard.interceptors]\nupper = yard_plugin:Upper\n")
    assert _chain(["upper"]).before(MESSAGE) == Outgoing(b"VALUE", ())
    assert "installed: upper" in _refused("uper")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("upper", "no entry point of switchyard.interceptors (installed: none)"),
        ("", "write package.module:object"),
        ("yard_bad:", "not a valid name; write package.module:object"),
        ("../x:y", "not a valid name"),
        ("yard_none:Upper", "no module yard_none; install its package"),
        ("yard_bad.sub:Upper", "no module yard_bad.sub"),
        ("yard_bad:Uper", "yard_bad has no Uper; did you mean Upper?"),
        ("yard_bad:number", "has no method before(message)"),
        ("yard_bad:Waits", "its method before is async"),
        ("yard_bad:Nothing", "before does not take one message"),
        ("yard_bad:Refuse", "cannot be created without arguments: TypeError"),
        ("yard_bad:Broken", "cannot be created without arguments: OSError: no disk"),
        ("yard_raises:x", "yard_raises cannot be imported: ZeroDivisionError"),
        ("yard_exits:x", "yard_exits cannot be imported: SystemExit"),
        ("yard_needs:x", "yard_needs needs module yard_lacking; install it"),
        ("yard_syntax:x", "yard_syntax cannot be imported: SyntaxError"),
    ],
)
def test_a_name_without_an_interceptor_is_refused_with_the_remedy(
    write_module: Module, name: str, words: str
) -> None:
    write_module("yard_bad", SOURCE)
    write_module("yard_raises", "1 / 0")
    write_module("yard_exits", "raise SystemExit(3)")
    write_module("yard_needs", "import yard_lacking")
    write_module("yard_syntax", "def")
    problem = _refused(name)
    assert words in problem
    assert f"interceptor {name}" in problem


def test_all_wrong_names_are_reported_together(write_module: Module) -> None:
    write_module("yard_twice", SOURCE)
    with pytest.raises(InterceptorError) as caught:
        load_interceptors(["nope", "yard_twice:Upper", "yard_twice:Upper", "yard_twice:number"])
    assert len(caught.value.problems) == 3
    assert "named twice" in str(caught.value)
    assert "more than 20" in _refused(*(f"a:b{n}" for n in range(MAX_INTERCEPTORS + 1)))
