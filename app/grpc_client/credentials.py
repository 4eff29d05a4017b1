"""Credentials by name: what clients trust and show by TLS, from PEM files that may change, and tokens.

A file that changes counts for every later connection. While its new content is wrong, the former stays.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.grpc_client.small_files import read_file
from app.grpc_client.tls import tls_context
from app.grpc_client.tokens import Tokens

SYSTEM = ""  # the name for the system's authorities, without a certificate of the client's
_NAMES = {"roots": "ca", "certificate": "cert", "key": "key"}  # of `tls_context`, and here


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Paths of PEM files.

    Attributes:
        ca: Authorities to trust; None: the system's.
        cert, key: The client's own; None: it shows none.
        users: Who may use them; empty: everybody.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pem:
    """The content of `PemFiles`. `ca`: the system's authorities if there is no file of one's own; None: the
    system has no such file."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class Credentials:
    """All credentials of a process.

    Args:
        files: By name.
        place: Where people add more, and what they do then, for errors.
        tokens: For metadata; they are loaded too.

    Attributes:
        problems: Name -> what is wrong with its files now, with the remedy.
    """

    def __init__(
        self,
        files: Mapping[str, PemFiles] | None = None,
        place: str = "the configuration",
        tokens: Tokens | None = None,
    ) -> None:
        self._files = {SYSTEM: PemFiles(), **(files or {})}
        self._place = place
        self.tokens = tokens or Tokens()
        self._found: dict[str, tuple[Pem, ssl.SSLContext]] = {}
        self.problems: dict[str, str] = {}

    def load(self) -> None:
        """Reads all files, and makes contexts of those that changed. It blocks, so it is for a thread."""
        self.tokens.load()
        for name, files in self._files.items():
            try:
                pem = _read(files)
                if name not in self._found or self._found[name][0] != pem:
                    self._found[name] = pem, _context(files, pem)
            except ValueError as error:
                self.problems[name] = str(error)
            else:
                self.problems.pop(name, None)

    def check(self, name: str, user: str) -> None:
        """Raises ValueError: there are none of this name, they are not for this user, or their files were
        wrong from the start; with the remedy."""
        if name not in self._files:
            raise ValueError(f"there are no {shown(name)}; add them to {self._place}")
        users = self._files[name].users
        if users and user not in users:
            raise ValueError(f"{shown(name)} are not for {user}; add it to them in {self._place}")
        if name not in self._found:
            raise ValueError(f"{shown(name)}: {self.problems.get(name, 'they are not read yet')}")

    def context(self, name: str) -> ssl.SSLContext:
        """For one more connection. Raises KeyError: `check` would raise."""
        return self._found[name][1]

    def pem(self, name: str) -> Pem:
        """The content of the files. Raises KeyError: `check` would raise."""
        return self._found[name][0]


def shown(name: str) -> str:
    """The credentials of this name, for people."""
    return f"credentials {name!r}" if name != SYSTEM else "the system's authorities"


def _read(files: PemFiles) -> Pem:
    """Raises ValueError: with the setting, its path and the remedy."""
    ca = files.ca or ssl.get_default_verify_paths().cafile
    return Pem(read_file("ca", ca), read_file("cert", files.cert), read_file("key", files.key))


def _context(files: PemFiles, pem: Pem) -> ssl.SSLContext:
    """Raises ValueError: with the setting, its path and the remedy."""
    try:
        roots = None if files.ca is None else pem.ca
        return tls_context(roots=roots, certificate=pem.cert, key=pem.key)
    except ValueError as error:
        part, _, why = str(error).partition(": ")
        name = _NAMES.get(part, "cert")
        raise ValueError(f"{name} {getattr(files, name)}: {why}") from error
