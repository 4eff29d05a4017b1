"""An interceptor that validates a workload's Protobuf values and delivers them in the configured form.

| value              | deliver: record | deliver: bytes          | deliver: json                       |
|--------------------|-----------------|-------------------------|-------------------------------------|
| null (a tombstone) | as it is        | as it is                | as it is                            |
| valid              | as it is        | without its frame; with | as JSON, with metadata              |
|                    |                 | metadata                | `switchyard-payload-format: json`,  |
|                    |                 | `switchyard-schema-id`  | name in `switchyard-payload-message`|
| invalid            | `invalid: dlq`: to the DLQ with the reason; `invalid: deliver`: as it is, but  |
|                    | with `bytes` without a frame that can be read                                  |

`bytes` exists because a receiver's generated code cannot read Confluent's frame. Without framing, it is the
same as `record`. This interceptor runs after the operator's, which may have to decrypt or unpack the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from app.payload.codec import Framing, PayloadCodec, read_frame
from app.payload.interceptors import SEND, Interceptor, InterceptorChain, Message, Reject, Send, Verdict
from app.payload.parser import InvalidPayload

FORMAT = "switchyard-payload-format"  # added to a delivery: `json` when its value is JSON
MESSAGE = "switchyard-payload-message"  # added to a delivery: the full name of the message that became JSON
SCHEMA_ID = "switchyard-schema-id"  # added to a delivery: the id in the frame that was removed
NAME = "protobuf"


class Deliver(StrEnum):
    """The form that the receiver gets."""

    RECORD = "record"
    BYTES = "bytes"
    JSON = "json"


class Invalid(StrEnum):
    """The treatment of an invalid value."""

    DLQ = "dlq"
    DELIVER = "deliver"


class ProtobufInterceptor:
    """Does what the module's table says."""

    __slots__ = ("_as_json", "_codec", "_reject", "_unframes")

    def __init__(
        self, codec: PayloadCodec, *, deliver: Deliver = Deliver.BYTES, invalid: Invalid = Invalid.DLQ
    ) -> None:
        self._codec = codec
        self._as_json = deliver is Deliver.JSON
        self._unframes = deliver is Deliver.BYTES and codec.framing is Framing.CONFLUENT
        self._reject = invalid is Invalid.DLQ

    def before(self, message: Message) -> Verdict:
        """The verdict of the module's table."""
        value = message.value
        if value is None:
            return SEND
        if not self._as_json:
            problem = self._codec.check(value) if self._reject else None
            if problem is not None:
                return Reject(problem)
            return self._unframed(value) if self._unframes else SEND
        try:
            name, written = self._codec.to_named_json(value)
        except InvalidPayload as error:
            return Reject(str(error)) if self._reject else SEND
        return Send(written, ((FORMAT, "json"), (MESSAGE, name)))

    @staticmethod
    def _unframed(value: bytes) -> Send:
        try:
            schema_id, _, at = read_frame(value)
        except InvalidPayload:
            return SEND
        return Send(value[at:], ((SCHEMA_ID, str(schema_id)),))


def workload_chain(
    operators: Sequence[tuple[str, Interceptor]], protobuf: ProtobufInterceptor | None
) -> InterceptorChain | None:
    """The operator's interceptors, then the payload's; None if there are none."""
    named = [*operators, (NAME, protobuf)] if protobuf is not None else operators
    return InterceptorChain(named) if named else None
