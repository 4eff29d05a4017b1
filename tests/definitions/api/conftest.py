"""The console over a fake runtime."""

from __future__ import annotations

from tests.web.conftest import browse, console

__all__ = ["browse", "console"]
