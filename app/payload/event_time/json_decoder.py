"""The scan's answer in the usual cases, sooner: what stands before the field is checked by msgspec.

msgspec passes over JSON in C, at about the speed of a search for a key. It is given the value up to the
field, with its objects closed: where that is JSON and has the field, the field is where its key was found,
and whole. Where little is left behind the field, the value is given as it is, which saves the copy.

msgspec lets the last of equal keys count, and knows a key by any spelling: where the text holds a key of the
path twice, or an escape that could be one, nothing is known; nor where it refuses the text. The scan decides
then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from app.payload.event_time.instant import Absent, Instant
from app.payload.event_time.json_scanner import JsonKey

WHOLE_BYTES = 400  # left behind the key: less than this is passed over sooner than cut off
_SPACE = rb"[ \t\n\r]*+"
_MEMBER = re.compile(_SPACE + rb":" + _SPACE + rb'("[^"\\]*+"|-?[0-9][0-9.eE+-]*+|null)' + _SPACE + rb"[,}]")


class FieldDecoder:
    """Decodes the field at the end of a path of keys, each of which can be written without escapes."""

    __slots__ = ("_closing", "_decode", "_hints", "_instant", "_last", "_of_int", "_outer")

    def __init__(self, path: Sequence[str], keys: Sequence[JsonKey], instant: Instant) -> None:
        kind: Any = int | float | str | None
        for name in reversed(path):
            kind = msgspec.defstruct(
                "Holder", [("held", kind | msgspec.UnsetType, msgspec.UNSET)], rename={"held": name}, gc=False
            )
        self._decode = msgspec.json.Decoder(kind).decode
        *self._outer, self._last = keys
        self._hints = tuple({key.hint for key in keys})
        self._closing = b"}" * len(keys)
        self._instant = instant
        self._of_int = instant.of_int

    def read(self, value: bytes) -> int | Absent | None:
        """The time, or why there is none; None: it is not known."""
        last = self._last
        hit = value.find(last.needle)
        if hit < 0:
            return None
        behind = hit + last.size
        if len(value) - behind <= WHOLE_BYTES:
            if value.find(last.needle, behind) >= 0:
                return None
            text = value
        else:
            member = _MEMBER.match(value, behind)
            if member is None:
                return None
            text = value[: member.end(1)] + self._closing
        if b"\\" in text:
            for hint in self._hints:
                if hint in text:
                    return None
        for key in self._outer:  # each is there, or the field is not
            if text.count(key.needle) != 1:
                return None
        try:
            found: Any = self._decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None
        for _ in self._closing:
            found = found.held
            if found is msgspec.UNSET:
                return None
        if type(found) is int:
            return self._of_int(found)
        if type(found) is str:
            return self._instant.of_text(found)
        if found is None:
            return Absent.NULL
        digits = _MEMBER.match(value, behind)  # of a number that a float may not hold
        return None if digits is None else self._instant.of_number(digits[1].decode("ascii"))
