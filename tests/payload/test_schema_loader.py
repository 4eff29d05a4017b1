"""Schemas are opened off the event loop, by a bounded number of threads and within a time limit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.payload.schema_files import DescriptorError
from app.payload.schema_loader import OPENERS, SchemaLoader


async def test_a_hanging_open_times_out_and_others_continue(tmp_path: Path) -> None:
    schemas, ended = SchemaLoader(tmp_path, timeout_s=0.2), threading.Event()
    try:
        for _ in range(OPENERS - 1):
            with pytest.raises(
                DescriptorError, match=f"{tmp_path}: a schema could not be opened within 0.2 s"
            ):
                await schemas.run(ended.wait)
        schemas._timeout_s = 60.0
        assert await schemas.run(threading.get_ident) != threading.get_ident()
    finally:
        ended.set()
        schemas.close()


async def test_an_error_of_opening_is_raised_unchanged(tmp_path: Path) -> None:
    schemas = SchemaLoader(tmp_path)

    def refused() -> None:
        raise DescriptorError("x", "is none", "name one")

    with pytest.raises(DescriptorError, match="x: is none; name one"):
        await schemas.run(refused)
    schemas.close()
