"""Looks a target up until it is killed: a line of JSON for each change of its addresses."""

from __future__ import annotations

import asyncio
import json
import sys

from app.grpc_client.address import Address
from app.grpc_client.resolver import MIN_INTERVAL_S, Resolver, Target


def tell(fact: object) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


async def main(target: str) -> None:
    def show(addresses: tuple[Address, ...]) -> None:
        tell([str(one) for one in addresses])

    resolver = Resolver(Target.parse(target), show, interval_s=MIN_INTERVAL_S)
    while not resolver.error:  # noqa: ASYNC110 - a look-up that fails ends this program
        await asyncio.sleep(0.1)
    tell({"error": resolver.error, "addresses": len(resolver.addresses)})
    await resolver.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
