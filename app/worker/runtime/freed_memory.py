"""A worker keeps freed memory for its next fetch, instead of giving it back to the kernel each time.

glibc maps large blocks one by one, and unmaps each when it is freed. A fetched megabyte then costs 256 page
faults for every copy of it, which is most of the CPU of large messages. See mallopt(3).
"""

from __future__ import annotations

import ctypes

# From glibc's malloc.h. A value of its own also ends the threshold's growth with what is freed.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
MAPPED_BYTES = 16 * 1024 * 1024  # larger blocks go back at once; an answer to a fetch is mostly smaller
KEPT_BYTES = 64 * 1024 * 1024  # what is free beyond it goes back


def keep() -> None:
    """Tells the C library so. One without mallopt, as musl or macOS's, stays as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
