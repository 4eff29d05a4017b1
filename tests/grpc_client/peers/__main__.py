"""Builds one of the peers and runs it: `python -m tests.grpc_client.peers go --port 50051`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.grpc_client import peers
from tests.grpc_client.peers.build import BuildFailed, command

EXAMPLE = "example:\n  python -m tests.grpc_client.peers go --port 50051 --max-concurrent-streams 10\n\n"


def main() -> None:
    """Becomes the peer. Exits with 1 and the reason if it cannot be built."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.grpc_client.peers",
        description="Builds a gRPC server in one of the languages and runs it until Ctrl-C or SIGTERM.",
        epilog=EXAMPLE + (peers.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] {" + ",".join(peers.LANGUAGES) + "} [options of the server, see below]",
        allow_abbrev=False,
    )
    parser.add_argument("language", choices=peers.LANGUAGES)
    chosen, options = parser.parse_known_args()
    if (reason := peers.missing(chosen.language)) is not None:
        sys.exit(reason)
    try:
        words = command(chosen.language)
    except BuildFailed as failure:
        sys.exit(str(failure))
    os.execvp(words[0], [*words, *options])  # noqa: S606 - the peer gets the terminal and the signals


if __name__ == "__main__":
    main()
