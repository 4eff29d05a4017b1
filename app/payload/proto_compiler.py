"""`.proto` sources to descriptor sets, by grpcio-tools where it is installed; no network.

protoc runs as a process of its own: it writes its errors to the descriptor 2 of its process, and a source
that makes it stumble takes nothing down. Imports are looked for beside the source and in the folder above,
then among the well-known ones.

What was compiled is kept for as long as neither the source nor one of its imports changes, so that a job that
starts does not wait for a compiler; what does not compile is tried again after `COMPILE_RETRY_INTERVAL_S`.
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

from app.payload.descriptors import HOW, DescriptorError, read_limited
from app.payload.schema_files import ANYWHERE, SchemaFiles

COMPILE_TIMEOUT_S = 30.0
MAX_WORDS_CHARS = 500
MAX_KEPT = 200  # of sets, or of why there is none
COMPILE_RETRY_INTERVAL_S = 10.0

Signature = tuple[int, int, int]  # inode, size, time of the last change (ns)


class Compiled(NamedTuple):
    """What became of a source: of files as they were, when (monotonic seconds)."""

    at_s: float
    of: dict[Path, Signature | None]
    found: bytes | DescriptorError


_kept: OrderedDict[tuple[Path, Path | None], Compiled] = OrderedDict()
_lock = threading.Lock()


def compile_source(path: Path, files: SchemaFiles = ANYWHERE) -> bytes:
    """The descriptor set of one `.proto` file, its imports in it.

    Args:
        path: where it stands.
        files: among which it is.

    Raises:
        DescriptorError: it cannot be read, grpcio-tools is missing, or protoc refuses it, and why.
    """
    source = read_limited(path, files)
    key = path.absolute(), files.root
    with _lock:
        kept = _kept.get(key)
    if kept is None or not _is_fresh(kept):
        before = _signature(path)
        found: bytes | DescriptorError
        try:
            found = _compiled(path, source, files)
        except DescriptorError as error:
            found = error
        of = {path: before}
        if isinstance(found, bytes):
            of |= {import_: _signature(import_) for import_ in _imports(path, found)}
        kept = Compiled(time.monotonic(), of, found)
        with _lock:
            _kept[key] = kept
            while len(_kept) > MAX_KEPT:
                _kept.popitem(last=False)
    if isinstance(kept.found, DescriptorError):
        raise kept.found
    return kept.found


def _is_fresh(kept: Compiled) -> bool:
    if isinstance(kept.found, DescriptorError) and time.monotonic() >= kept.at_s + COMPILE_RETRY_INTERVAL_S:
        return False
    return all(_signature(path) == was for path, was in kept.of.items())


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _imports(path: Path, found: bytes) -> list[Path]:
    """Where protoc may find what the set has; a file that appears in front of another one counts, too."""
    try:
        names = [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(found).file]
    except Exception:  # noqa: BLE001 - the set is parsed, and told of, by others
        return []
    folder = path.absolute().parent
    return [place / name for name in names for place in (folder, folder.parent)]


def _compiled(path: Path, source: bytes, files: SchemaFiles) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise DescriptorError(path, "is source, and grpcio-tools is not installed to compile it", HOW)
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
            words = " ".join(done.stderr.decode("utf-8", "replace").split())[:MAX_WORDS_CHARS]
            raise DescriptorError(
                path, f"does not compile: {words or 'no reason given'}", "correct the source"
            )
        return read_limited(out)


def _well_known() -> Path:
    found = importlib.util.find_spec("grpc_tools")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "_proto"
