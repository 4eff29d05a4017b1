"""A console over a runtime whose events the test writes."""

from __future__ import annotations

from tests.web.conftest import browse, console

__all__ = ["browse", "console"]
