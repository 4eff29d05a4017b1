"""Parsed definitions of the control log; each is parsed once per change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from app.controllog.events import DefinitionPut
from app.kernel.incidents import IsOver
from app.kernel.json_types import JsonMapping

T = TypeVar("T")


class DefinitionCache(Generic[T]):
    """The definitions of one kind.

    Attributes:
        unreadable: By key, why a definition cannot be read. Deleted ones may stay.

    Args:
        puts: The definitions in the control log, by key.
        parse: Parses a key's definition; raises ValueError.
        report_incident: Takes a key, why its definition cannot be read, and whether it has changed since;
            called once per change.
    """

    def __init__(
        self,
        puts: Callable[[], Mapping[str, DefinitionPut]],
        parse: Callable[[str, JsonMapping], T],
        report_incident: Callable[[str, str, IsOver], None],
    ) -> None:
        self._puts = puts
        self._parse = parse
        self._report_incident = report_incident
        self._known: dict[str, tuple[str, T | None]] = {}
        self.unreadable: dict[str, str] = {}

    def has_changed(self, key: str) -> IsOver:
        """Whether the present definition of `key` has been replaced or deleted."""
        put = self._puts().get(key)
        etag = None if put is None else put.etag
        return lambda: (now := self._puts().get(key)) is None or now.etag != etag

    def get(self, key: str) -> T | None:
        """The definition of `key`; None when there is none.

        The last readable definition stays when the new one cannot be parsed: it was written past the API,
        or by a version with other rules.
        """
        put = self._puts().get(key)
        if put is None:
            self._known.pop(key, None)
            self.unreadable.pop(key, None)
            return None
        etag, found = self._known.get(key, ("", None))
        if etag != put.etag or key not in self._known:
            self.unreadable.pop(key, None)
            try:
                found = self._parse(key, put.definition)
            except ValueError as error:
                self.unreadable[key] = f"its definition cannot be read: {error}"
                self._report_incident(key, self.unreadable[key], self.has_changed(key))
            self._known[key] = put.etag, found
        return found
