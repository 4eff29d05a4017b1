"""The standard logger, and a way to say what is wrong once, not with every record."""

from __future__ import annotations

import logging

log = logging.getLogger("switchyard.audit")


class EpisodeLogger:
    """Says what is wrong with each of several things when it begins, and when it ends.

    Attributes: `now`: what is wrong -> what was said of it.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: dict[str, str] = {}

    def wrong(self, what: str, why: object) -> None:
        """It is wrong now; that it still is, for another reason, is not said again."""
        if what not in self.now:
            log.error("audit: %s: %s", what, why)
        self.now[what] = str(why)

    def right(self, what: str) -> None:
        if self.now.pop(what, None) is not None:
            log.warning("audit: %s: works again", what)
