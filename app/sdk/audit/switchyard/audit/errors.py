"""What the library raises, all of it before anything is counted: afterwards it logs."""

from __future__ import annotations


class AuditError(Exception):
    """The audit cannot begin: names the argument, its value and the remedy."""


class Refused(Exception):
    """An output's receiver says that it will never take these reports; raised by outputs, told in the log."""


class NotPassed(Exception):
    """Something before the receiver (a proxy's limit) did not let these reports pass; fewer of them may pass.
    Raised by outputs."""


class FolderTaken(AuditError):
    """Another process has the folder of a write-ahead log."""
