"""What the library raises, all of it before anything is counted: afterwards it logs."""

from __future__ import annotations


class AuditError(Exception):
    """The audit cannot begin: names the argument, its value and the remedy."""


class Refused(Exception):
    """An output's receiver will never take these reports; raised by outputs, told in the log."""
