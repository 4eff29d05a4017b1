from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeliverRequest(_message.Message):
    __slots__ = ("open", "batches", "canceled", "drain", "role")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    CANCELED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    canceled: _containers.RepeatedCompositeFieldContainer[Range]
    drain: bool
    role: Role
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., canceled: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., drain: _Optional[bool] = ..., role: _Optional[_Union[Role, _Mapping]] = ...) -> None: ...

class DeliverResponse(_message.Message):
    __slots__ = ("accept", "results", "credit", "renewals")
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    accept: Accept
    results: Results
    credit: Credit
    renewals: _containers.RepeatedCompositeFieldContainer[Renewal]
    def __init__(self, accept: _Optional[_Union[Accept, _Mapping]] = ..., results: _Optional[_Union[Results, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., renewals: _Optional[_Iterable[_Union[Renewal, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("group", "topic", "worker", "features", "timeout_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    worker: str
    features: int
    timeout_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., worker: _Optional[str] = ..., features: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("region", "primary", "epoch")
    REGION_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    region: str
    primary: bool
    epoch: int
    def __init__(self, region: _Optional[str] = ..., primary: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("features", "max_request_bytes")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    features: int
    max_request_bytes: int
    def __init__(self, features: _Optional[int] = ..., max_request_bytes: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("first_delivery", "partition", "topic", "base_offset", "base_timestamp_ms", "retry_count", "attempt", "traceparent", "messages", "timeout_ms", "longest_ms")
    FIRST_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_MS_FIELD_NUMBER: _ClassVar[int]
    first_delivery: int
    partition: int
    topic: str
    base_offset: int
    base_timestamp_ms: int
    retry_count: int
    attempt: int
    traceparent: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    timeout_ms: int
    longest_ms: int
    def __init__(self, first_delivery: _Optional[int] = ..., partition: _Optional[int] = ..., topic: _Optional[str] = ..., base_offset: _Optional[int] = ..., base_timestamp_ms: _Optional[int] = ..., retry_count: _Optional[int] = ..., attempt: _Optional[int] = ..., traceparent: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., longest_ms: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("offset_delta", "timestamp_delta_ms", "key", "value", "headers")
    OFFSET_DELTA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_DELTA_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    offset_delta: int
    timestamp_delta_ms: int
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, offset_delta: _Optional[int] = ..., timestamp_delta_ms: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("deliveries", "bytes")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    deliveries: int
    bytes: int
    def __init__(self, deliveries: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("deliveries", "for_ms")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    deliveries: Range
    for_ms: int
    def __init__(self, deliveries: _Optional[_Union[Range, _Mapping]] = ..., for_ms: _Optional[int] = ...) -> None: ...

class Results(_message.Message):
    __slots__ = ("acknowledged", "skipped", "retried", "stashed", "failed", "renewed")
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    STASHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: _containers.RepeatedCompositeFieldContainer[Range]
    skipped: _containers.RepeatedCompositeFieldContainer[Range]
    retried: _containers.RepeatedCompositeFieldContainer[Retry]
    stashed: _containers.RepeatedCompositeFieldContainer[Stash]
    failed: _containers.RepeatedCompositeFieldContainer[Failure]
    renewed: _containers.RepeatedCompositeFieldContainer[Renew]
    def __init__(self, acknowledged: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., retried: _Optional[_Iterable[_Union[Retry, _Mapping]]] = ..., stashed: _Optional[_Iterable[_Union[Stash, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., renewed: _Optional[_Iterable[_Union[Renew, _Mapping]]] = ...) -> None: ...

class Retry(_message.Message):
    __slots__ = ("deliveries", "after_ms", "reason")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    deliveries: Range
    after_ms: int
    reason: str
    def __init__(self, deliveries: _Optional[_Union[Range, _Mapping]] = ..., after_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("deliveries", "timeout_ms", "after_ms")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    deliveries: Range
    timeout_ms: int
    after_ms: int
    def __init__(self, deliveries: _Optional[_Union[Range, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., after_ms: _Optional[int] = ...) -> None: ...

class Stash(_message.Message):
    __slots__ = ("deliveries", "reason")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    deliveries: Range
    reason: str
    def __init__(self, deliveries: _Optional[_Union[Range, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("deliveries", "code", "message")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    deliveries: Range
    code: int
    message: str
    def __init__(self, deliveries: _Optional[_Union[Range, _Mapping]] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
