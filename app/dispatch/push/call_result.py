"""How a message's delivery ended, by either contract and any transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.dispatch.model.crash_suspicion import Loss, is_planned_end, read_loss
from app.dispatch.model.outcome import KafkaAction
from app.dispatch.push.http_answer import why_no_receiver
from app.dispatch.push.size_refusal import is_about_answer, size_refusal
from app.kernel.grpc_status import INTERNAL, OK, UNAVAILABLE

MAX_DETAIL_CHARS = 1_000
ACTION = "kafka-action"  # a trailer of the answer: what becomes of the message
RETRY_AFTER = "kafka-retry-after-ms"  # a trailer of the answer: how long the message waits
TIMEOUT = "kafka-timeout-ms"  # a trailer of the answer: how long the next delivery may take
MAX_DIGITS = 12


class CallResult:
    """How a call ended.

    Attributes:
        code: gRPC status number.
        details: The receiver's status message, bounded.
        answer_too_large: The answer exceeds the limit. Whether the receiver took the message is not known.
        action: The trailer `kafka-action`, if there was one.
        loss: With UNAVAILABLE, what became of the receiver.
        too_large: The receiver, or a proxy on the way, refused the message for its size.
        is_renewal: The receiver asks for more time for the message.
        is_planned_end: The receiver ended the connection on purpose, and the call was lost with it.
        local_error: Why the call was not made; then `code` means nothing.
        retry_after_s: The receiver's wish, with the actions Retry and Renew; None: it has none.
        timeout_s: The receiver's wish, with the action Renew; None: it has none.
    """

    __slots__ = (
        "action", "answer_too_large", "code", "details", "is_planned_end", "is_renewal", "local_error",
        "loss", "retry_after_s", "timeout_s", "too_large",
    )  # fmt: skip

    def __init__(
        self,
        code: int,
        details: str = "",
        action: str | None = None,
        *,
        local_error: str | None = None,
        retry_after_s: float | None = None,
        timeout_s: float | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.code = code
        self.details = details[:MAX_DETAIL_CHARS]
        self.action = action
        self.is_renewal = action is not None and KafkaAction.read(action) is KafkaAction.RENEW
        self.too_large = code != OK and action is None and size_refusal(code, details) is not None
        self.answer_too_large = is_about_answer(code, details)
        self.is_planned_end = False
        self.loss: Loss | None = None
        if code == UNAVAILABLE:
            # A transport that knows says so; else the words must.
            self.is_planned_end = is_planned_end(details) if loss is None else loss is Loss.PLANNED
            self.loss = loss or read_loss(details)
        self.local_error = local_error
        self.retry_after_s = retry_after_s
        self.timeout_s = timeout_s

    @classmethod
    def local(cls, reason: str, action: str | None = None) -> CallResult:
        """The result of a message that was not sent. `action` decides about it; None: it is stashed."""
        return cls(INTERNAL, reason, action, local_error=reason)


Done = Callable[[CallResult], None]


def read_result(
    code: int,
    details: str,
    trailers: Iterable[tuple[str, str | bytes]],
    loss: Loss | None = None,
) -> CallResult:
    """How a unary call ended, by its status and the receiver's wishes in its trailers."""
    action = after_s = timeout_s = None
    for name, value in trailers:
        if name == ACTION:
            action = value if isinstance(value, str) else None
        elif name == RETRY_AFTER:
            after_s = _seconds(value)
        elif name == TIMEOUT:
            timeout_s = _seconds(value)
    if away := why_no_receiver(details):
        code, details, loss = UNAVAILABLE, away, None
    return CallResult(code, details, action, retry_after_s=after_s, timeout_s=timeout_s, loss=loss)


def _seconds(value: str | bytes) -> float | None:
    """The value of a trailer in milliseconds; None: it is no number."""
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < MAX_DIGITS
    return int(value) / 1000 if is_number else None
