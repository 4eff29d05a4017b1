"""A dead letter: a record of a DLQ with the fields of its `switchyard-` headers.

Headers are untrusted, so an unreadable one counts as absent.
"""

from __future__ import annotations

import base64
import codecs
from dataclasses import dataclass

import orjson

from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES, Header, ValuePlace
from app.kafka.records.record import PlacedRecord
from app.kernel.json_types import JsonObject

MAX_SHOWN_HEADERS = 200
MAX_PREVIEW_BYTES = 64 * 1024
HEX_LINE_BYTES = 16


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter; one that is `raw` is the bytes of a batch that could not be decoded, and not a message.

    Attributes:
        moved_ms: When the record was moved to the DLQ.
        merges: How often the message was merged.
        left_out_bytes: The length of a value that no topic accepted. Then `value` is None, not null.
        left_out_key_bytes: The same for the key; the producer's headers are left out with it.
        value_places: Records that may contain the missing value, key and headers.
    """

    partition: int
    offset: int
    timestamp_ms: int
    moved_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    reason: str
    code: str
    attempt: int
    merges: int
    raw: bool
    left_out_bytes: int | None = None
    left_out_key_bytes: int | None = None
    value_places: tuple[ValuePlace, ...] = ()

    def header_text(self, name: str) -> str | None:
        """The last value of the header, decoded."""
        for found, value in reversed(self.headers):
            if found == name and value is not None:
                return value.decode("utf-8", "replace")
        return None


def read_letter(record: PlacedRecord) -> DeadLetter:
    headers = tuple(record.headers)
    fields = {name: value for name, value in headers if name.startswith(names.PREFIX) and value is not None}
    value_bytes = _number(fields.get(names.VALUE_BYTES), -1) if record.value is None else -1
    key_bytes = _number(fields.get(names.KEY_BYTES), -1) if record.key is None and value_bytes >= 0 else -1
    return DeadLetter(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        moved_ms=_number(fields.get(names.MOVED_AT), record.timestamp),
        key=record.key,
        value=record.value,
        headers=headers,
        reason=fields.get(names.REASON, b"").decode("utf-8", "replace"),
        code=fields.get(names.CODE, b"").decode("utf-8", "replace"),
        attempt=_number(fields.get(names.ATTEMPT), 0),
        merges=_number(fields.get(MERGES), 0),
        raw=names.RAW_BATCH in fields,
        left_out_bytes=value_bytes if value_bytes >= 0 else None,
        left_out_key_bytes=key_bytes if key_bytes >= 0 else None,
        value_places=tuple(names.read_value_places(fields)) if value_bytes >= 0 else (),
    )


def _number(value: bytes | None, default: int) -> int:
    if not value or len(value) > 18 or not value.isdigit():
        return default
    return int(value)


def whole(data: bytes | None) -> dict[str, str] | None:
    """All of `data`: {"text"} if it is UTF-8, else {"base64"}; None for null. The inverse is `unwhole`."""
    if data is None:
        return None
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def unwhole(shown: dict[str, str] | None) -> bytes | None:
    if shown is None:
        return None
    return shown["text"].encode() if "text" in shown else base64.b64decode(shown["base64"])


def exported(letter: DeadLetter) -> JsonObject:
    """The letter as one line of an export, completely."""
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "moved_ms": letter.moved_ms,
        "code": letter.code,
        "reason": letter.reason,
        "attempt": letter.attempt,
        "merges": letter.merges,
        "raw_batch": letter.raw,
        "left_out_bytes": letter.left_out_bytes,
        "left_out_key_bytes": letter.left_out_key_bytes,
        "origin": origin(letter),
        "key": whole(letter.key),
        "value": whole(letter.value),
        "headers": [[name, whole(value)] for name, value in letter.headers],
    }


def origin(letter: DeadLetter) -> dict[str, str | None]:
    """The original record, according to the headers."""
    return {
        "topic": letter.header_text(names.ORIGIN_TOPIC),
        "partition": letter.header_text(names.ORIGIN_PARTITION),
        "offset": letter.header_text(names.ORIGIN_OFFSET),
        "timestamp_ms": letter.header_text(names.ORIGIN_TIMESTAMP),
    }


def described(letter: DeadLetter) -> JsonObject:
    """The letter for people: its headers, key and value as text, JSON or hexadecimal, each up to a limit."""
    return {
        **{k: v for k, v in exported(_without_bytes(letter)).items() if k not in {"key", "value", "headers"}},
        "key": preview(letter.key),
        "value": preview(letter.value),
        "headers": [[name[:200], preview(value, 4096)] for name, value in letter.headers[:MAX_SHOWN_HEADERS]],
        "more_headers": max(0, len(letter.headers) - MAX_SHOWN_HEADERS),
    }


def _without_bytes(letter: DeadLetter) -> DeadLetter:
    from dataclasses import replace

    return replace(letter, key=None, value=None)


def preview(data: bytes | None, max_bytes: int = MAX_PREVIEW_BYTES) -> JsonObject | None:
    """`data` for people: {"bytes", "as": "json"|"text"|"hex", "shown", "cut"}; None for null."""
    if data is None:
        return None
    piece = data[:max_bytes]
    cut = len(piece) < len(data)
    shown: JsonObject = {"bytes": len(data), "cut": cut}
    try:
        text, _ = codecs.utf_8_decode(piece, "strict", not cut)
    except UnicodeDecodeError:
        return shown | {
            "as": "hex",
            "shown": hex_lines(piece[: max_bytes // 4]),
            "cut": len(data) > max_bytes // 4,
        }
    if not cut and text[:1] in {"{", "["}:
        try:
            return shown | {"as": "json", "shown": orjson.loads(text)}
        except orjson.JSONDecodeError:
            pass
    return shown | {"as": "text", "shown": text}


def hex_lines(data: bytes) -> str:
    """Lines of offset, hexadecimal bytes and their printable ASCII characters."""
    lines = []
    for start in range(0, len(data), HEX_LINE_BYTES):
        piece = data[start : start + HEX_LINE_BYTES]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:08x}  {piece.hex(' '):<{3 * HEX_LINE_BYTES}} {plain}")
    return "\n".join(lines)
