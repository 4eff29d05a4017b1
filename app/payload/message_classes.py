"""Classes of Protobuf messages.

protobuf's own `message_factory.GetMessageClass` calls itself for each message that a field refers to, so a
chain of 500 messages overflows the stack.
"""

from __future__ import annotations

from typing import cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.reflection import GeneratedProtocolMessageType

MAX_LINKED = 10_000  # each becomes a class


class TooManyMessages(ValueError):
    """A message refers to too many others. `problem` and `remedy` are for people."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def message_class_of(descriptor: Descriptor) -> type[Message]:
    """The class of a message, linked to the classes of all messages that it refers to.

    Raises:
        TooManyMessages: They are more than `MAX_LINKED`.
    """
    linked = {descriptor.full_name: descriptor}
    waiting = [descriptor]
    while waiting:
        one = waiting.pop()
        for field in (*one.fields, *one.extensions):
            for other in (field.message_type, field.containing_type):
                if other is not None and other.full_name not in linked:
                    linked[other.full_name] = other
                    waiting.append(other)
        if len(linked) > MAX_LINKED:
            raise TooManyMessages(
                f"message {descriptor.full_name} refers to more than {MAX_LINKED:,} others, directly or "
                "through one another",
                "name a message that refers to fewer, or remove the fields that lead to them",
            )
    found, *_ = [
        GeneratedProtocolMessageType(one.name, (Message,), {"DESCRIPTOR": one, "__module__": None})
        for one in linked.values()
    ]
    return cast("type[Message]", found)
