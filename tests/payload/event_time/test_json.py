"""The event time in a JSON field is that of a full decode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.json_field import MAX_LENIENT_BYTES, JsonTime
from tests.payload.event_time.records import (
    KEYS,
    Members,
    Number,
    decode_fully,
    json_objects,
    json_string,
    json_texts,
)

FORMATS = st.sampled_from(list(TimeFormat))
PATHS = st.lists(st.sampled_from(KEYS[:6]), min_size=1, max_size=3)
LARGE = 1_000_000


def _decoded(text: bytes, path: list[str], time_format: TimeFormat) -> int | Absent:
    """The time that a full decode of the value gives."""
    found: Any = decode_fully(text)
    if not isinstance(found, Members):
        return Absent.MALFORMED
    for name in path:
        values = [value for key, value in found if key == name] if isinstance(found, Members) else []
        if not values:
            return Absent.NO_FIELD
        found = values[-1]
    if found is None:
        return Absent.NULL
    if isinstance(found, Number):
        is_long = len(found) > 64 and found.isdigit()
        return Absent.OUT_OF_RANGE if is_long else Instant(time_format).of_number(found)
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
@example('{"meta":5,"meta":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{"ts":5},"meta":{}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{"a":1},"meta":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{},"other":{"ts":4},"meta":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":{"a":{"ts":4}},"b":{"ts":5}}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"meta":[{"ts":4}],"ts":5}', ["meta", "ts"], TimeFormat.EPOCH_MS)
@example('{"ts" \n: "ts", "x":1}', ["ts"], TimeFormat.EPOCH_MS)
@example('{"a":"ts","ts":"\\u0031700000000"}', ["ts"], TimeFormat.EPOCH_S)
def test_the_time_of_any_json_is_that_of_a_full_decode(
    text: str, path: list[str], time_format: TimeFormat
) -> None:
    value = text.encode()
    source = JsonTime(path, time_format)
    assert source.read(value) == _decoded(value, path, time_format)


@given(json_objects(), PATHS, FORMATS, st.data())
def test_the_time_of_an_object_with_the_field_is_that_of_a_full_decode(
    text: str, path: list[str], time_format: TimeFormat, data: st.DataObject
) -> None:
    """As above, but the path leads to a field more often."""
    member = data.draw(json_texts())
    for name in reversed(path):
        key = data.draw(json_string(name))
        first, last = data.draw(json_objects(2))[1:-1].strip(), data.draw(json_objects(2))[1:-1].strip()
        member = "{" + ", ".join(part for part in (first, f"{key} : {member}", last) if part) + "}"
    value = member.encode()
    source = JsonTime(path, time_format)
    assert source.read(value) == _decoded(value, path, time_format)


@given(json_objects(), st.binary(min_size=1), st.integers(0, 10**9))
def test_a_cut_off_or_continued_value_has_no_time(text: str, garbage: bytes, time_ms: int) -> None:
    """Such a record is damaged, so its time cannot be trusted."""
    members = text[1:-1].strip()
    value = ("{" + f'"ts":{time_ms}' + ("," if members else "") + members + "}").encode()
    for end in range(len(value)):
        assert JsonTime(["ts"]).read(value[:end]) is Absent.MALFORMED
    if garbage.strip(b" \t\n\r"):
        assert JsonTime(["ts"]).read(value + garbage) is Absent.MALFORMED
    else:
        assert JsonTime(["ts"]).read(value + garbage) == _decoded(value, ["ts"], TimeFormat.EPOCH_MS)


@given(
    st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,\\ts u0074123'), max_size=60).map(str.encode),
    PATHS,
)
@example(b'{"ts":', ["ts"])
@example(b'\\"ts":4', ["ts"])
@example(b'{\\"ts":4}', ["ts"])
@example(b"{:5}", ["ts"])
def test_any_bytes_give_a_time_or_a_reason(value: bytes, path: list[str]) -> None:
    _assert_time_of_json_only(value, path)


@given(json_objects(), PATHS, st.data())
def test_damaged_json_gives_a_time_or_a_reason(text: str, path: list[str], data: st.DataObject) -> None:
    value = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    _assert_time_of_json_only(bytes(value[: data.draw(st.integers(0, len(value)))]), path)


def _assert_time_of_json_only(value: bytes, path: list[str]) -> None:
    found = JsonTime(path, TimeFormat.EPOCH_S).read(value)
    if not isinstance(found, Absent):
        assert 0 <= found <= MAX_MS
        json.loads(value.decode(errors="replace"), strict=False)  # raises where it is no JSON


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
        (b'{"ts":NaN}', Absent.NOT_A_TIME),
        (b'{"ts":-Infinity}', Absent.NOT_A_TIME),
        (b'{"ts":nullx}', Absent.MALFORMED),
        (b'{"ts":"1\n2"}', Absent.NOT_A_TIME),
        (b'{"ts":"\\x"}', Absent.MALFORMED),
        (b'{"ts":"17', Absent.MALFORMED),
        (b'{"ts"', Absent.MALFORMED),
        (b'{"ts":', Absent.MALFORMED),
        (b'{"a":"ts":5}', Absent.MALFORMED),
        (b'{"a":"x "ts":5}', Absent.MALFORMED),
        (b'{"a":[},"ts":5}', Absent.MALFORMED),
        (b'{"a":1],"ts":5}', Absent.MALFORMED),
        (b'{"a":1},"ts":5}', Absent.MALFORMED),
        (b'{"ts":5}{"ts":5}', Absent.MALFORMED),
        (b'{"ts":5}\x00', Absent.MALFORMED),
        (b'{"ts":4,"ts":5}', 5),
        (b'{"ts":4,"\\u0074s":5}', 5),
        (b'{"a":1e999,"ts":5}', 5),
        (b'{"a":"\xff","ts":5}', 5),
        (b'{"ts":"\\ud800"}', Absent.NOT_A_TIME),
        (b'{"ts":1e9999999999999999999999}', Absent.OUT_OF_RANGE),
        (b'{"ts":"1e9999999999999999999999"}', Absent.OUT_OF_RANGE),
        (b'{"ts":1e-9999999999999999999999}', 0),
        (b'{"ts":0e9999999999999999999999}', 0),
        (b'{"ts":"\xff"}', Absent.NOT_A_TIME),
        (b'{"ts":"\xff\\n"}', Absent.MALFORMED),
        (b'{"ts":"' + b"1" * 5000 + b'"}', Absent.NOT_A_TIME),
        (b'{"ts":"' + b"\\u0031" * 65 + b'"}', Absent.NOT_A_TIME),
        (b'{"ts":-0}', 0),
        (b"", Absent.MALFORMED),
        (b"\xef\xbb\xbf{}", Absent.MALFORMED),
        (b"[]", Absent.MALFORMED),
        (b"null", Absent.MALFORMED),
        (b'{"ts":true}', Absent.NOT_A_TIME),
        (b'{"ts":{"a":1}}', Absent.NOT_A_TIME),
        (b'{"ts":[1]}', Absent.NOT_A_TIME),
        (b'{"ts":"soon"}', Absent.NOT_A_TIME),
        (b'{"ts":"\\u00e9"}', Absent.NOT_A_TIME),
        (b'{"ts":null}', Absent.NULL),
        (b'{"Ts":1}', Absent.NO_FIELD),
    ],
)
def test_times_of_handwritten_values(value: bytes, expected: int | Absent) -> None:
    assert JsonTime(["ts"]).read(value) == expected


@pytest.mark.parametrize(
    "before",
    [
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
def test_a_field_behind_a_megabyte_is_found_in_linear_time(before: bytes) -> None:
    """In quadratic time, the test would time out."""
    assert JsonTime(["ts"]).read(b"{" + before + b',"ts":5}') == 5
    assert JsonTime(["ts"]).read(b"{" + before) is Absent.MALFORMED
    assert JsonTime(["tt"]).read(b"{" + before + b',"ts":5}') is Absent.NO_FIELD


@pytest.mark.parametrize(
    "nested", [b"[" * LARGE + b"]" * LARGE, b'{"ts":' * LARGE + b"1" + b"}" * LARGE, b"[" * LARGE]
)
def test_an_endlessly_nested_value_has_no_time(nested: bytes) -> None:
    assert JsonTime(["ts"]).read(b'{"ts":5,"a":' + nested + b"}") is Absent.BEYOND_LIMIT
    assert JsonTime(["ts"]).read(b'{"ts":' + nested + b"}") is Absent.BEYOND_LIMIT
    assert JsonTime(["ts"]).read(b'{"a":' + b"[" * 500 + b"]" * 500 + b',"ts":5}') == 5


def test_a_path_leads_through_objects_only() -> None:
    source = JsonTime(["meta", "ts"])
    assert source.read(b'{"meta":{"ts":5}}') == 5
    for other in (b"5", b"null", b'"ts"', b"[]", b'[{"ts":5}]', b"{}", b'{"a":5}'):
        assert source.read(b' {"meta":' + other + b"}") is Absent.NO_FIELD
    assert source.read(b'{"meta":{"ts":5},"meta":{"a":6}}') is Absent.NO_FIELD, "the last counts"
    for other in (b"5", b"null", b'"ts"', b"[]"):
        assert source.read(b'{"meta":' + other + b',"meta":{"ts":5}}') == 5, "the last counts"
        assert source.read(b'{"meta":{"ts":5},"meta":' + other + b"}") is Absent.NO_FIELD


@pytest.mark.parametrize(
    "text",
    [
        '"\\ud83d"', '"\\udc00\\ud83d"', "NaN", "Infinity", "-Infinity", '"a\tb"', '"a\nb"', '"\x00"',
        '{"\\ud83d":[NaN,"\x1f"]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("digits", ["1700000000.123456789", '"1700000000.123456789"', "17000000001234e-4"])
def test_json_that_only_lenient_parsers_accept_has_a_time(text: str, digits: str) -> None:
    """JSON.stringify and Python's json write such values. The digits are read as they were written."""
    source, expected = JsonTime(["meta", "ts"], TimeFormat.EPOCH_S), 1_700_000_000_123
    for members in (f'"a":{text},"meta":{{"ts":{digits}}}', f'"meta":{{"ts":{digits},"a":{text}}}'):
        assert source.read(f"{{{members}}}".encode()) == expected
        assert source.read(f"{{{members}".encode()) is Absent.MALFORMED
        assert source.read(f"{{{members}}}\x00".encode()) is Absent.MALFORMED
    large = f'{{"a":{text},"b":"{"x" * MAX_LENIENT_BYTES}","meta":{{"ts":{digits}}}}}'
    assert source.read(large.encode()) is Absent.MALFORMED


