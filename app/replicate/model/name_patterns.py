r"""Reads the entries of a route's lists: topic names, and regular expressions that match whole names.

An entry of only letters, digits, '.', '_' and '-' is a name: in `orders.created` the point is a point. Any
other entry is a regular expression in this part of the usual syntax:

    x  .  [a-z]  [^.]  \d \D \w \W  \.  (x)  (?:x)  x|y  x*  x+  x?  x{2}  x{2,}  x{2,5}  ^ and $ at the ends

There are no look-arounds and no back references. Matching takes time linear in the name (`regular_language`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

import re2  # type: ignore[import-untyped]  # the package has no types

from app.replicate.model.regular_language import ALL, BIT, Language, LanguageTable

MAX_EXPRESSION_CHARS = 500
MAX_ATOMS = 1000  # letters and classes, with each repetition written out
MAX_REPEAT = 249  # a topic name has no more letters
MAX_DEPTH = 20

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}", re.ASCII)


def _set_of(letters: str) -> int:
    found = 0
    for letter in letters:
        found |= BIT.get(letter, 0)
    return found


_ESCAPED = {
    "d": _set_of(string.digits),
    "w": _set_of(string.ascii_letters + string.digits + "_"),
    "s": 0,
}
_ESCAPED |= {letter.upper(): ALL ^ letters for letter, letters in _ESCAPED.items()}


class BadExpression(ValueError):
    """The fault in an expression; what to do."""


def is_name(text: str) -> bool:
    """Whether the entry is a name, not an expression."""
    return _NAME.fullmatch(text) is not None


def language(words: LanguageTable, text: str) -> Language:
    """The names that `text` stands for.

    Raises:
        BadExpression: The expression cannot be read, or is too long.
    """
    return words.literal(text) if is_name(text) else _Reader(words, text).read()


def check_expression(text: str) -> None:
    """Raises BadExpression if the expression cannot be read or matches no name."""
    words = LanguageTable()
    if language(words, text) in (words.never, words.empty):
        raise BadExpression("matches no name; names consist of letters, digits, '.', '_' and '-'")


class AnyOf:
    """Whether a text matches one of some entries. For consumer groups and headers, which may have any
    character.

    An entry is a name as in a list of topics. Any other entry is an RE2 expression for the whole text.

    Raises:
        BadExpression: RE2 cannot read an entry.
    """

    _MAX_CACHED = 10_000

    def __init__(self, entries: Iterable[str]) -> None:
        listed = list(entries)
        self._names = frozenset(filter(is_name, listed))
        options = re2.Options()
        options.log_errors = False
        try:
            self._expressions = [re2.compile(entry, options) for entry in listed if not is_name(entry)]
        except re2.error as error:
            reason = error.args[0] if error.args else b""
            words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise BadExpression(
                f"RE2 cannot read the expression: {words}; write one like 'billing-.*'"
            ) from None
        self._cache: dict[str, bool] = {}

    def __call__(self, text: str) -> bool:
        known = self._cache.get(text)
        if known is None:
            if len(self._cache) >= self._MAX_CACHED:  # producers choose the names of headers
                self._cache.clear()
            known = text in self._names or any(e.fullmatch(text) is not None for e in self._expressions)
            self._cache[text] = known
        return known


class _Reader:
    """Recursive descent over one expression."""

    def __init__(self, words: LanguageTable, text: str) -> None:
        if len(text) > MAX_EXPRESSION_CHARS:
            raise BadExpression(f"longer than {MAX_EXPRESSION_CHARS} characters; split it into several")
        self._words = words
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> Language:
        node, _ = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("there is one ')' too many", "remove it, or write \\)")
        return node

    def _wrong(self, what: str, remedy: str) -> BadExpression:
        return BadExpression(f"at character {self._at + 1}: {what}; {remedy}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> tuple[Language, int]:
        """The language up to a ')' or the end, and its number of atoms."""
        found, atoms = [], 0
        while True:
            node, more = self._sequence()
            found.append(node)
            atoms += more
            if self._next() != "|":
                return self._words.either(*found), atoms
            self._at += 1

    def _sequence(self) -> tuple[Language, int]:
        parts, atoms = [], 0
        if self._next() == "^" and not self._depth:
            self._at += 1
        while (letter := self._next()) not in {"", "|", ")"}:
            if letter == "$" and not self._depth and self._text[self._at + 1 : self._at + 2] in {"", "|"}:
                self._at += 1
                break
            node, more = self._repeated()
            parts.append(node)
            atoms += more
            if atoms > MAX_ATOMS:
                raise BadExpression("too long with its repetitions written out; repeat less often")
        return self._words.cat(*parts), atoms

    def _repeated(self) -> tuple[Language, int]:
        node, atoms = self._atom()
        low, high = self._count()
        times = max(1, low if high is None else high)
        if atoms * times > MAX_ATOMS:
            raise self._wrong("too long with its repetitions written out", "repeat less often")
        words = self._words
        if high is None:
            return words.cat(*[node] * low, words.star(node)), atoms * (low + 1)
        optional = words.either(node, words.empty)
        return words.cat(*[node] * low, *[optional] * (high - low)), atoms * times

    def _count(self) -> tuple[int, int | None]:
        """The repetitions: at least, and at most (None: any number)."""
        letter = self._next()
        if letter in {"*", "+", "?"}:
            self._at += 1
            found: tuple[int, int | None] = (int(letter == "+"), 1 if letter == "?" else None)
        elif letter == "{":
            count = _COUNT.match(self._text, self._at)
            low = int(count[1]) if count else 0
            high = low if count and count[2] is None else int(count[3]) if count and count[3] else None
            if not count or max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
                raise self._wrong(
                    "this repetition is not supported", f"write {{2}} or {{2,5}}, at most {MAX_REPEAT}"
                )
            self._at = count.end()
            found = (low, high)
        else:
            return 1, 1
        if self._next() == "?":  # a lazy repetition matches the same names
            self._at += 1
        if self._next() in {"*", "+", "?", "{"}:
            raise self._wrong("a repetition repeats another one", "put the first one into brackets")
        return found

    def _atom(self) -> tuple[Language, int]:
        letter = self._next()
        if letter == "(":
            return self._group()
        if letter in {"*", "+", "?", "{"}:
            remedy = "write .* for any text" if letter == "*" else f"write \\{letter} for the character"
            raise self._wrong(f"{letter!r} has nothing to repeat", remedy)
        if letter in {"^", "$"}:
            raise self._wrong("expressions always match the whole name", f"leave {letter} out")
        self._at += 1
        if letter == ".":
            return self._words.chars(ALL), 1
        if letter == "[":
            return self._words.chars(self._class()), 1
        if letter == "\\":
            escaped = self._escaped()
            return self._words.chars(escaped if isinstance(escaped, int) else BIT.get(escaped, 0)), 1
        return self._words.chars(BIT.get(letter, 0)), 1

    def _group(self) -> tuple[Language, int]:
        self._at += 1
        if self._next() == "?":
            if not self._text.startswith("?:", self._at):
                raise self._wrong("this kind of group is not supported", "write (...) or (?:...)")
            self._at += 2
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong("groups are nested too deeply", f"use at most {MAX_DEPTH} levels")
        found = self._alternatives()
        self._depth -= 1
        if self._next() != ")":
            raise self._wrong("a '(' is not closed", "add ')', or write \\(")
        self._at += 1
        return found

    def _escaped(self) -> int | str:
        """The set that the escape stands for, or the literal character."""
        letter = self._next()
        if letter in _ESCAPED:
            self._at += 1
            return _ESCAPED[letter]
        if not letter or not letter.isascii() or letter.isalnum():
            raise self._wrong(f"\\{letter} is not supported", "known: \\d \\w \\s \\D \\W \\S and \\.")
        self._at += 1
        return letter

    def _class(self) -> int:
        negated = self._next() == "^"
        self._at += negated
        letters, first = 0, True
        while first or self._next() != "]":
            first = False
            low = self._class_item()
            if isinstance(low, int):
                letters |= low
                continue
            high = low
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                item = self._class_item()
                if isinstance(item, int) or item < low:
                    raise self._wrong("this is no range", "write one like a-z")
                high = item
            letters |= _set_of("".join(letter for letter in BIT if low <= letter <= high))
        self._at += 1
        return ALL ^ letters if negated else letters

    def _class_item(self) -> int | str:
        letter = self._next()
        if not letter:
            raise self._wrong("a '[' is not closed", "add ']', or write \\[")
        if self._text.startswith("[:", self._at):
            raise self._wrong("[: is not supported", "write a-z, \\d or \\w")
        self._at += 1
        return self._escaped() if letter == "\\" else letter
