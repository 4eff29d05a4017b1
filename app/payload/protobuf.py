"""A workload's Protobuf payload as an interceptor: validates every value, delivers JSON where it is asked to.

| value              | deliver: raw | deliver: json                                                     |
|--------------------|--------------|-------------------------------------------------------------------|
| null (a tombstone) | as it is     | as it is                                                          |
| valid              | as it is     | as JSON, with metadata `switchyard-payload-format: json` and the  |
|                    |              | message's name in `switchyard-payload-message`                    |
| invalid            | `invalid: dlq`: to the DLQ with the reason; `invalid: deliver`: as it is         |

It stands behind the operator's interceptors, which may have to decrypt or unpack the value first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from app.payload.codec import PayloadCodec
from app.payload.interceptors import SEND, Chain, Interceptor, Message, Reject, Send, Verdict
from app.payload.parse import InvalidPayload

FORMAT = "switchyard-payload-format"
MESSAGE = "switchyard-payload-message"
NAME = "protobuf"


class Deliver(StrEnum):
    """What the receiver gets."""

    RAW = "raw"
    JSON = "json"


class Invalid(StrEnum):
    """What happens with a value that is not what it should be."""

    DLQ = "dlq"
    DELIVER = "deliver"


class ProtobufInterceptor:
    """See the module."""

    __slots__ = ("_as_json", "_codec", "_reject")

    def __init__(
        self, codec: PayloadCodec, *, deliver: Deliver = Deliver.RAW, invalid: Invalid = Invalid.DLQ
    ) -> None:
        self._codec = codec
        self._as_json = deliver is Deliver.JSON
        self._reject = invalid is Invalid.DLQ

    def before(self, message: Message) -> Verdict:
        """The table's line for this message."""
        value = message.value
        if value is None:
            return SEND
        if not self._as_json:
            problem = self._codec.check(value) if self._reject else None
            return SEND if problem is None else Reject(problem)
        try:
            name, written = self._codec.to_named_json(value)
        except InvalidPayload as error:
            return Reject(str(error)) if self._reject else SEND
        return Send(written, ((FORMAT, "json"), (MESSAGE, name)))


def workload_chain(
    operators: Sequence[tuple[str, Interceptor]], protobuf: ProtobufInterceptor | None
) -> Chain | None:
    """A workload's chain: the operator's interceptors, then its payload's; None when there are none."""
    named = [*operators, (NAME, protobuf)] if protobuf is not None else operators
    return Chain(named) if named else None
