"""Avro schemas from files: one for all values, or a folder of `<schema id>.avsc`.

Workers look for new files in the folder while they run, as in `app.payload.schema_registry`. The folder may
hold schemas of other topics, which lack the field. Values of these have no event time, and
`AvroSchemaFolder.unusable` has the reason.
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
    """Prefixes of a folder's schemas. `unusable`: schema id -> why it has no prefix."""

    def __init__(
        self,
        folder: Path,
        path: tuple[str, ...],
        time_format: TimeFormat | None,
        files: SchemaFiles = ANYWHERE,
    ) -> None:
        """Reads the folder, or raises UnusableField: it cannot be read, or no schema has the field."""
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
        """Reads the schemas that were added since the last look. Call it off the event loop."""
        at_ns = changed_ns(self._folder)
        if at_ns == self._seen_ns and time.time_ns() - at_ns > SETTLED_NS:
            return
        self._seen_ns = at_ns
        try:
            ids = self._ids()
        except OSError:
            return  # known schemas stay
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
    """Event times by one schema file, which counts for every schema id, or by a folder of them.

    Raises:
        UnusableField: The schemas cannot be used.
    """
    try:
        source = files.find(name)
        is_folder = source.is_dir()
    except FileRefused as error:
        raise UnusableField(".".join(path), f"{name} {error.why}", error.remedy) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UnusableField(
            ".".join(path), f"{name} is not a valid path: {error}", "correct the path"
        ) from None
    if is_folder:
        if framing is Framing.NONE:
            raise UnusableField(
                ".".join(path),
                f"{source} is a folder, but values without framing name no schema",
                f"name one {SUFFIX} file in it, or configure framing confluent",
            )
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
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableField(name, f"{file} cannot be read: {reason}", "correct the path") from None
    try:
        return prefix_of(text, path, time_format)
    except UnusableField as error:
        raise UnusableField(name, f"{file}: {error.problem}", error.remedy) from None


def _is_schema(entry: Path) -> bool:
    return entry.suffix == SUFFIX and entry.stem == str(number_of(entry))
