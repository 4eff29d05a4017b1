"""A Kafka record, whoever read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Record(Protocol):
    """A decoded record (aiokafka's C object, a consumer's, or one that stands for it)."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
