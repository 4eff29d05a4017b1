"""A console over a runtime that tests feed by hand."""

from __future__ import annotations

from tests.web.conftest import browse, console

__all__ = ["browse", "console"]
