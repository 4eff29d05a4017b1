"""Interceptors of an operator, which the workers of a test load by name."""

from __future__ import annotations

import zlib

from app.payload.interceptors import SEND, Message, Reject, Send, Skip, Verdict


class Screen:
    """Skips messages with the header `erased`, and rejects those with `banned`."""

    def before(self, message: Message) -> Verdict:
        names = {name for name, _ in message.headers}
        if "erased" in names:
            return Skip("erased")
        return Reject("its sender is banned") if "banned" in names else SEND


class Unpack:
    """Decompresses values with the header `packed`, and says so."""

    def before(self, message: Message) -> Verdict:
        if "packed" not in dict(message.headers):
            return SEND
        assert message.value is not None
        return Send(zlib.decompress(message.value), (("x-packed-bytes", str(len(message.value))),))