def test_in_a_larger_value_all_equal_keys_on_the_path_must_hold_objects() -> None:
    rest = b',"a":"' + b"x" * MAX_LENIENT_BYTES + b'"}'
    source = JsonTime(["meta", "ts"])
    assert source.read(b'{"meta":5,"meta":{"ts":5}' + rest) is Absent.NO_FIELD
    assert source.read(b'{"meta":null,"meta":{"ts":5}' + rest) == 5
    assert source.read(b"[1" + rest[:-1] + b"]") is Absent.MALFORMED


@pytest.mark.parametrize(
    "path", [[], ["a"] * 17, [""], ["a" * 201], ["\ud800"], ['x"ts'], ["ts\\"], ["a", "\n"]]
)
def test_an_invalid_path_is_refused(path: list[str]) -> None:
    with pytest.raises(UnusableField) as caught:
        JsonTime(path)
    assert caught.value.remedy


_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"\\'), min_size=1, max_size=8)


@given(_NAMES.filter(lambda name: name.isprintable()))
def test_a_key_is_found_with_any_escapes(name: str) -> None:
    plain, ascii_only = json.dumps({name: 7}, ensure_ascii=False), json.dumps({"": 1, name: 7})
    every = '{"' + "".join(f"\\u{unit:04X}" for unit in _units(name)) + '":7}'
    for text in (plain, ascii_only, every):
        assert JsonTime([name]).read(text.encode()) == 7


def _units(text: str) -> list[int]:
    packed = text.encode("utf-16-be")
    return [int.from_bytes(packed[at : at + 2], "big") for at in range(0, len(packed), 2)]
