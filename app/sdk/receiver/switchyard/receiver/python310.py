"""Stands in for a feature that Python 3.10 lacks: tasks that count their cancellations."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


def is_being_cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether the task itself is cancelled, and not only something that its handler awaits.

    Python 3.10 cannot know, and says no: then the task handles the waiting messages before it ends.
    """
    return sys.version_info >= (3, 11) and task.cancelling() > 0


def keep_running(task: asyncio.Task[object]) -> None:
    """Withdraws a cancellation."""
    if sys.version_info >= (3, 11):
        task.uncancel()
