"""The shape of a definition's `channels`: the receivers of its notices.

    channels:
      - alertmanager: {url: "http://alertmanager:9093"}
      - webhook: {url: "https://alerts.example/hook", headers: {Authorization: env:SWITCHYARD_ALERT_HOOK}}

A definition contains no secret: it names an environment variable of the workers. The name must begin with
`SWITCHYARD_ALERT_`, because an alert could send other secrets of a worker to any address.

An earlier version also had the channels `slack` and `email`. A definition in the control log may still name
them, so workers can read it. Such a channel gets no notice, and a deploy refuses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
from annotated_types import Len
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from app.config.fields import Model
from app.kernel.json_types import JsonObject

REFERENCE = "env:"
VARIABLES = "SWITCHYARD_ALERT_"
KINDS = ("webhook", "alertmanager")
REMOVED_KINDS = ("slack", "email")
REMOVED = "no longer a channel: Switchyard sends nothing there"
REMOVED_REMEDY = (
    "name an alertmanager channel, and write slack_configs or email_configs in Alertmanager's configuration "
    '(docs/prove.md, "Slack and mail")'
)
RESERVED_HEADERS = {
    "content-type",
    "content-length",
    "host",
    "transfer-encoding",
    "connection",
    "idempotency-key",
}
_VARIABLE = re.compile(rf"{VARIABLES}[A-Z0-9_]{{1,100}}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_SECRETIVE = re.compile(r"auth|token|secret|cookie|password|api-?key|access-?key", re.IGNORECASE)
REMEDY = f"write env:{VARIABLES}NAME, and set that variable on every worker"


class MissingVariable(Exception):
    """An environment variable that a channel names is not set on this worker."""


def revealed(text: str, env: Mapping[str, str]) -> str:
    """The value of the variable that `text` names, or `text` if it names none.

    Raises:
        MissingVariable: The variable is not set.
    """
    if not text.startswith(REFERENCE):
        return text
    name = text.removeprefix(REFERENCE)
    if not env.get(name):
        raise MissingVariable(f"environment variable {name} is not set here; set it on every worker")
    return env[name].strip()


def _reference(value: object) -> object:
    """A reference as `env:NAME`; people may also write `{env: NAME}`."""
    if isinstance(value, Mapping) and set(value) == {"env"} and isinstance(value["env"], str):
        value = f"{REFERENCE}{value['env']}"
    if isinstance(value, str) and value.startswith(REFERENCE):
        name = value.removeprefix(REFERENCE)
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"names no variable that alerts may use; {REMEDY}")
    return value


def _secret(value: object) -> object:
    value = _reference(value)
    if not isinstance(value, str) or not value.startswith(REFERENCE):
        raise ValueError(f"a secret, which must not stand in a definition; {REMEDY}")
    return value


def _url(value: Any) -> Any:
    value = _reference(value)
    if isinstance(value, str) and value.startswith(REFERENCE):
        return value
    try:
        clean = isinstance(value, str) and len(value) <= 2000 and value.isascii() and value.isprintable()
        parts = urlsplit(value if clean and " " not in value else "")
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        hint = f"write one like https://alerts.example/hook, or {REFERENCE}{VARIABLES}NAME"
        raise ValueError(f"not an address; {hint}")
    if parts.username is not None:
        raise ValueError(f"holds a user or password; {REMEDY}")
    return value


def _headers(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("not a mapping of headers; write one like {X-Team: data}")
    found: dict[str, str] = {}
    for name, content in value.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"{str(name)[:60]!r} is not the name of a header; write one like X-Team")
        if name.lower() in RESERVED_HEADERS:
            raise ValueError(f"{name} is set by itself; leave it out")
        text = _secret(content) if _SECRETIVE.search(name) else _reference(content)
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or len(text) > 1000:
            raise ValueError(f"{name}: not a header's value; write printable ASCII, at most 1000 characters")
        found[name] = text
    return found


_REFERENCE_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": f"^{REFERENCE}{_VARIABLE.pattern}$"},
        {
            "type": "object", "properties": {"env": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}},
            "required": ["env"], "additionalProperties": False,
        },
    ]
}  # fmt: skip
_TEXT_SCHEMA: JsonObject = {"anyOf": [{"type": "string"}, _REFERENCE_SCHEMA]}
Url = Annotated[str, BeforeValidator(_url), WithJsonSchema(_TEXT_SCHEMA)]
Headers = Annotated[
    dict[str, str], BeforeValidator(_headers), Len(0, 20),
    WithJsonSchema({"type": "object", "additionalProperties": _TEXT_SCHEMA}),
]  # fmt: skip


class Webhook(Model):
    """JSON by POST. `app.alerts.delivery.message_bodies` defines its fields."""

    url: Url
    headers: Headers = {}


class Alertmanager(Model):
    """Alertmanager of Prometheus, API v2. `url` is the address of its pages, without /api/v2/alerts."""

    url: Url
    headers: Headers = {}


def _one(channel: Channel) -> Channel:
    kinds = [kind for kind in (*KINDS, *REMOVED_KINDS) if getattr(channel, kind) is not None]
    if len(kinds) != 1:
        what = f"has {' and '.join(kinds)}" if kinds else "is none"
        raise ValueError(f"{what}; give each entry exactly one of {', '.join(KINDS)}")
    return channel


class Channel(Model):
    """One receiver of notices. An entry has exactly one of these fields."""

    webhook: Webhook | None = None
    alertmanager: Alertmanager | None = None
    slack: SkipJsonSchema[object] = None
    email: SkipJsonSchema[object] = None

    @property
    def kind(self) -> str:
        """The field that the entry has."""
        return next(kind for kind in (*KINDS, *REMOVED_KINDS) if getattr(self, kind) is not None)

    @property
    def target(self) -> Webhook | Alertmanager | None:
        """The receiver; None if the channel is of a removed kind."""
        return self.webhook or self.alertmanager

    @property
    def trouble(self) -> str:
        """Why the channel gets no notice; "" if it gets them."""
        return "" if self.target else f"{REMOVED}; route it through Alertmanager"

    @property
    def key(self) -> str:
        """Identifies the receiver's address: the control log remembers its notices under this key."""
        address: object = self.target.url if self.target else repr((self.slack, self.email))
        digest = hashlib.sha256(orjson.dumps([self.kind, address])).hexdigest()[:8]
        return f"{self.kind}-{digest}"

    @property
    def place(self) -> str:
        """The address as people may see it: without path and query, which may be secrets."""
        if self.target is None:
            return "(removed)"
        if self.target.url.startswith(REFERENCE):
            return self.target.url
        parts = urlsplit(self.target.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def variables(self) -> list[str]:
        """The environment variables that the channel names."""
        texts = [self.target.url, *self.target.headers.values()] if self.target else []
        return sorted({text.removeprefix(REFERENCE) for text in texts if text.startswith(REFERENCE)})


AChannel = Annotated[Channel, AfterValidator(_one)]
