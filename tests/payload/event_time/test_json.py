"""A field of a JSON value: the same as a full decode, found without one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.payload.event_time import json_scanner
from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.json_field import JsonTime
from app.payload.event_time.json_scanner import matched
from tests.payload.event_time.records import KEYS, Number, first_wins, json_objects, json_texts, spelled

FORMATS = st.sampled_from(list(TimeFormat))
PATHS = st.lists(st.sampled_from([key for key in KEYS if key]), min_size=1, max_size=3)
LARGE = 1_000_000


def _decoded(text: bytes, path: list[str], time_format: TimeFormat) -> int | Absent:
    """What a full decode of the value tells."""
    found: Any = first_wins(text)
    if not isinstance(found, dict):
        return Absent.MALFORMED
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return Absent.NO_FIELD
        found = found[name]
    if found is None:
        return Absent.NULL
    if isinstance(found, Number):
        told = Instant(time_format).of_number(found)
        is_long = len(found) > 64
        return Absent.OUT_OF_RANGE if is_long and found.isdigit() else told
    return Instant(time_format).of_text(found) if isinstance(found, str) else Absent.NOT_A_TIME


@given(json_texts(), PATHS, FORMATS)
@example('{"a":"\\"ts","ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a\\"ts":4,"ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a\\\\":4,"ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a":["ts",{"ts":4}],"ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a":"[{","b":"{","ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a":"","b":"{","c":"}\\\\\\"","ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"\\u0074s":4,"ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"t":1,"ts":4,"\\u0074\\u0073":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"ts":4,"ts":5}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{"a":1},"meta":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{},"other":{"ts":4},"meta":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{"a":{"ts":4}},"b":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":[{"ts":4}],"ts":5}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"ts" \n: "ts", "x":1}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a":"ts","ts":"\\u0031700000000"}', ["ts"], TimeFormat.EPOCH_S)
def test_any_json_gives_what_a_full_decode_gives(text: str, path: list[str], time_format: TimeFormat) -> None:
    value = text.encode()
    source = JsonTime(path, time_format)
    assert source.scan(value) == source.read(value) == _decoded(value, path, time_format)


@given(json_objects(), PATHS, FORMATS, st.data())
def test_a_field_is_found_in_an_object_that_holds_it(
    text: str, path: list[str], time_format: TimeFormat, data: st.DataObject
) -> None:
    """As above, and the path leads somewhere more often."""
    member = data.draw(json_texts())
    for name in reversed(path):
        key = data.draw(spelled(name))
        first, last = data.draw(json_objects(2))[1:-1].strip(), data.draw(json_objects(2))[1:-1].strip()
        member = "{" + ", ".join(part for part in (first, f"{key} : {member}", last) if part) + "}"
    value = member.encode()
    source = JsonTime(path, time_format)
    assert source.scan(value) == source.read(value) == _decoded(value, path, time_format)


@given(st.lists(json_objects(2), min_size=1, max_size=4), json_texts(2), PATHS, st.integers(1, 40))
def test_lists_of_records_are_passed_over_in_pieces_of_any_size(
    records: list[str], member: str, path: list[str], least_bytes: int
) -> None:
    """With pieces so small that they end anywhere."""
    value = ('{"a":[' + ",".join(records * 3) + f'],{json.dumps(path[0])}:{member},"ts":1' + "}").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scanner, "_LEAP_AFTER", 1)
        patch.setattr(json_scanner, "_LEAP_BYTES", least_bytes)
        patch.setattr(json_scanner, "_LEAST_LEAP_BYTES", 1)
        assert JsonTime(path).scan(value) == _decoded(value, path, TimeFormat.EPOCH_MS)


@given(json_objects(), st.binary(), st.integers(0, 10**9))
def test_nothing_behind_the_field_is_looked_at(text: str, garbage: bytes, time_ms: int) -> None:
    members = text[1:-1].strip()
    value = ("{" + members + ("," if members else "") + f'"ts":{time_ms}').encode()
    expected = _decoded(value + b"}", ["ts"], TimeFormat.EPOCH_MS)
    assert JsonTime(["ts"]).read(value + b"," + garbage) == expected
    if not members:
        assert expected == time_ms
        assert JsonTime(["ts"]).read(value) is Absent.MALFORMED  # the number may be cut off


@given(
    st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,\\ts u0074123'), max_size=60).map(str.encode),
    PATHS,
)
@example(b'{"ts":', ["ts"])
@example(b'\\"ts":4', ["ts"])
@example(b'{\\"ts":4}', ["ts"])
@example(b"{:5}", ['x"ts'])
def test_any_bytes_give_a_time_or_a_reason(value: bytes, path: list[str]) -> None:
    source = JsonTime(path, TimeFormat.EPOCH_S)
    found = source.scan(value)
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS
    assert source.read(value) == found


@given(json_objects(), PATHS, st.data())
def test_damaged_json_gives_a_time_or_a_reason(text: str, path: list[str], data: st.DataObject) -> None:
    value = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    source = JsonTime(path)
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    found = source.scan(cut)
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS
    assert source.read(cut) == found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"ts":1700000000123}', 1_700_000_000_123),
        (b'\n { "ts" : "1700000000123" } ', 1_700_000_000_123),
        (b'{"ts":1700000000123.9}', 1_700_000_000_123),
        (b'{"ts":1.7e12}', 1_700_000_000_000),
        (b'{"ts":-1}', Absent.OUT_OF_RANGE),
        (b'{"ts":999999999999999999}', Absent.OUT_OF_RANGE),
        (b'{"ts":' + b"9" * 5000 + b"}", Absent.OUT_OF_RANGE),
        (b'{"ts":007}', Absent.MALFORMED),
        (b'{"ts":1.}', Absent.MALFORMED),
        (b'{"ts":NaN}', Absent.MALFORMED),
        (b'{"ts":nullx}', Absent.MALFORMED),
        (b'{"ts":"1\n2"}', Absent.MALFORMED),
        (b'{"ts":"\\x"}', Absent.MALFORMED),
        (b'{"ts":"17', Absent.MALFORMED),
        (b'{"ts"', Absent.NO_FIELD),
        (b'{"ts":', Absent.MALFORMED),
        (b'{"a":"ts":5}', 5),  # no JSON; see promise 3
        (b'{"a":"x "ts":5}', Absent.MALFORMED),
        (b'{"a":[},"ts":5}', Absent.MALFORMED),
        (b'{"a":1],"ts":5}', Absent.MALFORMED),
        (b'{"a":1},"ts":5}', Absent.NO_FIELD),
        (b"", Absent.MALFORMED),
        (b"\xef\xbb\xbf{}", Absent.MALFORMED),
        (b"[]", Absent.MALFORMED),
        (b'{"ts":true}', Absent.NOT_A_TIME),
        (b'{"ts":{"a":1}}', Absent.NOT_A_TIME),
        (b'{"ts":[1]}', Absent.NOT_A_TIME),
        (b'{"ts":"soon"}', Absent.NOT_A_TIME),
        (b'{"ts":"\\u00e9"}', Absent.NOT_A_TIME),
        (b'{"ts":null}', Absent.NULL),
        (b'{"Ts":1}', Absent.NO_FIELD),
    ],
)
def test_what_a_value_tells(value: bytes, expected: int | Absent) -> None:
    assert JsonTime(["ts"]).read(value) == JsonTime(["ts"]).scan(value) == expected


@pytest.mark.parametrize(
    "before",
    [
        b'"a":' + b"[" * LARGE + b"]" * LARGE,
        b'"a":' + b'{"ts":' * (LARGE // 6) + b"1" + b"}" * (LARGE // 6),
        b'"a":[' + b'{"ts":1},' * (LARGE // 9) + b"1]",
        b'"a":[' + b'"ts",' * (LARGE // 5) + b"1]",
        b'"a":"' + b"\\\\" * LARGE + b'"',
        b'"a":"' + b'\\"' * LARGE + b'"',
        b'"a":[' + b'"\\"ts",' * (LARGE // 7) + b"1]",
        b'"a":{' + b'"\\"ts":1,' * (LARGE // 9) + b'"b":1}',
        b'"a":[' + b'"\\u0074",' * (LARGE // 9) + b"1]",
        b'"a":[' + b'{"\\u0074s":1},' * (LARGE // 14) + b"1]",
        b'"a":"' + b"{" * LARGE + b'"',
        b'"a":[' + b'"{","}",' * (LARGE // 8) + b"1]",
        b'"a":1' + b" " * LARGE,
    ],
)
def test_a_field_behind_a_megabyte_of_anything_is_found_in_time_in_proportion(before: bytes) -> None:
    """Were it in proportion to the square, the test would run out of time."""
    assert JsonTime(["ts"]).read(b"{" + before + b',"ts":5}') == 5
    assert JsonTime(["ts"]).read(b"{" + before) in (Absent.NO_FIELD, Absent.MALFORMED)
    assert JsonTime(["tt"]).read(b"{" + before + b',"ts":5}') is Absent.NO_FIELD


@given(st.text(st.sampled_from("{}[]"), max_size=80).map(str.encode))
@example(b"[{" * 30 + b"}]" * 30)
@example(b"[{" * 30 + b"]}" * 30)
def test_brackets_are_matched_the_same_at_any_depth(brackets: bytes) -> None:
    left: list[int] = []
    for bracket in brackets:
        if left and (left[-1], bracket) in ((ord("{"), ord("}")), (ord("["), ord("]"))):
            left.pop()
        else:
            left.append(bracket)
    assert matched(brackets) == bytes(left)


@pytest.mark.parametrize("path", [[], ["a"] * 17, [""], ["a" * 201], ["\ud800"]])
def test_a_path_that_cannot_be_is_refused(path: list[str]) -> None:
    with pytest.raises(UnusableField) as caught:
        JsonTime(path)
    assert caught.value.remedy


@given(st.text(min_size=1, max_size=8).filter(lambda name: not any("\ud800" <= c <= "\udfff" for c in name)))
def test_any_key_is_found_however_it_is_written(name: str) -> None:
    plain, ascii_only = json.dumps({name: 7}, ensure_ascii=False), json.dumps({"x": 1, name: 7})
    every = '{"' + "".join(f"\\u{unit:04X}" for unit in _units(name)) + '":7}'
    expected = 1 if name == "x" else 7
    assert JsonTime([name]).read(plain.encode()) == 7
    assert JsonTime([name]).read(ascii_only.encode()) in (7, expected)
    assert JsonTime([name]).read(every.encode()) == 7


def _units(text: str) -> list[int]:
    packed = text.encode("utf-16-be")
    return [int.from_bytes(packed[at : at + 2], "big") for at in range(0, len(packed), 2)]
