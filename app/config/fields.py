"""Types of definitions' fields: names, addresses, methods, headers, delays, rates.

Each refuses a wrong value with "what is wrong; what to do", which `problems` shows in two parts.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, Strict, WithJsonSchema

from app.config.quantities import Duration, duration_within
from app.grpc_client.address import Address as ServerAddress
from app.grpc_client.address import check_host
from app.grpc_client.target import Target
from app.kernel.job import MAX_TOPIC_CHARS

DAY_S = 86_400.0
MAX_LISTED = 1000  # a longer list is a mistake

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TOPIC_CHARS}}}")
_DNS_SERVER = re.compile(r"dns://[^/@%\s]+/")  # as in dns://8.8.8.8/host:port
_ADDRESS_REMEDY = "write host:port, dns:///host:port, srv:///name or unix:/path"
_METHOD = re.compile(r"/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_MESSAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class Model(BaseModel):
    """A part of a definition: unknown fields are errors, and it is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(value: object) -> object:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value in {".", ".."}:
        raise ValueError("not a name; use letters, digits, '.', '_' and '-', at most 200")
    return value


def _topic(value: object) -> object:
    if not isinstance(value, str) or not _TOPIC.fullmatch(value) or value in {".", ".."}:
        raise ValueError(
            f"not a topic's name; use letters, digits, '.', '_' and '-', at most {MAX_TOPIC_CHARS}"
        )
    return value


def dns_server(address: str) -> str:
    """The part of an address that names a DNS server, which only grpcio can ask; "": there is none."""
    found = _DNS_SERVER.match(address)
    return found[0] if found else ""


def _address(value: object) -> object:
    """Takes the addresses of our own client, and names with a DNS server, which only grpcio reads."""
    if not isinstance(value, str):
        raise ValueError(f"not a gRPC address; {_ADDRESS_REMEDY}")
    server = dns_server(value)
    try:
        if server:
            ServerAddress.parse(f"dns:{value.removeprefix(server)}")
        else:
            Target.parse(value)
    except ValueError as error:
        if "," in value:  # the reason says which entry of the list it is
            raise ValueError(f"not a gRPC address: {error}") from None
        raise ValueError(f"not a gRPC address; {_ADDRESS_REMEDY}") from None
    return value


def _server_name(value: object) -> object:
    try:
        check_host("server_name", value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("not a host; write one name that the certificate has, without port and *") from None
    return value


def _inflight(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value != "adaptive" and not (whole and 1 <= value <= 100_000):
        raise ValueError("not a number of messages; write adaptive or a number from 1 to 100000")
    return value


def _method(value: Any) -> Any:
    if not isinstance(value, str) or not _METHOD.fullmatch(value):
        raise ValueError("not a gRPC method; write /package.Service/Method")
    return value


def _message(value: object) -> object:
    if not isinstance(value, str) or not _MESSAGE.fullmatch(value):
        raise ValueError("not a Protobuf message; write its full name, such as acme.orders.Order")
    return value


def _header(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError("not the name of a header; write the Kafka header's name, such as x-zone")
    return value


def _header_pattern(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or "*" in value[:-1]:
        raise ValueError(
            "not the name of a header; write a name, or the beginning of names and a *, such as x-*"
        )
    return value


def _label(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError("not a header's value; write text of 1 to 200 characters")
    return value


Name = Annotated[str, BeforeValidator(_name)]
TopicName = Annotated[str, BeforeValidator(_topic)]
Address = Annotated[str, BeforeValidator(_address)]
ServerName = Annotated[str, BeforeValidator(_server_name)]
Method = Annotated[str, BeforeValidator(_method)]
MessageName = Annotated[str, BeforeValidator(_message)]
Header = Annotated[str, BeforeValidator(_header)]
HeaderPattern = Annotated[str, BeforeValidator(_header_pattern)]  # a header's name, or a prefix and *
Label = Annotated[str, BeforeValidator(_label)]  # a header's value
Rate = Annotated[float, Strict(), Field(ge=0.001, le=1e12, allow_inf_nan=False)]  # per second
Delay = Annotated[Duration, duration_within(0, 30 * DAY_S)]
Inflight = Annotated[
    Literal["adaptive"] | int,
    PlainValidator(_inflight),
    WithJsonSchema({"anyOf": [{"const": "adaptive"}, {"type": "integer", "minimum": 1, "maximum": 100_000}]}),
]
