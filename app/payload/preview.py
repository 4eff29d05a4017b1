"""A value's preview for people: decoded if possible, safe to show, and bounded.

Rules
1. The text holds no control or formatting characters (Unicode C*, Zl, Zp). They become escapes, so that a
   value can neither move a terminal's cursor nor reverse its line.
2. The text has at most `limit` characters. `truncated` says whether some are missing.
3. If the codec refuses a value, the preview shows what its bytes look like, with the codec's `problem`.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from enum import StrEnum

import orjson

from app.payload.codec import PayloadCodec
from app.payload.parser import InvalidPayload

LIMIT_CHARS = 4096
MAX_JSON_BYTES = 1024 * 1024  # a larger value counts as text, without parsing it
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class PreviewKind(StrEnum):
    """The form of a value, or its likely form."""

    NULL = "null"
    EMPTY = "empty"
    TEXT = "text"
    JSON = "json"
    PROTOBUF = "protobuf"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Preview:
    """A value to show.

    Attributes:
        text: The value (text, json), its JSON (protobuf), its bytes in hexadecimal (binary), or "".
        truncated: Whether `text` lacks a part of the value.
        message: The full name of the Protobuf message; "" for other kinds.
        problem: The codec's reason for its refusal; "" without one.
    """

    kind: PreviewKind
    text: str
    truncated: bool
    size_bytes: int
    message: str = ""
    problem: str = ""


def preview(value: bytes | None, codec: PayloadCodec | None = None, limit: int = LIMIT_CHARS) -> Preview:
    """The preview of a record's value, with at most `limit` (at least 1) characters of text."""
    if value is None:
        return Preview(PreviewKind.NULL, "", truncated=False, size_bytes=0)
    size = len(value)
    problem = ""
    if codec is not None:
        try:
            name, written = codec.to_named_json(value)
        except InvalidPayload as error:
            problem, _ = safe_text(str(error), limit)
        else:
            # The cut may fall into a character, whose first bytes are then dropped.
            shown, cut = safe_text(written[: limit * 4].decode("utf-8", "ignore"), limit)
            return Preview(PreviewKind.PROTOBUF, shown, cut or len(written) > limit * 4, size, name)
    if not value:
        return Preview(PreviewKind.EMPTY, "", truncated=False, size_bytes=0, problem=problem)
    piece = value[: limit * 4]  # a character has at most 4 bytes
    try:
        text, _ = codecs.utf_8_decode(piece, "strict", len(piece) == size)
    except UnicodeDecodeError:
        text = None
    if text is None or not _is_text(text):
        shown = value[: limit // 3 + 1].hex(" ")[:limit]
        return Preview(PreviewKind.BINARY, shown, len(shown) < size * 3 - 1, size, problem=problem)
    kind = PreviewKind.JSON if _is_json(value) else PreviewKind.TEXT
    shown, cut = safe_text(text, limit)
    return Preview(kind, shown, cut or len(piece) < size, size, problem=problem)


def safe_text(text: str, limit: int) -> tuple[str, bool]:
    """(at most `limit` characters of the text, made safe to show; whether some are missing)"""
    cut = len(text) > limit
    text = text[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
        cut = cut or len(text) > limit
    return text[:limit], cut


def _escape(char: str) -> str:
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{{{code:x}}}")


_BINARY_CONTROLS = re.compile(
    r"[\x00-\x08\x0e-\x1a\x1c-\x1f]"
)  # text has none of them; \x1b colours some text


def _is_text(text: str) -> bool:
    return _BINARY_CONTROLS.search(text) is None


def _is_json(value: bytes) -> bool:
    if len(value) > MAX_JSON_BYTES or value.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True
