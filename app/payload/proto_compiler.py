"""Compiles `.proto` sources to descriptor sets with grpcio-tools, if it is installed. Needs no network.

protoc runs as a process of its own, because it writes errors to its file descriptor 2, and because a source
may crash it. It looks for imports beside the source, then in the folder above if that belongs to the
schemas, then among the well-known ones.

A set is cached until the source or one of its imports changes, so that a starting job does not wait for a
compiler. A failure is cached for `COMPILE_RETRY_INTERVAL_S`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from google.protobuf import descriptor_pb2

from app.payload.schema_files import ANYWHERE, HOW, DescriptorError, SchemaFiles, read_limited

COMPILE_TIMEOUT_S = 30.0
MAX_ERROR_CHARS = 500
MAX_CACHED = 200  # sets and failures
COMPILE_RETRY_INTERVAL_S = 10.0

Signature = tuple[int, int, int]  # inode, size, time of the last change (ns)


class Compiled(NamedTuple):
    """A cached set or failure, of files with these signatures, at this time (monotonic)."""

    at_s: float
    signatures: dict[Path, Signature | None]
    result: bytes | DescriptorError


_cache: OrderedDict[tuple[Path, Path | None], Compiled] = OrderedDict()
_lock = threading.Lock()


def compile_source(path: Path, files: SchemaFiles = ANYWHERE) -> bytes:
    """The descriptor set of one `.proto` file among `files`, with its imports.

    Raises:
        DescriptorError: The source cannot be read, grpcio-tools is missing, or protoc refuses the source.
    """
    source = read_limited(path, files)
    key = path.absolute(), files.root
    with _lock:
        cached = _cache.get(key)
    if cached is None or not _is_fresh(cached):
        before = _signature(path)
        result: bytes | DescriptorError
        try:
            result = _run_protoc(path, source, files)
        except DescriptorError as error:
            result = error
        signatures = {path: before}
        if isinstance(result, bytes):
            signatures |= {file: _signature(file) for file in _imports(path, result)}
        cached = Compiled(time.monotonic(), signatures, result)
        with _lock:
            _cache[key] = cached
            while len(_cache) > MAX_CACHED:
                _cache.popitem(last=False)
    if isinstance(cached.result, DescriptorError):
        raise cached.result
    return cached.result


def _is_fresh(cached: Compiled) -> bool:
    if (
        isinstance(cached.result, DescriptorError)
        and time.monotonic() >= cached.at_s + COMPILE_RETRY_INTERVAL_S
    ):
        return False
    return all(_signature(path) == signature for path, signature in cached.signatures.items())


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _imports(path: Path, descriptor_set: bytes) -> list[Path]:
    """The places where protoc may find the set's files; a new file in an earlier place counts as a change."""
    try:
        names = [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file]
    except Exception:  # noqa: BLE001 - the caller parses the set and reports its faults
        return []
    folder = path.absolute().parent
    return [place / name for name in names for place in (folder, folder.parent)]


def _run_protoc(path: Path, source: bytes, files: SchemaFiles) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise DescriptorError(path, "is source, but grpcio-tools is not installed to compile it", HOW)
    if not source.strip():
        raise DescriptorError(path, "is empty", "write a message into it")
    folder = path.absolute().parent
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.binpb"
        above = [f"--proto_path={folder.parent}"] if files.has(folder.parent) else []
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}",
            *above, f"--proto_path={_well_known()}", "--include_imports",
            f"--descriptor_set_out={out}", str(folder / path.name),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DescriptorError(path, f"protoc does not run: {type(error).__name__}", HOW) from error
        if done.returncode != 0 or not out.exists():
            error_text = " ".join(done.stderr.decode("utf-8", "replace").split())[:MAX_ERROR_CHARS]
            raise DescriptorError(
                path, f"does not compile: {error_text or 'no reason given'}", "correct the source"
            )
        return read_limited(out)


def _well_known() -> Path:
    found = importlib.util.find_spec("grpc_tools")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "_proto"
