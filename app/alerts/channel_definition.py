"""Where alerts are told: the shape of a definition's `channels`.

    channels:
      - webhook: {url: "https://alerts.example/hook", headers: {Authorization: env:SWITCHYARD_ALERT_HOOK}}
      - slack: {url: env:SWITCHYARD_ALERT_SLACK}
      - email: {smtp: "mail.example:587", from: yard@example.org, to: [oncall@example.org],
                user: yard, password: env:SWITCHYARD_ALERT_MAIL}
      - alertmanager: {url: "http://alertmanager:9093"}

Secrets never stand in a definition: it names an environment variable of the workers. Only variables whose
names begin with `SWITCHYARD_ALERT_` can be named, so that nobody sends a worker's other secrets to an address
of his own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import orjson
from annotated_types import Len
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from app.config.fields import Model

REFERENCE = "env:"
VARIABLES = "SWITCHYARD_ALERT_"
KINDS = ("webhook", "slack", "email", "alertmanager")
MAX_ADDRESSES = 50
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
_MAILBOX = re.compile(r"[^@\s<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9.-]{1,255}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255}):(\d{1,5})")
REMEDY = f"write env:{VARIABLES}NAME, and set that variable on every worker"


class MissingVariable(Exception):
    """An environment variable that a channel names is not set on this worker."""


def revealed(text: str, env: Mapping[str, str]) -> str:
    """What `text` stands for: the variable's value, or itself.

    Raises:
        MissingVariable: it names one that is not set.
    """
    if not text.startswith(REFERENCE):
        return text
    name = text.removeprefix(REFERENCE)
    if not env.get(name):
        raise MissingVariable(f"environment variable {name} is not set here; set it on every worker")
    return env[name].strip()


def _reference(value: Any) -> Any:
    """A reference as `env:NAME`; `{env: NAME}` says the same."""
    if isinstance(value, Mapping) and set(value) == {"env"} and isinstance(value["env"], str):
        value = f"{REFERENCE}{value['env']}"
    if isinstance(value, str) and value.startswith(REFERENCE):
        name = value.removeprefix(REFERENCE)
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"names no variable that alerts may use; {REMEDY}")
    return value


def _secret(value: Any) -> Any:
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


def _headers(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("not a mapping of headers; write one like {X-Team: data}")
    found: dict[str, str] = {}
    for name, told in value.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"{str(name)[:60]!r} is not the name of a header; write one like X-Team")
        if name.lower() in RESERVED_HEADERS:
            raise ValueError(f"{name} is set by itself; leave it out")
        text = _secret(told) if _SECRETIVE.search(name) else _reference(told)
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or len(text) > 1000:
            raise ValueError(f"{name}: not a header's value; write printable ASCII, at most 1000 characters")
        found[name] = text
    return found


def _mailbox(value: Any) -> Any:
    if not isinstance(value, str) or not _MAILBOX.fullmatch(value) or not value.isascii():
        raise ValueError("not an address of mail; write one like oncall@example.org")
    return value


def _mailboxes(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _host(value: Any) -> Any:
    found = _HOST.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError("not host:port; write one like mail.example.org:587")
    return value


_REFERENCE_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": f"^{REFERENCE}{_VARIABLE.pattern}$"},
        {
            "type": "object", "properties": {"env": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}},
            "required": ["env"], "additionalProperties": False,
        },
    ]
}  # fmt: skip
Reference = Annotated[str, BeforeValidator(_secret), WithJsonSchema(_REFERENCE_SCHEMA)]
_TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, _REFERENCE_SCHEMA]}
Url = Annotated[str, BeforeValidator(_url), WithJsonSchema(_TEXT_SCHEMA)]
Text = Annotated[str, BeforeValidator(_reference), Len(1, 200), WithJsonSchema(_TEXT_SCHEMA)]
Headers = Annotated[
    dict[str, str], BeforeValidator(_headers), Len(0, 20),
    WithJsonSchema({"type": "object", "additionalProperties": _TEXT_SCHEMA}),
]  # fmt: skip
Mailbox = Annotated[str, BeforeValidator(_mailbox)]


class Webhook(Model):
    """JSON by POST; what is in it: `app.alerts.delivery.message_bodies`."""

    url: Url
    headers: Headers = {}


class Slack(Model):
    """Slack's incoming webhooks, and those of others that take their format. Keep the address secret: it
    needs no password.
    """

    url: Reference


class Email(Model):
    """By SMTP. `tls`: from the beginning (`tls`), by STARTTLS, or `none`."""

    smtp: Annotated[str, BeforeValidator(_host)]
    from_: Mailbox = Field(alias="from")
    to: Annotated[tuple[Mailbox, ...], BeforeValidator(_mailboxes), Len(1, MAX_ADDRESSES)]
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: Text | None = None
    password: Reference | None = None


class Alertmanager(Model):
    """Prometheus' Alertmanager, API v2; `url` is what its own pages have, without /api/v2/alerts."""

    url: Url
    headers: Headers = {}


AnyChannel = Webhook | Slack | Email | Alertmanager


def _one(channel: Channel) -> Channel:
    told = [kind for kind in KINDS if getattr(channel, kind) is not None]
    if len(told) != 1:
        what = f"has {' and '.join(told)}" if told else "is none"
        raise ValueError(f"{what}; give each entry exactly one of {', '.join(KINDS)}")
    return channel


class Channel(Model):
    """One of them."""

    webhook: Webhook | None = None
    slack: Slack | None = None
    email: Email | None = None
    alertmanager: Alertmanager | None = None

    @property
    def kind(self) -> str:
        """Which one."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def target(self) -> AnyChannel:
        """What it is."""
        found: AnyChannel = getattr(self, self.kind)
        return found

    @property
    def key(self) -> str:
        """The same while it leads to the same place: what was told there is remembered under it."""
        target = self.target
        place: Any = [target.smtp, target.from_, target.to] if isinstance(target, Email) else target.url
        digest = hashlib.sha256(orjson.dumps([self.kind, place])).hexdigest()[:8]
        return f"{self.kind}-{digest}"

    @property
    def place(self) -> str:
        """Where it leads, for people: no paths and queries, which may be secrets."""
        target = self.target
        if isinstance(target, Email):
            return f"{', '.join(target.to)} by {target.smtp}"
        if target.url.startswith(REFERENCE):
            return target.url
        parts = urlsplit(target.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def variables(self) -> list[str]:
        """The environment variables that it names."""
        told = self.target.model_dump(mode="python")
        texts = [*told.values(), *told.get("headers", {}).values()]
        return sorted(
            {
                text.removeprefix(REFERENCE)
                for text in texts
                if isinstance(text, str) and text.startswith(REFERENCE)
            }
        )


AChannel = Annotated[Channel, AfterValidator(_one)]
