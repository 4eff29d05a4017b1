"""The address by which other workers reach this one, and the place within which loopback addresses work."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.config.web_address import Web, bracketed

CONNECT_S = 5.0
BOOT_ID, NET = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
# Peers reach a worker that listens there by this family only: asyncio makes a socket on :: take IPv6 alone.
FAMILIES = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}  # noqa: S104 - compared, not bound


def loopback_place() -> str:
    """A name for the host or container to which 127.0.0.1 belongs; processes share it if they share loopback.

    It hashes the boot id and the network namespace, or the host's name where there are none. Reads files.
    """
    try:
        identity = f"{BOOT_ID.read_text().strip()} {os.readlink(NET)}"  # noqa: PTH115 - no file has that name
    except OSError:
        identity = socket.gethostname()
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


async def own_url(web: Web, port: int, bootstrap: Sequence[str]) -> str:
    """The URL for other workers: configured, or with the local address of a connection to the first broker
    that accepts one. Raises OSError: no broker of `bootstrap` (host:port) did, or none of the right
    family."""
    if web.advertise is not None and "://" in web.advertise:
        return web.advertise
    if web.advertised:
        return f"http://{bracketed(web.advertise or web.host)}:{port}"
    family, failed = FAMILIES.get(web.host, socket.AF_UNSPEC), []
    for address in bootstrap:
        host, _, broker_port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(broker_port), family=family)
        except (OSError, TimeoutError) as error:
            failed.append(f"{address}: {error!r}")
            continue
        found = str(writer.get_extra_info("sockname")[0])
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await writer.wait_closed()
        return f"http://{bracketed(found)}:{port}"
    raise OSError(
        f"no broker accepted a connection, which would show this worker's address; it listens on "
        f"{web.host or 'every address'}; set web.advertise if this happens again ({'; '.join(failed)})"
    )
