"""Finds a field in a JSON object without decoding it.

The field's name is searched for as bytes. Whether it is a key, and of the object that is meant, is told by
what stands before it: the quotes (an even number: it is no part of a string) and the brackets outside of
strings (all closed: it lies in none of the object's values). All of that are searches and replacements of
whole pieces, in C.

What is promised
1. Of valid JSON the answer is that of a full decoder that lets the first of equal keys count.
2. Nothing behind the field is looked at: it may be cut off, or garbage.
3. Before the field only quotes, escapes and brackets are: what else is wrong there may go unnoticed.
4. It takes time in proportion to the value, nested as deep as it likes.
"""

from __future__ import annotations

import json
import re

_SPACE = rb"[ \t\n\r]*+"
OPEN = re.compile(_SPACE + rb"\{")
_COLON = re.compile(_SPACE + rb":")
_TEXT = re.compile(rb'"[^"]*+"')
_REST = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)  # of a string
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"{}[]'))
_PLAIN = re.compile(r"[A-Za-z0-9_.,:;@#$%&*+=<>()|!?~^'` -]+")  # no escape but \u00xx can spell these
_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "\\": "\\", "/": "/"}
_CLOSING = b"}]"
_APART = 2  # in ASCII, of the brackets of a pair
_LEFT = ord("}")  # the end of the object itself
_PASSES = 16  # each takes a level of nesting away; deeper is rare, and matched one by one
# The same key in many values of the object (a list of records): they are passed over in pieces of such sizes.
_LEAP_AFTER = 4
_LEAP_BYTES = 1024
_LEAST_LEAP_BYTES = 256
_MOST_LEAP_BYTES = 64 * 1024

NOT_FOUND = -1
BROKEN = -2


class JsonKey:
    """A key and the ways to write it.

    Attributes:
        needle: without escapes; b"" where it cannot be without.
        hint: what stands in every other way to write it.
        spelled: all ways.
    """

    __slots__ = ("hint", "needle", "size", "spelled")

    def __init__(self, name: str) -> None:
        self.spelled = re.compile(b'"' + b"".join(map(_spellings, name)) + b'"')
        self.needle = json.dumps(name, ensure_ascii=False).encode()
        if b"\\" in self.needle:
            self.needle = b""
        self.size = len(self.needle)
        self.hint = b"\\u00" if _PLAIN.fullmatch(name) else b"\\"

    def find(self, value: bytes, at: int) -> int:
        """Where the key's value begins, behind the colon; `NOT_FOUND`, `BROKEN`.

        Args:
            at: behind the opening bracket of its object.
        """
        if not self.needle:
            return self._walk(value, at)
        hit = value.find(self.needle, at)
        if hit < 0:
            return NOT_FOUND if value.find(self.hint, at) < 0 else self._walk(value, at)
        before = value[at:hit]
        end = hit + self.size
        # The common case: nothing nested, nothing escaped before it.
        if (
            b"\\" in before
            or b"{" in before
            or b"[" in before
            or b"}" in before
            or b"]" in before
            or before.count(b'"') & 1
            or value[end : end + 1] != b":"
        ):
            return self._walk(value, at)
        return end + 1

    def _walk(self, value: bytes, at: int) -> int:
        """The same from candidate to candidate."""
        opened = bytearray()  # brackets of the object's values that are open at `at`
        seek = at
        nested = 0  # candidates in the object's values
        by_needle = bool(self.needle)
        while True:
            if by_needle:
                start = value.find(self.needle, seek)
                if value.find(self.hint, seek, start if start >= 0 else len(value)) >= 0:
                    by_needle = False
                    continue
                end = start + self.size
            else:
                found = self.spelled.search(value, seek)
                start, end = found.span() if found is not None else (NOT_FOUND, 0)
            if start < 0:
                return NOT_FOUND
            seek = end
            colon = _COLON.match(value, end)
            if colon is None:
                continue  # it is no key
            before = value[at:start]
            if b"\\" in before:
                before = before.replace(b"\\\\", b"").replace(b'\\"', b"")
            is_key = not before.count(b'"') & 1
            if before.endswith(b"\\"):
                if is_key:
                    return BROKEN  # an escape outside of strings
                before = before[:-1] + b'"'  # the end of a string that ends like the key
            elif not is_key:
                return BROKEN  # a string begins where one ends
            ended = _follow(opened, matched(_brackets(before)))
            if ended:
                return ended
            if is_key and not opened:
                return colon.end()
            at = end
            if opened:
                nested += 1
                if nested % _LEAP_AFTER == 0:
                    at = seek = _leap(value, at, opened)


def _follow(opened: bytearray, brackets: bytes) -> int:
    """Opens and closes what the brackets do; `NOT_FOUND` where the object itself ends, `BROKEN`, else 0."""
    for bracket in brackets:
        if bracket not in _CLOSING:
            opened.append(bracket)
        elif not opened:
            return NOT_FOUND if bracket == _LEFT else BROKEN
        elif opened.pop() != bracket - _APART:
            return BROKEN
    return 0


def _leap(value: bytes, at: int, opened: bytearray) -> int:
    """A position further on, or `at`, up to which what is open stays open: no key of the object lies before.

    `at` and what is returned lie outside of strings.
    """
    size = _LEAP_BYTES
    while size >= _LEAST_LEAP_BYTES and at < len(value):
        end = at + size
        text = value[at:end]
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
            if text.endswith(b"\\"):
                end += 1
                text = text[:-1]
        if text.count(b'"') & 1:
            rest = _REST.match(value, end)
            if rest is None:
                return at
            end = rest.end()
            text += b'"'
        brackets = matched(_brackets(text))
        if brackets.count(b"}") + brackets.count(b"]") >= len(opened):
            size //= 4
        elif _follow(opened, brackets):
            return len(value)  # brackets that do not match: nothing is found behind them
        else:
            at = end
            size = min(2 * size, _MOST_LEAP_BYTES)
    return at


def _brackets(text: bytes) -> bytes:
    """The brackets outside of strings. `text` has no escapes, and begins and ends outside of strings."""
    # Two quotes side by side are a string without brackets, or the end of one and the beginning of another:
    # without them, the rest is inside or outside as before.
    structure = text.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    return _TEXT.sub(b"", structure) if b'"' in structure else structure


def matched(brackets: bytes) -> bytes:
    """What is left when every pair that closes is taken away."""
    for _ in range(_PASSES):
        size = len(brackets)
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(brackets) == size:
            return brackets
    left = bytearray()
    for bracket in brackets:
        if left and bracket in _CLOSING and left[-1] == bracket - _APART:
            left.pop()
        else:
            left.append(bracket)
    return bytes(left)


def _spellings(char: str) -> bytes:
    """All ways to write a character in a string, as an expression."""
    ways = [] if char in '"\\' or char < " " else [re.escape(char.encode())]
    if char in _SHORT:
        ways.append(re.escape(f"\\{_SHORT[char]}".encode()))
    units = char.encode("utf-16-be")
    ways.append(
        b"".join(
            rb"\\u(?i:%04x)" % int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)
        )
    )
    return b"(?:" + b"|".join(ways) + b")"
