"""`.proto` sources to descriptor sets, by grpcio-tools where it is installed; no network.

protoc runs as a process of its own: it writes its errors to the descriptor 2 of its process, and a source
that makes it stumble takes nothing down. Imports are looked for beside the source and in the folder above,
then among the well-known ones.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from app.payload.descriptors import HOW, DescriptorError, read_limited

COMPILE_S = 30.0
MAX_WORDS_CHARS = 500


def compile_source(path: Path, source: bytes) -> bytes:
    """The descriptor set of one `.proto` file, its imports in it.

    Args:
        path: where it stands.
        source: its bytes, read with a limit.

    Raises:
        DescriptorError: grpcio-tools is missing, or protoc refuses the source (its words are told).
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise DescriptorError(path, "is source, and grpcio-tools is not installed to compile it", HOW)
    if not source.strip():
        raise DescriptorError(path, "is empty", "write a message into it")
    folder = path.absolute().parent
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.binpb"
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}",
            f"--proto_path={folder.parent}", f"--proto_path={_well_known()}", "--include_imports",
            f"--descriptor_set_out={out}", str(folder / path.name),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=COMPILE_S, check=False, stdin=subprocess.DEVNULL
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
