"""Which record headers pass: allow and deny lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.header_filter import MAX_CACHED_NAMES, HeaderFilter

names = st.text("abAB-", min_size=1, max_size=4)
lists = st.lists(st.tuples(names, st.sampled_from(["", "*"])).map("".join), max_size=4)


def _named(entries: list[str], name: str) -> bool:
    lower = name.lower()
    return any(
        lower.startswith(entry[:-1].lower()) if entry.endswith("*") else lower == entry.lower()
        for entry in entries
    )


@given(st.none() | lists, lists, st.lists(names, max_size=10))
def test_an_allowed_header_passes_unless_it_is_denied(
    allow: list[str] | None, deny: list[str], present: list[str]
) -> None:
    wanted = [name for name in present if (allow is None or _named(allow, name)) and not _named(deny, name)]
    passing = HeaderFilter(allow, deny)
    for _ in range(2):
        assert passing.of([(name, b"x") for name in present]) == [(name, b"x") for name in wanted]


def test_an_empty_allow_list_lets_nothing_through() -> None:
    assert HeaderFilter([]).of([("a", b"1")]) == []


def test_the_remembered_header_names_are_bounded() -> None:
    passing = HeaderFilter(None, ["x-*"])
    for number in range(MAX_CACHED_NAMES + 10):
        assert passing.passes(f"n{number}")
    assert len(passing._known) == MAX_CACHED_NAMES
    assert not passing.passes("X-late")
