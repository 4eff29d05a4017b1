"""Cells of CSV that spreadsheets may open: names and texts are others', and none may become a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def text_cell(text: str) -> str:
    """The text, with an apostrophe before what a spreadsheet would take for a formula (OWASP)."""
    return f"'{text}" if text.startswith(FORMULA) else text
