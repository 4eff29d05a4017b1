"""The pages of docs/reference, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.reference import cli, headers, incidents, metrics, models, rest, topics

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], list[str]]] = {
    "definitions.md": models.definitions,
    "settings.md": models.settings,
    "cli.md": cli.page,
    "rest.md": rest.page,
    "metrics.md": metrics.page,
    "incidents.md": incidents.page,
    "control-topics.md": topics.page,
    "headers.md": headers.page,
}
NOTE = "<!-- `python -m tests.reference` writes this page from the code. -->"


def text(name: str) -> str:
    """A page, in Markdown."""
    title, *lines = PAGES[name]()
    return "\n".join([title, "", NOTE, "", *lines]).rstrip("\n") + "\n"


def write() -> None:
    """Writes every page."""
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(text(name))


def stale() -> list[str]:
    """Pages that differ from the code, and files that are no page."""
    found = {file.name for file in FOLDER.iterdir()}
    others = found - PAGES.keys()
    return sorted(others | {n for n in PAGES if n not in found or (FOLDER / n).read_text() != text(n)})
