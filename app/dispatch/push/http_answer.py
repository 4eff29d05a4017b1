"""Recognises the answer of an ingress, or of another HTTP server, in place of the receiver's.

It has an HTTP status and no gRPC status, of which C core makes a gRPC status (gRPC's
http-grpc-status-mapping). It says nothing about the message, so the receiver counts as absent. Otherwise an
ingress without the route would flush a topic into the DLQ. Statuses for a request that is malformed, too
large or the cause of a fault are excepted, because they may be about the message.
"""

from __future__ import annotations

import re

ABOUT_THE_MESSAGE = {"400", "413", "414", "422", "431", "500"}

_ANSWER = re.compile(r"Received http2 header with status: (\d{3})$")


def why_no_receiver(details: str) -> str:
    """Why no receiver answered, in words; "": a receiver did, or the answer may be about the message."""
    found = _ANSWER.match(details)
    if found is None or found[1] in ABOUT_THE_MESSAGE:
        return ""
    remedy = "check spec.target.address, and the routes of an ingress in front of the receiver"
    if found[1] == "429" or found[1].startswith("5"):
        remedy = "the receiver behind it is away or overloaded"
    return f"an HTTP server without gRPC answered {found[1]}; {remedy}"
