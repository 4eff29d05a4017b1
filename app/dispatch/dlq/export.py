"""Writes exported dead letters to a file, as JSON lines or Parquet, completely or not at all.

An export is lossless: JSON holds bytes that are not UTF-8 as base64, Parquet holds them as bytes. The file
gets its name after its content has been synced to disk.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from app.dispatch.dlq.letter import unwhole
from app.kernel.json_types import JsonObject

FORMATS = ("jsonl", "parquet")
GROUP_ROWS = 1_000
GROUP_BYTES = 32 * 1024 * 1024  # of JSON lines in memory, before they are written as a row group


class NoParquet(RuntimeError):
    """The package that writes Parquet is not installed."""


def check_format(name: str) -> None:
    """Raises NoParquet if this process cannot write the format."""
    if name == "parquet":
        _pyarrow()


def write_file(path: Path, file_format: str, lines: Iterable[bytes]) -> int:
    """Writes JSON lines, one for each letter, to `path`; replaces an existing file. Returns their number.

    Raises:
        NoParquet; OSError; any error of `lines`: `path` stays unchanged.
    """
    check_format(file_format)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            count = _write_lines(file, lines) if file_format == "jsonl" else _write_parquet(file, lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)  # only its owner may read it (mkstemp), because letters are production data
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def _write_lines(file: Any, lines: Iterable[bytes]) -> int:
    count = 0
    for line in lines:
        file.write(line)
        count += 1
    return count


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise NoParquet("Parquet needs pyarrow, which is not installed: pip install pyarrow") from error


def _write_parquet(file: Any, lines: Iterable[bytes]) -> int:
    arrow, parquet = _pyarrow()
    header = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
    origin = arrow.struct(
        [("topic", arrow.string()), ("partition", arrow.string()), ("offset", arrow.string()),
         ("timestamp_ms", arrow.string())]
    )  # fmt: skip
    schema = arrow.schema(
        [("partition", arrow.int32()), ("offset", arrow.int64()), ("timestamp_ms", arrow.int64()),
         ("moved_ms", arrow.int64()), ("code", arrow.string()), ("reason", arrow.string()),
         ("attempt", arrow.int64()), ("merges", arrow.int64()), ("raw_batch", arrow.bool_()),
         ("left_out_bytes", arrow.int64()), ("left_out_key_bytes", arrow.int64()),
         ("origin", origin), ("key", arrow.binary()), ("value", arrow.binary()),
         ("headers", arrow.list_(header))]
    )  # fmt: skip
    count, rows, held_bytes = 0, [], 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for line in lines:
            rows.append(_row(orjson.loads(line)))
            held_bytes += len(line)
            if len(rows) >= GROUP_ROWS or held_bytes >= GROUP_BYTES:
                writer.write_table(arrow.Table.from_pylist(rows, schema))
                count, rows, held_bytes = count + len(rows), [], 0
        writer.write_table(arrow.Table.from_pylist(rows, schema))
    return count + len(rows)


def _row(letter: JsonObject) -> JsonObject:
    return letter | {
        "key": unwhole(letter["key"]),
        "value": unwhole(letter["value"]),
        "headers": [{"name": name, "value": unwhole(value)} for name, value in letter["headers"]],
    }
