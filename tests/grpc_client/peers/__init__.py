"""gRPC servers in other languages, for tests and benchmarks of our client.

| language | library                         |
|----------|---------------------------------|
| go       | grpc-go                         |
| java     | grpc-java with Netty            |
| node     | grpc-js                         |
| python   | grpcio, gRPC's C core           |
| rust     | tonic                           |

Each serves the service of `interop.proto`. All methods but EmptyCall also obey a call's metadata:

| metadata                        | the server                                                           |
|---------------------------------|----------------------------------------------------------------------|
| `x-grpc-test-echo-initial`      | returns it as initial metadata                                       |
| `x-grpc-test-echo-trailing-bin` | returns it as trailing metadata                                      |
| `x-test-big-trailer: N`         | adds the trailing metadata `x-test-big` of N letters                 |
| `x-test-sleep-ms: N`            | answers UnaryCall after N ms; sleeping calls cost no threads         |
| `x-test-details: 1`             | adds `grpc-status-details-bin` (`DetailedStatus`) to a wanted status |

`/switchyard.bench.Echo/Call` answers every message with an empty one, and reads no message. In go, such a
call lasts `--bench-delay-ms N`, and `--bench-at-once N` calls are worked on at a time.

The options of each server:

| option                             | meaning                                                       |
|------------------------------------|---------------------------------------------------------------|
| `--port N`                         | listens on 127.0.0.1; 0, the default: on a free port          |
| `--unix PATH`                      | listens on a Unix socket instead                              |
| `--tls-cert FILE --tls-key FILE`   | TLS; PEM files, the key in PKCS #8                            |
| `--client-ca FILE`                 | clients must show a certificate of this authority             |
| `--max-concurrent-streams N`       | a connection's calls at once; no limit by default             |
| `--max-connection-age-ms N`        | then a connection gets GOAWAY; never by default               |
| `--max-connection-age-grace-ms N`  | then its calls are canceled; never by default                 |
| `--max-message BYTES`              | of the largest request; 4 MiB by default                      |
| `--until-stdin-ends`               | ends at once when the standard input ends                     |

A server prints `listening on PORT` or `listening on PATH` when it is ready. SIGTERM ends it gracefully:
it sends GOAWAY, waits for calls in progress without limit, and exits with 0.

What a language's library cannot do:

- node: never compresses responses. Node's HTTP/2 sends no metadata above 64 KiB.
- go: compresses all responses of a call or none. Its first request decides, in java and python too.
- rust: compresses only the response of UnaryCall. With a grace, tonic cuts a connection after both times and
  sends no GOAWAY. It answers OUT_OF_RANGE to a request above the largest; the others RESOURCE_EXHAUSTED. It
  resets calls whose `:authority` has a percent sign, such as gRPC's own for Unix sockets.
- java: an age of less than 1 s counts as 1 s.
- go, java, node, python: an age is up to 10 % more or less, by chance.

A test starts a server so:

    with peers.start("go", "--max-concurrent-streams", "1") as peer:
        channel = grpc.insecure_channel(peer.address)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.grpc_client.peers.build import command, missing

__all__ = ["LANGUAGES", "PARAMETERS", "Peer", "StartFailed", "missing", "require", "start"]

LANGUAGES = ("go", "java", "node", "python", "rust")
# The same for `pytest.mark.parametrize`. A first build of Rust's takes a minute or two.
PARAMETERS = [
    pytest.param(name, marks=pytest.mark.deep(minutes=0.05)) if name == "rust" else name for name in LANGUAGES
]
READY = "listening on "
START_TIMEOUT_S = 60.0  # a JVM on a busy machine
STOP_TIMEOUT_S = 60.0


class StartFailed(RuntimeError):
    """A peer ended, or did not say in time where it listens."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server. `address` is "127.0.0.1:PORT" or "unix:PATH"; `port` is 0 for a Unix socket."""

    language: str
    address: str
    port: int
    process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Asks for a graceful end, and does not wait for it."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit code. Raises subprocess.TimeoutExpired: the server still runs."""
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ends the server gracefully; the exit code. Raises subprocess.TimeoutExpired."""
        self.terminate()
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Ends the server at once (SIGKILL), if it still runs."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


def require(language: str) -> None:
    """Skips the running test if a tool of the language is missing; fails it in CI, which has all tools."""
    if (reason := missing(language)) is None:
        return
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def start(language: str, *options: str) -> Iterator[Peer]:
    """Builds the server if it must be, starts it with the options, and kills it at the end.

    Raises:
        BuildFailed: It does not compile.
        StartFailed: It ended, or does not listen in time. Its own words are on standard error.
    """
    process = subprocess.Popen(
        [*command(language), "--until-stdin-ends", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        place = _place(language, process)
        if place.isdecimal():
            peer = Peer(language, f"127.0.0.1:{place}", int(place), process)
        else:
            peer = Peer(language, f"unix:{place}", 0, process)
        yield peer
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _place(language: str, process: subprocess.Popen[bytes]) -> str:
    """The port or path in the server's first line."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        left_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([process.stdout], [], [], left_s)[0]:
            raise StartFailed(f"the peer in {language} does not listen after {START_TIMEOUT_S:.0f} s")
        if not (read := os.read(process.stdout.fileno(), 1024)):
            code = process.wait(STOP_TIMEOUT_S)
            raise StartFailed(
                f"the peer in {language} ended with {code} before it listened: {process.args!r}"
            )
        line += read
    text = line.decode()
    if not text.startswith(READY):
        raise StartFailed(f"the peer in {language} said {text!r} instead of {READY!r} and a port")
    return text.removeprefix(READY).strip()
