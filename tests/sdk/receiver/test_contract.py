"""The committed code is generated from the published contract, and the contract passes buf."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import switchyard.v1

ROOT = Path(switchyard.v1.__file__).parents[2]
SOURCE = "switchyard/v1/receiver.proto"
BUF = Path(sys.executable).with_name("buf")


def test_the_committed_code_is_generated_from_the_committed_contract(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT), f"--python_out={tmp_path}",
         f"--pyi_out={tmp_path}", SOURCE],
        check=True,
    )  # fmt: skip

    for name in ("receiver_pb2.py", "receiver_pb2.pyi"):
        generated = (tmp_path / "switchyard/v1" / name).read_text()
        assert (ROOT / "switchyard/v1" / name).read_text() == generated, f"generate {name} again"


@pytest.mark.skipif(not BUF.exists(), reason="buf is not installed")
@pytest.mark.parametrize("command", [["lint"], ["format", "--diff", "--exit-code"]], ids=" ".join)
def test_the_contract_passes_buf(command: list[str]) -> None:
    done = subprocess.run([BUF, *command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
