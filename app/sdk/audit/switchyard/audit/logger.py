"""The standard logger, and a logger of problems that repeats nothing."""

from __future__ import annotations

import logging

log = logging.getLogger("switchyard.audit")


class EpisodeLogger:
    """Logs each problem when it begins, and when it ends.

    Attributes:
        now: The current problems, each with its latest reason.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: dict[str, str] = {}

    def wrong(self, what: str, why: object) -> None:
        """The problem exists. A repetition, also with another reason, is not logged."""
        if what not in self.now:
            log.error("audit: %s: %s", what, why)
        self.now[what] = str(why)

    def right(self, what: str) -> None:
        """The problem has ended, if it existed."""
        if self.now.pop(what, None) is not None:
            log.warning("audit: %s: works again", what)
