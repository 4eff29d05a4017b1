"""How much a receiver may say: Switchyard holds all of an answer in memory, and reads it in its event loop.

A receiver that says more has its call or its stream ended, and that is held against this receiver only.
"""

from __future__ import annotations

from switchyard.v1.receiver_pb2 import Results

# Twice gRPC's own limit for clients that set none. An answer is not looked at, but must be read to its end:
# without its status, what was acknowledged would be delivered again.
MAX_UNARY_BYTES = 8 * 1024 * 1024
MAX_STREAM_BYTES = 4 * 1024 * 1024  # twice what `switchyard.receiver.outcomes` says at once
MAX_RANGES = 100_000  # in a response: ten times the widest window; empty ones take two bytes each
RANGES_AT_ONCE = 500  # then others have their turn in the loop: a few milliseconds

ANSWER_WORDS = "the answer is too large"
REMEDY = (
    "let the receiver answer with less: nothing or a short message to a call, and the results of a stream in"
    " several responses"
)


class AnswerTooLarge(ValueError):
    """A response of a stream is beyond a bound."""


def ranges_in(results: Results) -> int:
    """How many ranges it has, of any kind.

    Raises:
        AnswerTooLarge: they are more than `MAX_RANGES`.
    """
    count = len(results.acknowledged) + len(results.skipped)
    count += len(results.retried) + len(results.stashed) + len(results.failed)
    if count > MAX_RANGES:
        raise AnswerTooLarge(
            f"{ANSWER_WORDS}: {count} ranges of results; at most {MAX_RANGES} are read of a response"
        )
    return count
