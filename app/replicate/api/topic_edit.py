"""One topic more, or less, in a route: which entries that changes. Pure.

Exclusions win over topics (`app.replicate.model.route`), so that a topic comes by ending its exclusion, or by
its own name; and goes by taking its name out, or, where an expression means it too, by an exclusion.
"""

from __future__ import annotations

from typing import Any

from app.definitions.registry import parse_route
from app.replicate.definition import RouteDefinition


class NoSuchEdit(ValueError):
    """Why no entry of its own does it; what to do instead."""


def with_topic(definition: RouteDefinition, topic: str) -> tuple[RouteDefinition, str]:
    """The route that copies `topic`, and what was done for it, in words; the same one when it does already.

    Raises:
        NoSuchEdit: an expression excludes it, or it has no name at the destination.
        InvalidConfiguration: the route would not be valid.
    """
    done = []
    if definition.route().destination(topic) is not None:
        return definition, f"{topic} is copied already"
    if topic in definition.spec.exclude:
        definition = _edited(definition, exclude=[e for e in definition.spec.exclude if e != topic])
        done.append("taken out of exclude")
    if definition.route().destination(topic) is None and topic not in definition.spec.topics:
        definition = _edited(definition, topics=[*definition.spec.topics, topic])
        done.append("added to topics")
    if why := definition.route().why_not(topic):
        raise NoSuchEdit(f"{topic} would not be copied: {why}; change the definition")
    return definition, f"{topic}: {', '.join(done)}"


def without_topic(definition: RouteDefinition, topic: str) -> tuple[RouteDefinition, str]:
    """The route that does not copy `topic`, and what was done for it; the same one when it does not anyway.

    Raises:
        NoSuchEdit: nothing would be left of the route.
        InvalidConfiguration: the route would not be valid.
    """
    done = []
    if why := definition.route().why_not(topic):
        return definition, f"{topic} is not copied: {why}"
    if topic in definition.spec.topics:
        left = [entry for entry in definition.spec.topics if entry != topic]
        if not left:
            raise NoSuchEdit(f"{topic} is the route's only entry; delete the route, or pause it")
        definition = _edited(definition, topics=left)
        done.append("taken out of topics")
    if definition.route().destination(topic) is not None:
        definition = _edited(definition, exclude=[*definition.spec.exclude, topic])
        done.append("added to exclude")
    return definition, f"{topic}: {', '.join(done)}"


def _edited(definition: RouteDefinition, **spec: Any) -> RouteDefinition:
    wire = definition.to_wire()
    return parse_route({**wire, "spec": {**wire["spec"], **spec}})[0]
