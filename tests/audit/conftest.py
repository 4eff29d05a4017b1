"""A client of the broker that all tests share."""

from __future__ import annotations

from tests.kafka.conftest import client

__all__ = ["client"]
