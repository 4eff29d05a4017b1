"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(at_ms: int) -> str:
    """Formats a time as 2026-11-22T13:00:00Z."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
