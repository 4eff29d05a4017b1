"""Where servers and proxies are: gRPC's names for servers, and the environment's for proxies.

The words of others are untrusted: an error shows at most 200 printable characters of them. No error and no
`repr` contains a password.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, unquote_to_bytes

MAX_HOST_CHARS = 253  # RFC 1035
MAX_PORT = 65_535
MAX_PATH_BYTES = 107  # `sockaddr_un` has 108, and one of them is the NUL
MAX_SHOWN_CHARS = 200
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
NO_PROXY_VARIABLES = ("no_grpc_proxy", "no_proxy")
SCHEMES = {"dns", "ipv4", "ipv6", "unix", "unix-abstract"}
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ZONE = re.compile(r"[A-Za-z0-9_.~-]+")
_PORT = re.compile(r"[0-9]{1,5}")
_END_OF_AUTHORITY = re.compile(r"[/?#]")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a host and a port, or a Unix socket.

    Args:
        host: A name or an IP address; IPv6 without brackets, with `%zone` if it is link-local.
        port: 1 to 65535.
        path: Of a Unix socket, instead of host and port; "\\0name" for an abstract one.

    Raises:
        ValueError: With the field, its value and the remedy.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            check_host("host", self.host)
            check_port(self.port)
            return
        if self.host or self.port:
            raise ValueError(
                f"path {_quoted(self.path)}: a Unix socket has no host and no port; name one place"
            )
        name = self.path.removeprefix("\0")
        if not name.isprintable() or name != name.strip() or not name:
            raise ValueError(
                f"path {_quoted(self.path)}: it is empty, or has control characters or blanks around it; "
                "write the path of a Unix socket"
            )
        if len(name.encode()) > MAX_PATH_BYTES:
            raise ValueError(
                f"path {_quoted(self.path)}: a Unix socket's has at most {MAX_PATH_BYTES} bytes; shorten it"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads gRPC's names of servers.

        These are `host:port`, `[::1]:port`, `dns:host:port`, `dns:///host:port`, `ipv4:1.2.3.4:port`,
        `ipv6:[::1]:port`, `unix:path`, `unix:///path` and `unix-abstract:name`. What follows a scheme may be
        percent-encoded. The C core also adds port 443 to a host without one, asks other DNS servers, and
        takes lists of addresses. This function refuses all of these.

        Raises:
            ValueError: With the value, unless it may contain a password, and the remedy.
        """
        scheme, colon, rest = text.partition(":")
        scheme = scheme.lower() if colon else ""
        names_authority = rest.startswith("//") and not rest.startswith("///")
        if scheme in {"unix", "unix-abstract"}:
            if scheme == "unix" and names_authority:
                raise ValueError(f"address {_quoted(text)}: it names a host; write unix:///path or unix:path")
            path = _decoded(rest.removeprefix("//") if scheme == "unix" else f"\0{rest}")
            if not path:
                raise ValueError(f"address {_quoted(text)}: it has no path; write unix:path")
            return cls(path=path)
        if "@" in _decoded(text):  # the text is not shown
            raise ValueError("address: it has no user and no password; write host:port")
        if scheme in SCHEMES:
            if names_authority:
                raise ValueError(
                    f"address {_quoted(text)}: it names a DNS server; write {scheme}:///host:port"
                )
            host, port = _host_and_port(_decoded(rest.removeprefix("///")))
            if scheme != "dns" and not _is_ip(host, scheme):
                raise ValueError(
                    f"address {_quoted(text)}: it has no IP address; write {scheme}:address:port"
                )
            return cls(host, port)
        if rest.startswith("//"):
            raise ValueError(f"address {_quoted(text)}: its scheme is unknown here; write host:port")
        return cls(*_host_and_port(text))

    @property
    def authority(self) -> str:
        """The value of `:authority` for calls to this server, in ASCII and without an IPv6 zone."""
        return "localhost" if self.path else _joined(ascii_host(self.host), self.port)

    def __str__(self) -> str:
        if not self.path:
            text = _joined(self.host, self.port)
            return f"dns:{text}" if self.host.lower() in SCHEMES else text
        path = self.path.replace("%", "%25")
        if path.startswith("\0"):
            return f"unix-abstract:{path[1:]}"
        return f"unix://{path}" if path.startswith("/") else f"unix:{path}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that opens a tunnel on `CONNECT`.

    Args:
        host: As of `Address`.
        port: 1 to 65535.
        authorization: Of the header `Proxy-Authorization`; empty: there is none.

    Raises:
        ValueError: With the field, its value and the remedy.
    """

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_host("host of a proxy", self.host)
        check_port(self.port)
        if not (self.authorization.isascii() and self.authorization.isprintable()):
            raise ValueError(
                "authorization of a proxy has control characters or letters beyond ASCII; encode it"
            )

    @classmethod
    def from_environment(cls, address: Address, environ: Mapping[str, str] = os.environ) -> Self | None:
        """The proxy that the environment names for this server; None: there is none.

        The first variable that is set decides: `grpc_proxy`, `https_proxy`, `http_proxy`. If it is empty, no
        proxy is used. Hosts in `no_grpc_proxy`, or else in `no_proxy`, are exempt: domains with all names in
        them, IP addresses, and networks such as 10.0.0.0/8. Unlike the C core this function also knows `*`
        and `*.domain`, and refuses an invalid proxy where the C core would use none.

        Raises:
            ValueError: The variable names no proxy. The text has its name, no password, and the remedy.
        """
        variable = next((name for name in PROXY_VARIABLES if name in environ), "")
        url = environ.get(variable, "").strip()
        exempt = next((environ[name] for name in NO_PROXY_VARIABLES if name in environ), "")
        if not url or address.path or _is_exempt(address.host, exempt):
            return None
        try:
            return cls._parse(url)
        except ValueError as error:
            why = "" if "@" in url else f" ({error})"
            raise ValueError(
                f"environment variable {variable} names no HTTP proxy{why}; "
                "write http://host:port or http://user:password@host:port"
            ) from None

    @classmethod
    def _parse(cls, url: str) -> Self:
        scheme, found, rest = url.partition("://")
        if not found or scheme.lower() != "http":
            raise ValueError("its scheme is not http")
        user, _, place = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0].rpartition("@")
        host, port = _host_and_port(place)
        if not user:
            return cls(host, port)
        credentials = unquote_to_bytes(user)
        if b":" not in credentials:
            credentials += b":"  # RFC 7617 has a password, though it be empty
        return cls(host, port, f"Basic {base64.b64encode(credentials).decode()}")

    def __str__(self) -> str:
        return f"http://{_joined(self.host, self.port)}"


def check_host(name: str, host: str) -> None:
    """Raises ValueError: this is neither an IP address nor a name. `name`: of the field."""
    if "@" in host:  # it is not shown
        raise ValueError(f"{name}: it has no user and no password; write the host alone")
    if not host:
        raise ValueError(f"{name}: it is empty; write a name or an IP address")
    if len(host) > MAX_HOST_CHARS:
        raise ValueError(
            f"{name} {_quoted(host)}: it is longer than {MAX_HOST_CHARS} letters; write a shorter one"
        )
    if ":" in host:
        _, percent, zone = host.partition("%")
        if not _is_ip(host, "ipv6") or (percent and not _ZONE.fullmatch(zone)):
            raise ValueError(f"{name} {_quoted(host)}: it is no IPv6 address; write one, or a name")
        return
    try:
        letters = ascii_host(host)
    except UnicodeError as error:
        why = plain_text(str(error))
        raise ValueError(f"{name} {_quoted(host)}: it is no name of a host ({why}); write one") from error
    if "%" in host or len(letters) > MAX_HOST_CHARS or not _HOST_NAME.fullmatch(letters):
        raise ValueError(
            f"{name} {_quoted(host)}: it is no name of a host; write letters, digits, '-', '_' and '.'"
        )


def check_port(port: int) -> None:
    if not 1 <= port <= MAX_PORT:
        raise ValueError(f"port {port}: write a number from 1 to {MAX_PORT}")


def _host_and_port(text: str) -> tuple[str, int]:
    """Splits "host:port" and "[v6]:port"; the host is not checked. Raises ValueError."""
    if text.startswith("["):
        host, _, after = text[1:].partition("]")
        if ":" not in host:
            raise ValueError(f"address {_quoted(text)}: brackets enclose an IPv6 address; write [::1]:port")
        before, colon, port = after.rpartition(":")
        if before:
            raise ValueError(f"address {_quoted(text)}: after the brackets comes the port; write [::1]:port")
    else:
        host, colon, port = text.rpartition(":")
        if ":" in host:
            raise ValueError(f"address {_quoted(text)}: an IPv6 address needs brackets; write [::1]:port")
    if not colon or not port:
        raise ValueError(f"address {_quoted(text)}: it has no port; write host:port")
    if not _PORT.fullmatch(port):
        raise ValueError(f"port {_quoted(port)}: write a number from 1 to {MAX_PORT}")
    return host, int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _decoded(text: str) -> str:
    """Percent-decoded. Bytes that are not UTF-8 become surrogates, which `Address` refuses."""
    return unquote(text, errors="surrogateescape")


def ascii_host(host: str) -> str:
    """The host as other machines know it: without an IPv6 zone, in ASCII (RFC 3490). Raises UnicodeError."""
    return host.partition("%")[0].encode("idna").decode("ascii")


def _is_ip(host: str, version: str) -> bool:
    try:
        ipaddress.IPv4Address(host) if version == "ipv4" else ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_exempt(host: str, entries: str) -> bool:
    """Whether `no_proxy` names the host."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        ip = None
    name = host.lower().rstrip(".")
    for entry in (text.strip().lower() for text in entries.split(",")):
        if entry == "*":
            return True
        if ip is None:
            domain = entry.removeprefix("*").strip(".")
            if domain and f".{name}".endswith(f".{domain}"):
                return True
        else:
            with contextlib.suppress(ValueError):  # names do not matter to an IP address
                if ip in ipaddress.ip_network(entry.strip("[]"), strict=False):
                    return True
    return False


def plain_text(text: str) -> str:
    """Text of unknown origin as an error may show it."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_SHOWN_CHARS])
    return " ".join(printable.split())[:MAX_SHOWN_CHARS]


def _quoted(text: str) -> str:
    return repr(plain_text(text))
