"""The fixture `archive`: an empty archive."""

from __future__ import annotations

from tests.spark.conftest import archive

__all__ = ["archive"]
