"""The metadata that all calls of a workload carry: texts, and tokens, which may be renewed."""

from __future__ import annotations

from collections.abc import Mapping

from app.dispatch.model.metadata_sources import SECRET_NAMES, Source
from app.grpc_client.header_encoder import Field
from app.grpc_client.metadata import wire_field
from app.grpc_client.tokens import Tokens

SECRETS = frozenset(name.encode() for name in SECRET_NAMES)


class FixedMetadata:
    """`secret`: the names whose values no table of HTTP/2 may keep."""

    def __init__(self, sources: Mapping[str, Source], tokens: Tokens) -> None:
        """Sources that are headers are left out: messages have these."""
        self._sources = {name: source for name, source in sources.items() if not source.header}
        self._tokens = tokens
        self._version = -1
        self._fields: tuple[Field, ...] = ()
        names = {name.encode() for name, source in self._sources.items() if source.secret}
        self.secret = SECRETS | names

    @property
    def fields(self) -> tuple[Field, ...]:
        """As on the wire: the same object until a token is renewed. Raises KeyError: a token is not there."""
        if self._version != self._tokens.version:
            self._version = self._tokens.version
            found = tuple([wire_field(name, self._value(source)) for name, source in self._sources.items()])
            if found != self._fields:
                self._fields = found
        return self._fields

    def _value(self, source: Source) -> str:
        return source.text + (self._tokens[source.secret] if source.secret else "")
