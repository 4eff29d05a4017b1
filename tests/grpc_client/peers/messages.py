"""The messages of the peers' service. Their classes are made at run time, so no code is generated."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = Path(__file__).with_name("interop.proto")
PACKAGE = "grpc.testing"
PROTOC = (sys.executable, "-m", "grpc_tools.protoc")
PROTOC_TIMEOUT_S = 60.0


@functools.cache
def description() -> bytes:
    """The description of `interop.proto`, a serialized FileDescriptorSet."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "interop.binpb"
        command = [*PROTOC, f"-I{PROTO.parent}", f"--descriptor_set_out={output}", PROTO.name]
        subprocess.run(command, check=True, timeout=PROTOC_TIMEOUT_S)
        return output.read_bytes()


@functools.cache
def message(name: str) -> Any:
    """The class of a message: `message("SimpleRequest")`. Raises KeyError: the file has no such message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(description()).file:
        pool.Add(file)
    return pool
