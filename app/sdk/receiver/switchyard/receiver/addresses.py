"""The address that a receiver listens on, and why it cannot."""

from __future__ import annotations

import errno
import socket

_REASONS = {
    errno.EADDRINUSE: (
        "another process listens there", "stop that process, or choose another port (0: a free one)"
    ),
    errno.EADDRNOTAVAIL: (
        "no network interface of this host has that address", "listen on 0.0.0.0 or ::, for all interfaces"
    ),
    errno.EACCES: ("this user may not use that port", "choose a port from 1024 on"),
    errno.EAFNOSUPPORT: ("this host has no IPv6", "listen on 0.0.0.0"),
}  # fmt: skip


def listening_address(host: str, port: int) -> str:
    """The address in gRPC's notation, which has an IPv6 address in brackets."""
    is_ipv6 = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"


def is_port(port: int) -> bool:
    return 0 <= port < 1 << 16


def why_not_bound(host: str, port: int) -> str:
    """The reason why nothing can listen there, and the remedy: gRPC does not tell it."""
    if not is_port(port):
        return "that is no port; choose one from 0 (a free one) to 65535"
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        return f"the name {host!r} does not resolve ({error}); write an address of this host, 0.0.0.0 or ::"
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
        except OSError as error:
            reason, remedy = _REASONS.get(
                error.errno or 0, (error.strerror or str(error), "choose another address or port")
            )
            return f"{reason}; {remedy}"
    return "gRPC gives no reason; set GRPC_VERBOSITY=debug to see more"
