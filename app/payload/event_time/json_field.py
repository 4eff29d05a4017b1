r"""The event time in a field of a JSON object, read by msgspec.

msgspec checks the whole value and makes objects only of the keys on the path. It takes about 1 ms for a
megabyte, and at most 8 ms, wherever the field is.

Rules
1. A value that is not JSON from its first to its last byte has no event time. Text beside the field may hold
   invalid UTF-8.
2. Python's `json` reads a value of at most 64 KiB that msgspec refuses, in at most 5 ms. It also accepts NaN
   and Infinity, half a surrogate pair (`"\ud83d"`, a truncated emoji), and control characters in text. Many
   producers write these.
3. The last of equal keys in an object counts, as in most parsers, so that consumers read the same value. In
   a larger value the field is absent if one of several equal keys on the path holds neither an object nor
   null.
4. A value nested deeper than Python's recursion limit has no event time. The limit depends on the stack of
   the caller: at least 800 levels in a worker.
5. The field's digits are read as they were written: no float rounds them.

`tests/payload/event_time/test_json.py` compares the result with a full decode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from app.payload.event_time.instant import MAX_TEXT_CHARS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.source import ValueTime

MAX_KEYS = 16  # in a path
MAX_KEY_CHARS = 200
MAX_LENIENT_BYTES = 64 * 1024
_MAX_ESCAPED_BYTES = 6 * MAX_TEXT_CHARS + 2  # every character as \u0030, and the quotes
_SPACES = b" \t\n\r"


class JsonTime(ValueTime):
    """A number or text at a path of keys from the outermost object."""

    __slots__ = ("_decode", "_instant", "_path")

    def __init__(self, path: Sequence[str], time_format: TimeFormat = TimeFormat.EPOCH_MS) -> None:
        """Raises UnusableField: the path is empty or too long, or msgspec cannot look for one of its keys."""
        _check(path)
        kind: Any = msgspec.Raw  # the field as it was written: checked, but not decoded
        for name in reversed(path):
            holder = msgspec.defstruct("Holder", [("held", kind, None)], rename={"held": name}, gc=False)
            kind = holder | None
        self._decode = msgspec.json.Decoder(kind).decode
        self._path = tuple(path)
        self._instant = Instant(time_format)

    def read(self, value: bytes) -> int | Absent:
        try:
            found: Any = self._decode(value)
        except msgspec.DecodeError as error:
            if len(value) <= MAX_LENIENT_BYTES:
                return self._read_leniently(value)
            is_object = isinstance(error, msgspec.ValidationError) and value.lstrip(_SPACES).startswith(b"{")
            return Absent.NO_FIELD if is_object else Absent.MALFORMED
        except RecursionError:
            return Absent.BEYOND_LIMIT
        if found is None:
            return Absent.MALFORMED
        for _ in self._path:
            found = found.held
            if found is None:
                return Absent.NO_FIELD
        return self._time(bytes(found))

    def _read_leniently(self, value: bytes) -> int | Absent:
        try:
            found = _decode_leniently(value.decode(errors="replace"))
        except ValueError:
            return Absent.MALFORMED
        except RecursionError:
            return Absent.BEYOND_LIMIT
        if not isinstance(found, dict):
            return Absent.MALFORMED
        for name in self._path:
            if not isinstance(found, dict) or name not in found:
                return Absent.NO_FIELD
            found = found[name]
        if isinstance(found, _Digits):
            return self._time(found.encode())
        if isinstance(found, str):
            return self._instant.of_text(found)
        return Absent.NULL if found is None else Absent.NOT_A_TIME

    def _time(self, written: bytes) -> int | Absent:
        """The time of a well-formed JSON value, whose text may hold invalid UTF-8."""
        if written.isdigit():
            return (
                self._instant.of_int(int(written)) if len(written) <= MAX_TEXT_CHARS else Absent.OUT_OF_RANGE
            )
        match written[:1]:
            case b'"' if b"\\" in written:
                return self._escaped(written)
            case b'"':
                return self._instant.of_bytes(written[1:-1])
            case b"n":
                return Absent.NULL
            case b"t" | b"f" | b"{" | b"[":
                return Absent.NOT_A_TIME
        return self._instant.of_number(written.decode("ascii"))

    def _escaped(self, written: bytes) -> int | Absent:
        if len(written) > _MAX_ESCAPED_BYTES:
            return Absent.NOT_A_TIME
        try:
            return self._instant.of_text(msgspec.json.decode(written, type=str))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Absent.MALFORMED


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


_decode_leniently = json.JSONDecoder(strict=False, parse_int=_Digits, parse_float=_Digits).decode


def _check(path: Sequence[str]) -> None:
    field = ".".join(path)
    if not path or len(path) > MAX_KEYS:
        raise UnusableField(
            field, f"the path has {len(path)} keys", f"name 1 to {MAX_KEYS} keys: meta.createdAt"
        )
    for name in path:
        if not 0 < len(name) <= MAX_KEY_CHARS:
            raise UnusableField(field, f"a key has {len(name)} characters", f"write 1 to {MAX_KEY_CHARS}")
        if any("\ud800" <= char <= "\udfff" for char in name):
            raise UnusableField(ascii(field), "a key holds half a surrogate pair", "write whole characters")
        if any(char < " " or char in '"\\' for char in name):
            raise UnusableField(
                ascii(field),
                "a key holds a quote, a backslash or a control character",
                "use a field of another name",
            )
