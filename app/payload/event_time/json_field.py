"""The event time in a field of a JSON object.

A scan (`json_scanner`) tells what the answer is. In the usual cases `json_decoder` tells the same, sooner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from app.payload.event_time.instant import MAX_TEXT_CHARS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.json_decoder import FieldDecoder
from app.payload.event_time.json_scanner import NOT_FOUND, OPEN, JsonKey
from app.payload.event_time.source import ValueTime

MAX_KEYS = 16  # of a path
MAX_KEY_CHARS = 200
_SPACE = rb"[ \t\n\r]*+"
# A value that can be a time, with what must follow it: a number that is cut off is none.
_WHOLE, _NUMBER, _TEXT, _NULL = range(1, 5)
_VALUE = re.compile(
    _SPACE + rb"(?:(-?(?:0|[1-9][0-9]*+))(?![0-9.eE])"
    rb"|(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
    rb'|"((?:[^"\\\x00-\x1f]++|\\.)*+)"'
    rb"|(null))" + _SPACE + rb"[,}]"
)
_OTHER = re.compile(_SPACE + rb"(?:true" + _SPACE + rb"[,}]|false" + _SPACE + rb"[,}]|[\[{])")
_MAX_ESCAPED_BYTES = 6 * MAX_TEXT_CHARS  # all of it as \u0030


class JsonTime(ValueTime):
    """A number or text, by the keys that lead to it from the outermost object."""

    __slots__ = ("_instant", "_keys", "_known")

    def __init__(self, path: Sequence[str], time_format: TimeFormat = TimeFormat.EPOCH_MS) -> None:
        """A field.

        Raises:
            UnusableField: no path.
        """
        told = ".".join(path)
        if not path or len(path) > MAX_KEYS:
            raise UnusableField(
                told, f"a path of {len(path)} keys", f"name 1 to {MAX_KEYS} keys: meta.createdAt"
            )
        for name in path:
            if not 0 < len(name) <= MAX_KEY_CHARS:
                raise UnusableField(told, f"a key of {len(name)} characters", f"write 1 to {MAX_KEY_CHARS}")
            if any("\ud800" <= char <= "\udfff" for char in name):
                raise UnusableField(ascii(told), "half of a character", "write the key as text")
        self._keys = tuple(map(JsonKey, path))
        self._instant = Instant(time_format)
        plain = all(key.needle for key in self._keys)
        self._known = FieldDecoder(path, self._keys, self._instant).read if plain else None

    def read(self, value: bytes) -> int | Absent:
        known = self._known
        found = known(value) if known is not None else None
        return self.scan(value) if found is None else found

    def scan(self, value: bytes) -> int | Absent:
        """The same, by the scan alone."""
        at = 0
        for key in self._keys:
            opening = OPEN.match(value, at)
            if opening is None:
                return Absent.NO_FIELD if at else Absent.MALFORMED
            at = key.find(value, opening.end())
            if at < 0:
                return Absent.NO_FIELD if at == NOT_FOUND else Absent.MALFORMED
        found = _VALUE.match(value, at)
        if found is None:
            return Absent.NOT_A_TIME if _OTHER.match(value, at) else Absent.MALFORMED
        kind = found.lastindex or _NULL
        if kind == _WHOLE:
            digits = found[_WHOLE]
            return self._instant.of_int(int(digits)) if len(digits) <= MAX_TEXT_CHARS else Absent.OUT_OF_RANGE
        if kind == _NULL:
            return Absent.NULL
        text = found[kind]
        if kind == _NUMBER:
            return self._instant.of_number(text.decode("ascii"))
        if b"\\" in text:
            return self._escaped(text)
        return self._instant.of_bytes(text)

    def _escaped(self, text: bytes) -> int | Absent:
        if len(text) > _MAX_ESCAPED_BYTES:
            return Absent.NOT_A_TIME
        try:
            return self._instant.of_text(orjson.loads(b'"%b"' % text))
        except orjson.JSONDecodeError:
            return Absent.MALFORMED
