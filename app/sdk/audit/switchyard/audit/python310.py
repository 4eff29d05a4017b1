"""Stands in for features that Python 3.10 lacks."""

from __future__ import annotations

import asyncio
import sys
from concurrent import futures

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

# One class since Python 3.11; three before it, of the operating system, asyncio and futures.
TIMEOUTS = (TimeoutError, asyncio.TimeoutError, futures.TimeoutError)

__all__ = ["TIMEOUTS", "timeout"]
