r"""Recognises the status by which each gRPC implementation says that a message is too large.

RESOURCE_EXHAUSTED has two meanings: "this message is too large", where no retry helps, and "too much at once",
where only waiting helps. No field of gRPC distinguishes them, so the details must. Whole phrases are matched,
with their numbers: an application's "queue exceeds maximum size" or "quota exceeded" stays an overload.

| sender            | details                                                              | status             | source |
|-------------------|----------------------------------------------------------------------|--------------------|--------|
| gRPC C core       | SERVER: Received message larger than max (5 vs. 4)                   | RESOURCE_EXHAUSTED | message_size_filter.cc |
| gRPC C core       | received metadata size exceeds hard limit (5 vs. 4) (soft: the same) | RESOURCE_EXHAUSTED | hpack_parser.cc |
| grpc-go           | grpc: received message larger than max (5 vs. 4)                     | RESOURCE_EXHAUSTED | rpc_util.go |
| grpc-go           | grpc: received message after decompression larger than max 4         | RESOURCE_EXHAUSTED | rpc_util.go |
| grpc-java         | gRPC message exceeds maximum size 4: 5                               | RESOURCE_EXHAUSTED | MessageDeframer.java |
| grpc-java         | Decompressed gRPC message exceeds maximum size 4                     | RESOURCE_EXHAUSTED | MessageDeframer.java |
| grpc-java (Netty) | Client Headers of size 5 exceeded Metadata size soft limit: 4        | RESOURCE_EXHAUSTED | NettyServerHandler.java |
| Netty             | Header size exceeded max allowed size (4)                            | INTERNAL           | Http2CodecUtil.java |
| grpc-js           | Received message larger than max (5 vs 4)                            | RESOURCE_EXHAUSTED | stream-decoder.ts |
| grpc-js           | Received message that decompresses to a size larger than 4           | RESOURCE_EXHAUSTED | server-interceptors.ts |
| tonic             | Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes | OUT_OF_RANGE | codec/decode.rs |
| tonic             | Error decompressing: size limit, of 4 bytes, exceeded while decompressing message | RESOURCE_EXHAUSTED | codec/decode.rs |
| grpc-dotnet       | Received message exceeds the maximum configured message size.        | RESOURCE_EXHAUSTED | PipeExtensions.cs |
| connect-go        | message size 5 is larger than configured max 4                       | RESOURCE_EXHAUSTED | envelope.go |
| Envoy             | Payload Too Large; Request Header Fields Too Large: HTTP's 413, 431  | UNKNOWN            | codes.cc |
| nginx, others     | Received http2 header with status: 413 (431)                         | UNKNOWN            | C core, of an answer without a gRPC status |

Two similar messages come from this side, about an answer that it cannot read: "CLIENT: Received message larger
than max" and "Stream removed (received metadata size exceeds ...)". The receiver took the message.
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from typing import NamedTuple

from app.dispatch.push.answer_limits import ANSWER_WORDS
from app.kernel.grpc_status import INTERNAL, OK, OUT_OF_RANGE, RESOURCE_EXHAUSTED, UNKNOWN

MAX_SEARCHED_CHARS = 1_000  # the phrase comes first; a stack trace may follow


class SizeRefusal(NamedTuple):
    """A refusal of a message for its size.

    Attributes:
        size_bytes: The message's size; None: the receiver did not name it.
        limit_bytes: The receiver's limit; None: the receiver did not name it.
    """

    size_bytes: int | None
    limit_bytes: int | None


METADATA_WORDS = "metadata size exceeds limit"
_NUMBER = r"\d{1,18}"
_BODY = (
    rf"message (?:after decompression )?larger than max \((?P<size>{_NUMBER}) vs\.? (?P<limit>{_NUMBER})\)",
    rf"message after decompression larger than max (?P<limit>{_NUMBER})",
    r"[Dd]ecompressed message larger than max",
    rf"gRPC message exceeds maximum size (?P<limit>{_NUMBER})(?:: (?P<size>{_NUMBER}))?",
    rf"message that decompresses to a size larger than (?P<limit>{_NUMBER})",
    rf"message length too large: found (?P<size>{_NUMBER}) bytes, the limit is: (?P<limit>{_NUMBER}) bytes",
    rf"size limit, of (?P<limit>{_NUMBER}) bytes, exceeded while decompressing message",
    r"message exceeds the maximum configured message size\b",
    rf"message size (?P<size>{_NUMBER}) is larger than configured max (?P<limit>{_NUMBER})",
    rf"message (?:size )?is larger than configured max (?P<limit>{_NUMBER})",
)
_METADATA = (
    r"metadata size exceeds (?:hard |soft )?limit",
    rf"Headers of size {_NUMBER} exceeded Metadata size soft limit: {_NUMBER}",
    rf"Header size exceeded max allowed size \({_NUMBER}\)",
)
_ANYWHERE = [re.compile(words) for words in _BODY + _METADATA]
_WHOLE = re.compile(
    r"Payload Too Large|Content Too Large|Request Header Fields Too Large"
    r"|Received http2 header with status: (?:413|431)"
)
_ABOUT_ANSWER = re.compile(
    r"CLIENT: Received message larger"
    r"|Stream removed \(received (?:initial |trailing )?metadata size exceeds"
    r"|CLIENT: Decompressed message larger"
)
_CODES = frozenset((RESOURCE_EXHAUSTED, OUT_OF_RANGE, INTERNAL, UNKNOWN))


def size_refusal(code: int, details: str) -> SizeRefusal | None:
    """The refusal for size that a status reports; None: it reports none.

    Args:
        code: gRPC status number.
        details: The status message.
    """
    if code not in _CODES or not details:
        return None
    details = details[:MAX_SEARCHED_CHARS]
    if _ABOUT_ANSWER.search(details):
        return None
    if _WHOLE.fullmatch(details.strip()):
        return SizeRefusal(None, None)
    for pattern in _ANYWHERE:
        if found := pattern.search(details):
            numbers = found.groupdict()
            return SizeRefusal(*(_number(numbers.get(name)) for name in ("size", "limit")))
    return None


def is_about_answer(code: int, details: str) -> bool:
    """Whether the status says that this side could not read the answer, for its size."""
    if code == OK or not details:
        return False
    return (
        details.startswith(ANSWER_WORDS) or _ABOUT_ANSWER.search(details, 0, MAX_SEARCHED_CHARS) is not None
    )


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)
