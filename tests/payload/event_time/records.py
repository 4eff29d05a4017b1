"""Records and random JSON texts for the tests of event times."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st


class FakeRecord(NamedTuple):
    """The fields of a record that event times depend on."""

    value: bytes | None = None
    timestamp: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: bytes | None = None
    offset: int = 0


KEYS = ("ts", "meta", "a", "t", "s", "é/", "ts\\", 'x"ts', "", "\n")
_CHARS = st.sampled_from(list('ts"\\{}[]:,/ aé\n\u2028😀\x00\ud83d'))
_SPACES = st.sampled_from(["", "", "", " ", "\n\t", "\r "])
_NUMBERS = st.one_of(
    st.integers(-(10**3), 3 * 10**11).map(str),
    st.floats(0, 3e11).map(repr),
    st.sampled_from(
        [
            "0",
            "-0",
            "-0.0",
            "1.7E9",
            "17e8",
            "0.5e-3",
            "9" * 30,
            "1e400",
            "1.5",
            "1" + "0" * 70,
            "1e" + "9" * 20,
            "0e" + "9" * 20,
            "1e-" + "9" * 20,
            "NaN",
        ]
    ),
)
_TIMES = st.sampled_from(
    ["2026-11-22T08:24:47Z", "2026-11-22 08:24:47.123456+02:00", "1700000000", "1.5", "soon", ""]
)


@st.composite
def json_string(draw: st.DrawFn, text: str) -> str:
    """A JSON string of the text, in which random characters are escaped."""
    out = []
    for char in text:
        plain = json.dumps(char, ensure_ascii="\ud800" <= char <= "\udfff")[1:-1]
        way = draw(st.integers(0, 9))
        if way == 0:
            escaped = json.dumps(char)[1:-1]
            out.append(escaped if len(escaped) > 2 else f"\\u{ord(char):04{draw(st.sampled_from('xX'))}}")
        elif way == 1 and char == "/":
            out.append("\\/")
        else:
            out.append(plain)
    return '"' + "".join(out) + '"'


@st.composite
def json_texts(draw: st.DrawFn, depth: int = 3) -> str:
    """Any JSON value in any notation, with equal keys, spaces and escapes."""
    kind = draw(st.integers(0, 7 if depth else 4))
    if kind == 0:
        return draw(st.sampled_from(["null", "true", "false"]))
    if kind in (1, 2):
        return draw(_NUMBERS)
    if kind == 3:
        return draw(json_string(draw(st.text(_CHARS, max_size=6))))
    if kind == 4:
        return draw(json_string(draw(_TIMES)))
    if kind == 5:
        parts = draw(st.lists(json_texts(depth - 1), max_size=3))
        return "[" + ",".join(draw(_SPACES) + part + draw(_SPACES) for part in parts) + "]"
    return draw(json_objects(depth - 1))


@st.composite
def json_objects(draw: st.DrawFn, depth: int = 3) -> str:
    """Any JSON object in any notation."""
    members = []
    for _ in range(draw(st.integers(0, 4))):
        key = draw(json_string(draw(st.sampled_from(KEYS))))
        spaces = [draw(_SPACES) for _ in range(4)]
        members.append(spaces[0] + key + spaces[1] + ":" + spaces[2] + draw(json_texts(depth)) + spaces[3])
    return "{" + (",".join(members) or draw(_SPACES)) + "}"


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The keys and values of an object in order, with equal keys."""

    __slots__ = ()


def decode_fully(text: bytes) -> Any:
    """The decoded value, with objects as `Members` and numbers as `Number`."""
    return json.loads(text, object_pairs_hook=Members, parse_int=Number, parse_float=Number)
