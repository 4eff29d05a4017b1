"""Errors of the yard, each with the command line's exit code.

YardError                    1  a broker did not start or stop
├── UnknownClusterError      4  no cluster has that name
├── MissingJavaError         5  no Java 17 or newer
├── PortTakenError           5  a requested port is in use
├── YardTimeoutError         7  a broker, or another process, took too long
└── FetchError               7  Kafka is not here and could not be fetched
"""

from __future__ import annotations


class YardError(Exception):
    """The command failed; the text says why and what to do."""

    exit_code = 1


class MissingJavaError(YardError):
    exit_code = 5


class PortTakenError(YardError):
    exit_code = 5


class UnknownClusterError(YardError):
    exit_code = 4


class YardTimeoutError(YardError):
    exit_code = 7


class FetchError(YardError):
    exit_code = 7
