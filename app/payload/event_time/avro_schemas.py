"""Avro schemas from files: one for all values, or a folder of `<schema id>.avsc`.

Workers look at a folder again while they run, as in `app.payload.schema_registry`. It may hold schemas of
other topics, without the field: their values have no event time, and `AvroSchemaFolder.unusable` says why.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from fastavro.types import Schema

from app.payload.codec import Framing
from app.payload.event_time.avro_field import AvroTime
from app.payload.event_time.avro_prefix import MAX_SCHEMA_BYTES, prefix_of
from app.payload.event_time.instant import TimeFormat, UnusableField
from app.payload.schema_files import ANYWHERE, FileRefused, SchemaFiles
from app.payload.schema_registry import MAX_ENTRIES, SETTLED_NS, changed_ns, number_of

SUFFIX = ".avsc"
MAX_SCHEMAS = 1_000
_LAYOUT = f"a folder of schemas holds <schema id>{SUFFIX}"


class AvroSchemaFolder:
    """Prefixes of schemas by schema id.

    Attributes:
        unusable: schema id -> why the field cannot be read in it.
    """

    def __init__(
        self,
        folder: Path,
        path: tuple[str, ...],
        time_format: TimeFormat | None,
        files: SchemaFiles = ANYWHERE,
    ) -> None:
        """Reads the folder, which is among `files`.

        Raises:
            UnusableField: it cannot be read, or the field in none of its schemas.
        """
        self.unusable: dict[int, UnusableField] = {}
        self._folder = folder
        self._path = path
        self._format = time_format
        self._files = files
        self._prefixes: dict[int, Schema] = {}
        name = ".".join(path)
        self._seen_ns = changed_ns(folder)
        try:
            ids = self._ids()
        except OSError as error:
            raise UnusableField(name, f"{folder} cannot be read: {error.strerror}", _LAYOUT) from None
        if len(ids) > MAX_SCHEMAS:
            raise UnusableField(name, f"{folder} holds more than {MAX_SCHEMAS} schemas", "split the folder")
        for schema_id in ids:
            self._load(schema_id)
        if not self._prefixes:
            why = next(iter(self.unusable.values()), None)
            raise why or UnusableField(name, f"{folder} holds no schema", _LAYOUT)
        files.watch(self)

    def prefix(self, schema_id: int) -> Schema | None:
        """The prefix; None: there is no such schema, or the field cannot be read in it."""
        return self._prefixes.get(schema_id)

    def refresh(self) -> None:
        """Reads the schemas that have come since. To be called off the event loop."""
        at_ns = changed_ns(self._folder)
        if at_ns == self._seen_ns and time.time_ns() - at_ns > SETTLED_NS:
            return
        self._seen_ns = at_ns
        try:
            ids = self._ids()
        except OSError:
            return  # what is known stays
        for schema_id in ids:
            is_new = schema_id not in self._prefixes and schema_id not in self.unusable
            if is_new and len(self._prefixes) + len(self.unusable) < MAX_SCHEMAS:
                self._load(schema_id)

    def _ids(self) -> list[int]:
        entries = islice(self._folder.iterdir(), MAX_ENTRIES)
        return sorted(int(entry.stem) for entry in entries if _is_schema(entry))

    def _load(self, schema_id: int) -> None:
        try:
            self._prefixes[schema_id] = _prefix_in(
                self._folder / f"{schema_id}{SUFFIX}", self._path, self._format, self._files
            )
        except UnusableField as problem:
            self.unusable[schema_id] = problem


def open_avro(
    name: str | Path,
    path: tuple[str, ...],
    time_format: TimeFormat | None,
    framing: Framing,
    files: SchemaFiles = ANYWHERE,
) -> AvroTime:
    """A field by the schema of a file of `files`, which stands for every schema id, or by those of a folder.

    Raises:
        UnusableField: the schemas cannot be used.
    """
    try:
        source = files.find(name)
        is_folder = source.is_dir()
    except FileRefused as error:
        raise UnusableField(".".join(path), f"{name} {error.why}", error.remedy) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UnusableField(".".join(path), f"{name} is no path: {error}", "correct the path") from None
    if is_folder:
        if framing is Framing.NONE:
            raise UnusableField(
                ".".join(path), f"{source} is a folder, and values without framing name no schema",
                f"name one {SUFFIX} file in it, or say framing confluent",
            )  # fmt: skip
        return AvroTime(AvroSchemaFolder(source, path, time_format, files).prefix, framing)
    prefix = _prefix_in(source, path, time_format, files)
    return AvroTime(lambda _: prefix, framing)


def _prefix_in(
    file: Path, path: tuple[str, ...], time_format: TimeFormat | None, files: SchemaFiles
) -> Schema:
    name = ".".join(path)
    try:
        text = files.read(file, MAX_SCHEMA_BYTES)
    except FileRefused as error:
        raise UnusableField(name, f"{file} {error.why}", error.remedy) from None
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UnusableField(name, f"{file} cannot be read: {words}", "correct the path") from None
    try:
        return prefix_of(text, path, time_format)
    except UnusableField as wrong:
        raise UnusableField(name, f"{file}: {wrong.problem}", wrong.remedy) from None


def _is_schema(entry: Path) -> bool:
    return entry.suffix == SUFFIX and entry.stem == str(number_of(entry))
