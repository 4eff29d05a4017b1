"""How large a receiver's answer may be: Switchyard holds an answer in memory and reads it in its event loop.

A larger answer ends the receiver's call or stream, and counts as this receiver's failure only.
"""

from __future__ import annotations

from switchyard.v1.receiver_pb2 import Results

# Twice gRPC's default limit for clients. An answer's body is ignored, but must be read to its end: without
# its status, an acknowledged message would be delivered again.
MAX_UNARY_BYTES = 8 * 1024 * 1024
MAX_STREAM_BYTES = 4 * 1024 * 1024  # twice what `switchyard.receiver.outcomes` sends at once
MAX_RANGES = 100_000  # in a response: ten times the widest window; an empty range takes only two bytes
RANGES_AT_ONCE = 500  # after a few milliseconds, other tasks get their turn in the event loop

ANSWER_WORDS = "the answer is too large"
REMEDY = (
    "let the receiver send smaller answers: none or a short message for a call, and a stream's results in"
    " several responses"
)


class AnswerTooLarge(ValueError):
    """A response of a stream exceeds a limit."""


def ranges_in(results: Results) -> int:
    """The number of its ranges, of all kinds.

    Raises:
        AnswerTooLarge: There are more than `MAX_RANGES`.
    """
    count = len(results.acknowledged) + len(results.skipped)
    count += len(results.retried) + len(results.stashed)
    count += len(results.failed) + len(results.renewed)
    if count > MAX_RANGES:
        raise AnswerTooLarge(
            f"{ANSWER_WORDS}: {count} ranges of results in one response; at most {MAX_RANGES} are read"
        )
    return count


def check_renewals(looks: int) -> None:
    """`looks` at deliveries were made for one response.

    Raises:
        AnswerTooLarge: That is more than `MAX_RANGES`.
    """
    if looks > MAX_RANGES:
        raise AnswerTooLarge(f"{ANSWER_WORDS}: it asks for more time for more than {MAX_RANGES} deliveries")
