"""A query that chooses dead letters: every given condition must hold.

    reason         text that the reason contains, in any case; between slashes a regular expression
    code           one of these status names
    since, until   when it was moved to the DLQ: [since, until)
    key            the whole key, as text or base64:...
    attempt_min    at least this many deliveries
    partition      one of these

Regular expressions are RE2's, whose time grows with the text but not with the pattern. Users write the
patterns, and receivers the text, so a backtracking engine could stop the worker's event loop.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import orjson
import re2  # type: ignore[import-untyped]  # it has no types

from app.dispatch.dlq.letter import DeadLetter
from app.kernel.durations import parse_duration
from app.kernel.json_types import JsonObject

MAX_TEXT_CHARS = 500
MAX_QUERY_BYTES = 3000  # it is stored in a commit's metadata, which Kafka limits to 4096 bytes
MAX_ITEMS = 32
MAX_NUMBER = 10**15
REGEX_MEMORY_BYTES = 1 << 20

_CODE = re.compile(r"[A-Za-z0-9_]{1,40}")


class BadQuery(ValueError):
    """A condition that cannot be used; the message names it and the remedy."""


@dataclass(frozen=True)
class LetterQuery:
    """The conditions; None and () set none."""

    reason: str | None = None
    code: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    attempt_min: int | None = None
    partition: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("reason", "key"):
            text = getattr(self, name)
            if text is not None and (
                not isinstance(text, str) or len(text.encode(errors="replace")) > MAX_TEXT_CHARS
            ):
                raise BadQuery(f"{name}: must be text of at most {MAX_TEXT_CHARS} bytes")
        for name in ("code", "partition"):
            if len(getattr(self, name)) > MAX_ITEMS:
                raise BadQuery(f"{name}: name at most {MAX_ITEMS}")
        for code in self.code:
            if not isinstance(code, str) or not _CODE.fullmatch(code):
                raise BadQuery(f"code: {str(code)[:60]!r} is not a status name; write one such as INTERNAL")
        for name in ("since_ms", "until_ms", "attempt_min"):
            _check_number(name, getattr(self, name))
        for partition in self.partition:
            _check_number("partition", partition)
        _ = self._reason, self._key  # raises BadQuery now, not at the first letter
        if len(orjson.dumps(self.to_json())) > MAX_QUERY_BYTES:
            raise BadQuery(f"the query has more than {MAX_QUERY_BYTES} bytes as JSON; use fewer conditions")

    @property
    def everything(self) -> bool:
        return self == LetterQuery()

    def holds(self, letter: DeadLetter) -> bool:
        return (
            (not self.partition or letter.partition in self.partition)
            and (not self.code or letter.code.upper() in self._codes)
            and (self.since_ms is None or letter.moved_ms >= self.since_ms)
            and (self.until_ms is None or letter.moved_ms < self.until_ms)
            and (self.attempt_min is None or letter.attempt >= self.attempt_min)
            and (self.key is None or letter.key == self._key)
            and (self.reason is None or self._reason(letter.reason))
        )

    @cached_property
    def _codes(self) -> frozenset[str]:
        return frozenset(code.upper() for code in self.code)

    @cached_property
    def _key(self) -> bytes:
        text = self.key or ""
        if not text.startswith("base64:"):
            return text.encode("utf-8", "surrogateescape")
        try:
            return base64.b64decode(text.removeprefix("base64:"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadQuery(f"key: not base64: {error}; write base64:AAE= or plain text") from error

    @cached_property
    def _reason(self) -> Callable[[str], bool]:
        text = self.reason or ""
        if not (len(text) > 1 and text.startswith("/") and text.endswith("/")):
            wanted = text.casefold()
            return lambda reason: wanted in reason.casefold()
        options = re2.Options()
        options.case_sensitive = False
        options.log_errors = False
        options.max_mem = REGEX_MEMORY_BYTES
        try:
            compiled = re2.compile(text[1:-1], options)
        except re2.error as error:
            cause = error.args[0] if error.args else error
            words = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
            raise BadQuery(
                f"reason: RE2 cannot read the expression: {words}; write one like /timeout/"
            ) from error
        return lambda reason: compiled.search(reason) is not None

    def to_json(self) -> JsonObject:
        """The given conditions; `from_json` reads them."""
        conditions = {
            "reason": self.reason,
            "code": list(self.code),
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "key": self.key,
            "attempt_min": self.attempt_min,
            "partition": list(self.partition),
        }
        return {name: value for name, value in conditions.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, data: object) -> LetterQuery:
        """Raises BadQuery, also for an unknown condition, without which the query would choose too much."""
        if not isinstance(data, Mapping):
            raise BadQuery("the query must be an object of conditions")
        known = {"reason", "code", "since_ms", "until_ms", "key", "attempt_min", "partition"}
        if unknown := sorted(map(str, set(data) - known)):
            raise BadQuery(f"{unknown[0][:60]}: no such condition; use one of {', '.join(sorted(known))}")
        values = dict(data)
        for name in ("code", "partition"):
            value = values.get(name, ())
            if not isinstance(value, list | tuple):
                raise BadQuery(f"{name}: must be a list")
            values[name] = tuple(value)
        return cls(**values)


def _check_number(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and 0 <= value <= MAX_NUMBER):
        raise BadQuery(f"{name}: must be a whole number of at least 0")


def parse_when(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, from a duration before now ("2h"), ISO 8601 (default UTC) or milliseconds.

    Raises:
        BadQuery: The text is none of them.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and 11 <= len(text) <= 15:
        return int(text)
    try:
        return max(0, now_ms - round(parse_duration(text) * 1000))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0, round(at.timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise BadQuery(
            f"{text[:60]!r} is not a time; write 2h (ago), 2026-01-31T12:00 or milliseconds since 1970"
        ) from error
