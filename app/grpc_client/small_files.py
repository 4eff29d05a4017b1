"""Reads files of settings, which may be wrong, without an end, or not files at all."""

from __future__ import annotations

import stat
from pathlib import Path

MAX_BYTES = 1024 * 1024  # of a file


def read_file(setting: str, path: str | None) -> bytes | None:
    """Its content; None: the setting names no file. Raises ValueError: with the setting, its path and the
    remedy."""
    if path is None:
        return None
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # reading a pipe might never end
            raise ValueError("it is no file")
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{setting} {path}: {error.strerror}; check the path and its permissions") from error
    except ValueError as error:
        raise ValueError(f"{setting} {path!r}: {error}; name a readable file") from error
    if len(content) > MAX_BYTES:
        raise ValueError(f"{setting} {path}: it has more than {MAX_BYTES:,} bytes; name a readable file")
    return content
