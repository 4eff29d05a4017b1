"""Recognises the answer of an ingress, or of another HTTP server, in place of the receiver's.

It has an HTTP status and no gRPC status, of which C core makes a gRPC status (gRPC's
http-grpc-status-mapping). It says nothing about the message, so the receiver counts as absent. Otherwise an
ingress without the route would flush a topic into the DLQ. Statuses for a request that is malformed, too
large or the cause of a fault are excepted, because they may be about the message.
"""

from __future__ import annotations

import re

ABOUT_THE_MESSAGE = {400, 413, 414, 422, 431, 500}
TOO_MANY_REQUESTS, SERVER_ERRORS = 429, 500

_ANSWER = re.compile(r"Received http2 header with status: (\d{1,3})$")


def answer_words(status: int) -> str:
    """C core's words for such an answer; 0: it had no HTTP status either."""
    return f"Received http2 header with status: {status}"


def why_no_receiver(details: str) -> str:
    """Why no receiver answered, by C core's words; "": a receiver did, or it may be about the message."""
    found = _ANSWER.match(details)
    if found is None or (status := int(found[1])) in ABOUT_THE_MESSAGE:
        return ""
    remedy = "check spec.target.address, and the routes of an ingress in front of the receiver"
    if status == TOO_MANY_REQUESTS or status >= SERVER_ERRORS:
        remedy = "the receiver behind it is away or overloaded"
    return f"an HTTP server without gRPC answered {status or 'no status'}; {remedy}"
