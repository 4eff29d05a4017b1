"""Markdown for the pages of the reference: text from the code, escaped, and tables of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+[^`]*`+)")


def escaped(text: str) -> str:
    """Text on one line, for a cell or a paragraph; text in backquotes stays code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if at % 2 else _plain(part) for at, part in enumerate(parts)).replace("|", r"\|")


def _plain(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*\\]|\b_|_\b)", r"\\\1", text)


def code(text: object) -> str:
    """`text` as code, or "" if it is empty."""
    return f"`{text}`".replace("|", r"\|") if str(text) else ""


def prose(docstring: str | None) -> str:
    """A docstring as paragraphs, or "" without one."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(escaped(one).replace(r"\|", "|") for one in paragraphs)


def sentence(docstring: str | None) -> str:
    """A docstring's first sentence, for a cell."""
    first = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return escaped(re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(first.split()))[0])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table without its empty columns; no lines without rows."""
    found = [list(row) for row in rows]
    if not found:
        return []
    kept = [at for at in range(len(head)) if any(row[at] for row in found)]
    lines = [[head[at] for at in kept], ["---"] * len(kept), *([row[at] for at in kept] for row in found)]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]
