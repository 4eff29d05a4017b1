"""CSV cells that are safe to open in a spreadsheet: text from other people must not become a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def text_cell(text: str) -> str:
    """The text, with an apostrophe in front where a spreadsheet would read a formula (OWASP, CSV
    injection)."""
    return f"'{text}" if text.startswith(FORMULA) else text
