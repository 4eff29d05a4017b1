"""Times as they are written."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(at_ms: int) -> str:
    """For people and machines: 2026-11-22T13:00:00Z."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
