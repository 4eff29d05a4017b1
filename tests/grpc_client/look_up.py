"""Looks a target up until it is killed: a line of JSON for each change of its addresses, or of the error.

python -m tests.grpc_client.look_up TARGET            asks the system's DNS servers
python -m tests.grpc_client.look_up TARGET ZONE_FILE  serves DNS itself, from a zone file
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from app.grpc_client.address import Address
from app.grpc_client.resolver import MIN_INTERVAL_S, Resolver
from app.grpc_client.target import Target
from tests.grpc_client.name_server import NameServer


async def main(target: str, zone: str = "") -> None:
    found: list[str] = []

    def follow(addresses: tuple[Address, ...]) -> None:
        found[:] = map(str, addresses)

    if zone:
        # In the same event loop: a look-up that blocked the loop would never be answered.
        await NameServer.start(Path(zone))
    resolver = Resolver(Target.parse(target), follow, interval_s=MIN_INTERVAL_S)
    last = ""
    while True:
        line = json.dumps({"addresses": found, "error": resolver.error}) + "\n"
        if line != last and (found or resolver.error):
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
