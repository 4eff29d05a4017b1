"""The `web` section of `switchyard.yaml`: the address that a worker listens on, and those that reach it."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
MAX_PUBLIC = 32  # each request's Host and Origin are compared with them
MAX_ADDRESS_CHARS = 300  # a host name has at most 253
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")
_PORTS = {"http": 80, "https": 443}


def bracketed(host: str) -> str:
    """`host` as it stands in a URL: an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare else bare


def is_loopback(host: str) -> bool:
    """Whether only the machine itself reaches `host`, a name or an address with or without brackets."""
    bare = host.strip("[]").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return address.is_loopback or address.is_unspecified or bool(mapped and mapped.is_loopback)


def normal_origin(text: str) -> str:
    """An origin as browsers send it: lower case, no default port. Raises ValueError: `text` is none."""
    parts = urlsplit(text)
    scheme, host, port = parts.scheme, (parts.hostname or "").lower(), parts.port
    shown = "" if port in {None, _PORTS.get(scheme)} else f":{port}"
    return f"{scheme}://{bracketed(host)}{shown}"


def _is_host(text: str) -> bool:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return ipaddress.ip_address(bare).version == 6 or bare == text
    except ValueError:
        # Digits alone are an address that is written wrong, such as 10.0.0.300.
        return _NAME.fullmatch(text) is not None and not text.rpartition(".")[2].isdigit()


def _split(text: str, remedy: str) -> SplitResult:
    """The parts of a URL that is an origin and no more. Raises ValueError with `remedy`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"not an address; {remedy}") from None
    if parts.scheme not in _PORTS or not text.isascii() or not text.isprintable() or "\\" in text:
        raise ValueError(f"not an http or https address in plain characters; {remedy}")
    if "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"has more than scheme, host and port; {remedy}")
    host = parts.netloc if port is None else parts.netloc.rpartition(":")[0]
    if not _is_host(host.removesuffix(":")) or port == 0:
        raise ValueError(f"its host or port is none; {remedy}")
    return parts


def _host(text: str) -> str:
    if text not in EVERYWHERE and not _is_host(text):
        raise ValueError("not a host; write an address of this machine, or 0.0.0.0 for all of them")
    return text.strip("[]")


def _public(value: object) -> str:
    remedy = "write it as the browser shows it, such as https://switchyard.example.com"
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ADDRESS_CHARS:
        raise ValueError(f"not an address; {remedy}")
    _split(value.strip(), remedy)
    return normal_origin(value.strip())


def _advertise(value: object) -> str:
    remedy = "write a host name or an address, or a URL such as http://10.0.0.7:6066"
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= MAX_ADDRESS_CHARS:
        raise ValueError(f"not an address; {remedy}")
    if "://" in text:
        host = _split(text, remedy).hostname or ""
        text = normal_origin(text)
    elif _is_host(text):
        host = text.strip("[]")
    else:
        raise ValueError(f"neither a host nor a URL; {remedy}")
    if host in EVERYWHERE:
        raise ValueError("every address is none that others can reach; write the one by which they do")
    return text


class Web(BaseModel):
    """Where the console and the API listen, on loopback by default, and by which addresses they are reached.

    `port` 0 takes a free one. `advertise` is the host (with this port) or the URL by which other workers
    reach this one. The default is `host`; for one that listens on every address, it is the local address of
    its connection to the control cluster. `public` lists the origins by which people reach the console
    through a reverse proxy, an ingress or a service, such as https://switchyard.example.com.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
    port: int = Field(default=6066, ge=0, le=65535)
    advertise: Annotated[str, BeforeValidator(_advertise)] | None = None
    public: tuple[Annotated[str, BeforeValidator(_public)], ...] = Field(default=(), max_length=MAX_PUBLIC)

    @property
    def advertised(self) -> str:
        """The configured URL for other workers; "" when it depends on the way to the control cluster."""
        if self.advertise is not None and "://" in self.advertise:
            return self.advertise
        host = self.advertise or self.host
        return "" if host in EVERYWHERE else f"http://{bracketed(host)}:{self.port}"
