"""Chooses the record headers that a receiver gets, by the allow and deny lists of a workload's definition.

A header passes if `allow` has its name (or is absent) and `deny` does not. An entry is a name, or a prefix
with a `*`. Case does not count, because gRPC metadata is in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.dispatch.model.retry_headers import Header

MAX_CACHED_NAMES = 10_000  # producers can invent any number


class _Patterns:
    __slots__ = ("_names", "_prefixes")

    def __init__(self, entries: Iterable[str]) -> None:
        lower = [entry.lower() for entry in entries]
        self._names = frozenset(entry for entry in lower if not entry.endswith("*"))
        self._prefixes = tuple(entry[:-1] for entry in lower if entry.endswith("*"))

    def match(self, name: str) -> bool:
        return name in self._names or name.startswith(self._prefixes)


class HeaderFilter:
    """`allow` None: every name; empty: no name."""

    __slots__ = ("_allow", "_deny", "_known")

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str] = ()) -> None:
        self._allow = None if allow is None else _Patterns(allow)
        self._deny = _Patterns(deny)
        self._known: dict[str, bool] = {}

    def passes(self, name: str) -> bool:
        found = self._known.get(name)
        if found is None:
            lower = name.lower()
            found = (self._allow is None or self._allow.match(lower)) and not self._deny.match(lower)
            if len(self._known) < MAX_CACHED_NAMES:
                self._known[name] = found
        return found

    def of(self, headers: Sequence[Header]) -> list[Header]:
        return [header for header in headers if self.passes(header[0])]
