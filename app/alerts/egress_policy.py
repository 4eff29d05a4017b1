"""Whether a channel's address is near the worker, and which parts of it look secret. Pure: looks no name up.

An alert makes workers send requests from their own network. Its address may be the worker's machine, its
link, or the service that gives credentials to a cloud's machines. A deploy warns of such an address. With
`alerts: {local: refuse}` a deploy refuses it; workers also check the address that a name has when they send.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import parse_qsl, urlsplit

MACHINE, LINK, METADATA = "this machine", "this machine's link", "a cloud's metadata service"
METADATA_NAMES = {"metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
METADATA_ADDRESSES = {  # those of AWS (also of others), of AWS by IPv6, Alibaba, Oracle
    ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192")
}
NAT64 = ip_network("64:ff9b::/96")  # holds an address of IPv4 in its last 32 bits
# Services whose addresses are secrets: anyone with the address can write there.
_SECRET_PLACES = re.compile(
    r"//(hooks\.slack\.com/services|[^/]*discord(app)?\.com/api/webhooks|[^/]*\.?webhook\.office\.com/"
    r"|outlook\.office\.com/webhook|api\.telegram\.org/bot|hooks\.zapier\.com/|chat\.googleapis\.com/)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"auth|token|secret|password|passwd|(^|[_-])(key|sig|signature|pwd)$|api-?_?key", re.I)
_RANDOM = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_=]{20,}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SCHEME = re.compile(r"(bearer|basic|token)\s+\S", re.IGNORECASE)


def leads_inside(host: str) -> str:
    """The part of a worker's surroundings that a host's name or address means; "": none that is known."""
    name = host.strip("[]").rstrip(".").lower()
    if name in METADATA_NAMES:
        return METADATA
    if name == "localhost" or name.endswith((".localhost", ".localdomain")):
        return MACHINE
    address = _address(name.partition("%")[0])
    if address is None:
        return ""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped
        if inner is None and address in NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        address = inner or address
    if address in METADATA_ADDRESSES:
        return METADATA
    if address.is_loopback or address.is_unspecified:
        return MACHINE
    return LINK if address.is_link_local or address.is_multicast else ""


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address in any form that resolvers accept: 127.1 and 0x7f000001 are 127.0.0.1, too."""
    try:
        return ip_address(text)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(text)) if text[:1].isdigit() else None
    except (OSError, ValueError):
        return None


def inside_of(url: str) -> str:
    """As `leads_inside`, for the host of a URL."""
    return leads_inside(urlsplit(url).hostname or "")


def secrets_of(url: str, headers: Mapping[str, str]) -> Iterator[str]:
    """The parts of a URL and headers that look like a secret, named without their values."""
    parts = urlsplit(url)
    if _SECRET_PLACES.search(url):
        yield "the address of such a service"
    elif any(_is_random(segment) for segment in parts.path.split("/")):
        yield "the path"
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if text and (_NAMED.search(name) or _is_random(text)):
            yield f"the parameter {name[:60]}"
    for name, text in headers.items():
        if not text.startswith("env:") and (_SCHEME.match(text) or _is_random(text)):
            yield f"the header {name[:60]}"


def _is_random(text: str) -> bool:
    return bool(_UUID.fullmatch(text) or _RANDOM.fullmatch(text))
