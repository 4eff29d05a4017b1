"""What can go wrong in the yard, each with the exit code of the command line.

YardError                    1  a broker did not start, did not stop
├── UnknownClusterError      4  no cluster of that name
├── MissingJavaError         5  no Java 17 or newer
├── PortTakenError           5  a port that was asked for is in use
├── YardTimeoutError         7  a broker, or another process at work, took longer than it may
└── FetchError               7  Kafka is not here and could not be fetched
"""

from __future__ import annotations


class YardError(Exception):
    """The yard could not do what was asked; the text says why and what to do."""

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
