"""Adds a topic to a route, or removes it: which entries change. Pure.

Exclusions win over topics (`app.replicate.model.route`). So a topic is added by ending its exclusion, or by
its own name. It is removed by removing its name, or by an exclusion if an expression matches it too.
"""

from __future__ import annotations

from typing import Any

from app.definitions.registry import parse_route
from app.replicate.definition import RouteDefinition


class NoSuchEdit(ValueError):
    """Why no change of an entry has the wanted effect; what to do instead."""


def with_topic(definition: RouteDefinition, topic: str) -> tuple[RouteDefinition, str]:
    """The route that copies `topic`, and a description of the change; the same route if it already does.

    Raises:
        NoSuchEdit: An expression excludes the topic, or it has no name at the destination.
        InvalidConfiguration: The route would be invalid.
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
    """The route that does not copy `topic`, and a description of the change; the same route if it does not.

    Raises:
        NoSuchEdit: Nothing would be left of the route.
        InvalidConfiguration: The route would be invalid.
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
