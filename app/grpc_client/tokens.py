"""Tokens by name, for metadata, from files that may change.

A token that changes counts for every later call. While its new content is wrong, the former stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from app.grpc_client.small_files import read_file

MAX_TOKEN_BYTES = 4 * 1024  # by default, servers take 8 KB of metadata in all
_TOKEN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class TokenFile(NamedTuple):
    """`path`: of a file with one line of printable text. `users`: who may use it."""

    path: str
    users: Collection[str]


class Tokens:
    """All tokens of a process.

    Args:
        files: By name.
        place: Where people add more, and what they do then, for errors.

    Attributes:
        problems: Name -> what is wrong with its file now, with the remedy.
        version: Changes with any of them.
    """

    def __init__(
        self, files: Mapping[str, TokenFile] | None = None, place: str = "the configuration"
    ) -> None:
        self._files = dict(files or {})
        self._place = place
        self._found: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.version = 0

    def load(self) -> None:
        """Reads all files. It blocks, so it is for a thread."""
        for name, (path, _) in self._files.items():
            try:
                token = _token(path)
            except ValueError as error:
                self.problems[name] = str(error)
                continue
            self.problems.pop(name, None)
            if self._found.get(name) != token:
                self._found[name] = token
                self.version += 1

    def check(self, name: str, user: str) -> None:
        """Raises ValueError: there is none of this name, it is not for this user, or its file was wrong from
        the start; with the remedy."""
        if name not in self._files:
            raise ValueError(f"there is no token {name!r}; add it to {self._place}")
        if user not in self._files[name].users:
            raise ValueError(f"token {name!r} is not for {user}; add it to its groups in {self._place}")
        if name not in self._found:
            raise ValueError(f"token {name!r}: {self.problems.get(name, 'it is not read yet')}")

    def __getitem__(self, name: str) -> str:
        """Raises KeyError: `check` would raise."""
        return self._found[name]


def _token(path: str) -> str:
    """Raises ValueError: with the path and the remedy."""
    text = (read_file("file", path) or b"").strip().decode("latin-1")
    if not _TOKEN.fullmatch(text) or len(text) > MAX_TOKEN_BYTES:
        limit = f"one line of 1 to {MAX_TOKEN_BYTES:,} printable ASCII letters"
        raise ValueError(f"file {path}: it has no token; write {limit} into it")
    return text
