"""The library's errors. `AuditError` comes from the constructor and `start`; later errors are logged only."""

from __future__ import annotations


class AuditError(Exception):
    """The audit cannot start: names the argument, its value and the remedy."""


class Refused(Exception):
    """The receiver of an output will never accept these reports. Outputs raise it; the audit logs it."""


class NotPassed(Exception):
    """A limit before the receiver, such as a proxy's, stopped these reports; fewer of them may pass."""


class FolderTaken(AuditError):
    """Another process uses the folder of a write-ahead log."""
