"""A target, as people write it: one server, a list of servers, or a service that DNS knows.

| target                            | its servers                                                       |
|-----------------------------------|-------------------------------------------------------------------|
| `host:port`, `dns:///host:port`   | all A and AAAA records, as those of a headless Kubernetes service |
| `host:port,host:port`             | those of each entry, which may also be an IP address              |
| `ipv4:1.2.3.4:port,5.6.7.8:port`  | the addresses; `ipv6:[::1]:port,[::2]:port` likewise              |
| `srv:///_grpc._tcp.name`          | hosts and ports of the name's SRV records                         |
| `unix:path`, `unix-abstract:name` | the socket                                                        |
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from app.grpc_client.address import SCHEMES, Address, ascii_host, check_host, plain_text

MAX_ADDRESSES = 1_000
SERVICE_SCHEME = "srv://"  # with the slashes: `srv:1` is port 1 of the host `srv`


@dataclass(frozen=True, slots=True)
class Target:
    """Where the servers are.

    Attributes:
        places: Names, IP addresses, or one Unix socket. A service has none.
        service: The name of SRV records, in ASCII; empty: there are places. A dot at its end means that it
            is complete, so that no search domain is appended.
    """

    places: tuple[Address, ...] = ()
    service: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: with the value, unless it may contain a password, and the remedy."""
        scheme, _, rest = text.partition(":")
        if scheme.lower() in {"unix", "unix-abstract"}:
            return cls((Address.parse(text),))
        if "@" in unquote(text):  # before the list is divided, because a password may contain a comma
            raise ValueError("address: it has no user and no password; write host:port")
        if text[: len(SERVICE_SCHEME)].lower() == SERVICE_SCHEME:
            return cls(service=_service(text))
        if scheme.lower() not in SCHEMES:
            scheme, rest = "dns", text
        slashes = "///" if rest.startswith("//") else "/"  # a DNS server would follow "//"
        listed = rest.removeprefix(slashes).split(",")
        if len(listed) > MAX_ADDRESSES:
            raise ValueError(f"address: it lists {len(listed)} servers; write at most {MAX_ADDRESSES}")
        return cls(tuple(Address.parse(f"{scheme}:{place}") for place in listed))

    @property
    def is_fixed(self) -> bool:
        """Whether its servers never change."""
        return not self.service and not any(needs_look_up(place) for place in self.places)

    @property
    def authority(self) -> str:
        """The value of `:authority` for calls to any of its servers: the first name that it has."""
        return self.service.rstrip(".") or self.places[0].authority

    @property
    def name(self) -> str:
        """The name that its servers share, as in their certificates: the first one; empty: there is none."""
        named = (place.host for place in self.places if needs_look_up(place))
        return self.service.rstrip(".") or next(named, "")


def needs_look_up(place: Address) -> bool:
    """Whether the place is a name, and neither an IP address nor a socket."""
    if place.path:
        return False
    try:
        ipaddress.ip_address(place.host.partition("%")[0])
    except ValueError:
        return True
    return False


def _service(text: str) -> str:
    rest = text[len(SERVICE_SCHEME) :]
    name = rest.removeprefix("/")
    if name == rest:
        raise ValueError(f"address {plain_text(text)!r}: it names a DNS server; write srv:///name")
    if ":" in name or "," in name:
        raise ValueError(
            f"address {plain_text(text)!r}: a service is one name, whose records have the ports; "
            "write srv:///name"
        )
    check_host("service", name)
    return ascii_host(name)
