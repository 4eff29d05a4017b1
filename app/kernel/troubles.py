"""The troubles of a job. Each source of troubles replaces and withdraws only its own."""

from __future__ import annotations

from enum import StrEnum

FETCH_TROUBLE = "fetch: "  # how the words of a `FETCH` trouble begin


class TroubleSource(StrEnum):
    """What found a trouble. Of several troubles, the status shows that of the first source in this order."""

    COPY = "copy"  # no topic takes the job's copies
    FETCH = "fetch"
    COMMIT = "commit"
    REPORT = "report"  # the audit topic takes no reports
    POSTPONED = "postponed"  # a message that waits for its time fills the tracker or the memory
    PAUSE = "pause"  # the job pauses, but not for an operator
    FAULT = "fault"  # a fault of Switchyard's own; it stays until the job starts again, so it comes last


_ORDER = tuple(TroubleSource)


class Troubles:
    """At most one trouble of each source, in words for people."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words: dict[TroubleSource, str] = {}

    def show(self, source: TroubleSource, words: str) -> None:
        """Replaces the source's trouble; "" withdraws it."""
        if words:
            self._words[source] = words
        else:
            self._words.pop(source, None)

    def of(self, source: TroubleSource) -> str:
        """The source's trouble; "": it has none."""
        return self._words.get(source, "")

    @property
    def source(self) -> TroubleSource | None:
        """The source of the trouble that the status shows; None: there is no trouble."""
        return next((source for source in _ORDER if source in self._words), None) if self._words else None

    @property
    def words(self) -> str:
        """The trouble that the status shows; "": there is none."""
        source = self.source
        return "" if source is None else self._words[source]
