"""Topic names that collide in Kafka.

Kafka's metrics write `_` for `.`. So a broker refuses a topic, as an invalid name, when an existing name
differs only in these characters (Topic.hasCollision).
"""

from __future__ import annotations

NAME_REFUSED = "Topic name refused"  # the title of the API's problem


def folded(topic: str) -> str:
    """The name that collides: two topics with the same one cannot exist in one cluster."""
    return topic.replace(".", "_")
