"""The types of the API's answers about dead letters; see `app.web.http.schemas`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from app.kernel.json_types import JsonObject
from app.web.http.schemas import Spans


class QueuePartition(TypedDict):
    """Offsets [start, end)."""

    partition: int
    start: int | None
    end: int | None


class Queue(TypedDict):
    """The size of a dead letter queue."""

    topic: str
    enabled: bool
    exists: bool
    partitions: list[QueuePartition]
    messages: int | None


class Origin(TypedDict):
    """Where the message was first produced, according to its headers."""

    topic: str | None
    partition: str | None
    offset: str | None
    timestamp_ms: str | None


Header = Annotated[list[Any], Meta(min_length=2, max_length=2)]  # name and value


class Piece(TypedDict):
    """Bytes, as text if they are UTF-8, cut to a limit. `bytes` is the full size."""

    bytes: int
    text: NotRequired[str]
    base64: NotRequired[str]


class Found(TypedDict):
    """A dead letter in a list. `left_out_bytes`, `left_out_key_bytes`: sizes of a missing value or key, or
    null."""

    partition: int
    offset: int
    at_ms: int
    reason: str | None
    code: str | None
    attempt: str | None
    merges: str | None
    origin: Origin
    key: Piece | None
    value: Piece | None
    left_out_bytes: int | None
    left_out_key_bytes: int | None
    headers: list[Header]


class FoundPage(TypedDict):
    """Dead letters, the newest first. A search is timed, so a page may be short or empty though there is a
    `next`."""

    topic: str
    items: list[Found]
    next: str | None


# Bytes in readable form: `shown` is text, lines of hexadecimal, or the value of the JSON.
Preview = TypedDict(
    "Preview", {"bytes": int, "cut": bool, "as": Literal["json", "text", "hex"], "shown": Any}
)


class Letter(TypedDict):
    """A dead letter with everything in it. `raw_batch`: it is a batch that could not be decoded.
    `left_out_bytes` and `left_out_key_bytes`: sizes of a value and a key that the letter does not contain;
    null: it contains them.
    """

    partition: int
    offset: int
    timestamp_ms: int
    moved_ms: int
    code: str
    reason: str
    attempt: int
    merges: int
    raw_batch: bool
    left_out_bytes: int | None
    left_out_key_bytes: int | None
    origin: Origin
    key: Preview | None
    value: Preview | None
    headers: list[Header]
    more_headers: int


class Stats(TypedDict):
    """Counts of the letters `looked_at`; `complete`: these are all. `hours` are [begin in ms, letters]."""

    topic: str
    looked_at: int
    of: int
    complete: bool
    letters: int
    value_bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    merged_before: int
    codes: dict[str, int]
    hours: Spans


class Bounds(TypedDict):
    """Offsets [start, end)."""

    start: int
    end: int


class Foreseen(TypedDict):
    """The forecast of a merge, or of a purge by query; `partitions` are the `ranges` to run it with."""

    topic: str
    looked_at: int
    of: int
    complete: bool
    kind: Literal["merge", "purge"]
    reasons: dict[str, int]
    front: int | None
    counts: dict[str, int]
    partitions: dict[str, Bounds]
    unfinished: list[str]


class ForeseenPurge(TypedDict):
    """The forecast of a purge by bounds; `partitions` are the `ranges` to run it with."""

    topic: str
    offsets: int
    partitions: dict[str, Bounds]
    unfinished: list[str]


class Part(TypedDict):
    """Offsets [start, end), of which those below `next` were examined."""

    start: int
    next: int
    end: int


class Merge(TypedDict):
    """A merge, or a purge by query, that is on record."""

    operation: str
    kind: Literal["merge", "purge"]
    done: bool
    looked_at: int
    of: int
    counts: dict[str, int]
    query: JsonObject
    max_merges: int
    partitions: dict[str, Part]
