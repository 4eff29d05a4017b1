"""Seals of the audit topic's events: workers seal what they write, clients cannot.

Clients write into the same topic as workers, but some events count only from workers. These are reports about
clusters and Switchyard's own groups, closings of windows, and droppings of old ones. Such an event needs a
seal: a MAC of its bytes under a key that workers share (`app.kernel.seals`).
"""

from __future__ import annotations

import hmac

from app.audit.folds.tier import CloseWindows, ForgetWindows
from switchyard.audit.model.places import is_of_workers
from switchyard.audit.model.reports import BadReport, Report


def seal_of(key: bytes, value: bytes) -> bytes:
    return hmac.digest(key, value, "sha256")


def is_sealed(key: bytes, value: bytes, seal: bytes) -> bool:
    return hmac.compare_digest(seal_of(key, value), seal)


def check_author(event: object, *, is_worker: bool) -> None:
    """Raises BadReport: It is a client's event that only workers may write."""
    if is_worker:
        return
    if isinstance(event, CloseWindows | ForgetWindows):
        raise BadReport(
            f"{type(event).__name__} of {event.topic[:60]!r}: only workers close and drop windows"
        )
    if isinstance(event, Report) and is_of_workers(event.tier, event.cluster):
        raise BadReport(
            f"report of {event.topic[:60]!r} by {event.source[:60]!r}: tier {event.tier!r} of cluster "
            f"{event.cluster[:60]!r} is counted by workers; let the client use a tier of its own"
        )
