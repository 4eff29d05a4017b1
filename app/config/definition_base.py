"""The base of all definitions: their canonical form on the wire, and its etag.

Fields added after the first release are absent from the wire while they have their default (`added`). So
the etag of a definition deployed earlier stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import orjson
from pydantic import BaseModel, Field

from app.config.fields import Model
from app.kernel.json_types import JsonMapping, JsonObject
from app.replicate.model.route import Route

# The most bytes of a definition as JSON, in a request and in the control log. An event has room for it beside
# its other fields (`app.controllog.codec.MAX_EVENT_BYTES`), and so has a proxy with common settings (1 MiB).
MAX_DEFINITION_BYTES = 512 * 1024


def added(default: Any, **options: Any) -> Any:
    """A field that was added after the first release."""
    return Field(default, exclude_if=lambda value: value == default, **options)


class Definition(Model):
    """A definition of any kind. `key`: its key in the control log."""

    if TYPE_CHECKING:

        @property
        def key(self) -> str: ...

    def to_wire(self) -> JsonObject:
        """The canonical form, ready for JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_wire(cls, data: JsonMapping) -> Self:
        """The inverse of `to_wire`; ignores fields that only a newer version knows.

        Raises:
            pydantic.ValidationError: The data is not a definition of this kind.
        """
        return cls.model_validate(_known(cls, data))

    def etag(self) -> str:
        """Changes whenever the definition does."""
        packed = orjson.dumps(self.to_wire(), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(packed).hexdigest()[:16]


class Named(Definition):
    """A definition that its name identifies. `prefix` begins its key, and no other kind's key."""

    prefix: ClassVar[str]
    if TYPE_CHECKING:  # fields of each kind, which keep the order they have there
        metadata: Any

    @property
    def name(self) -> str:
        """The definition's name."""
        return str(self.metadata.name)

    @property
    def key(self) -> str:
        """Its key in the control log."""
        return f"{self.prefix}{self.name}"


class OfTopics(Named):
    """A definition that names topics as a route does: `spec.topics` without `spec.exclude`."""

    if TYPE_CHECKING:
        spec: Any

    @cached_property
    def _topics(self) -> Route:
        return Route(self.name, "", "", self.spec.topics, self.spec.exclude)

    def means(self, topic: str) -> bool:
        """Whether it covers the topic. Raises what `Route` raises."""
        return self._topics.destination(topic) is not None


def _known(model: type[BaseModel], data: Any) -> Any:
    """`data` without fields that `model` does not have, at every depth."""
    if not isinstance(data, Mapping):
        return data
    kept = {}
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias not in data:
            continue
        value = data[alias]
        inner = _inner_model(field.annotation)
        if inner is not None and isinstance(value, list | tuple):
            value = [_known(inner, item) for item in value]
        elif inner is not None:
            value = _known(inner, value)
        kept[alias] = value
    return kept


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None
