"""Topic names that Kafka takes for one.

Its metrics write `_` for `.`, so that a broker makes no topic whose name differs from another's in these only
(Topic.hasCollision). It refuses the second one as an invalid name.
"""

from __future__ import annotations

NAME_REFUSED = "Topic name refused"  # the title of the API's problem


def folded(topic: str) -> str:
    """Two topics whose names are the same by this cannot stand beside each other in a cluster."""
    return topic.replace(".", "_")
