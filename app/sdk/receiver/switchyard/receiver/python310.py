"""What Python 3.10 lacks: tasks that count how often they were cancelled."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


def is_being_cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether the task is to end, and not only something that its handler waits for.

    Python 3.10 cannot tell, and goes on: messages that wait for the task are handled before it ends.
    """
    return sys.version_info >= (3, 11) and task.cancelling() > 0


def keep_running(task: asyncio.Task[Any]) -> None:
    """Takes a cancellation back."""
    if sys.version_info >= (3, 11):
        task.uncancel()
