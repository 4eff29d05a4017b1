"""Avro schemas from files: one for all values, or a folder of `<schema id>.avsc`.

A schema id that is not there is looked for again, at most once in `LOOK_AGAIN_S` for all ids together, as in
`app.payload.registry`. A folder may hold schemas without the field (other topics'): values of theirs have no
event time, and `Folder.unusable` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from app.payload.codec import Framing
from app.payload.event_time.avro_field import AvroTime, OneSchema
from app.payload.event_time.avro_plan import MAX_SCHEMA_BYTES, Plan, compiled
from app.payload.event_time.instant import TimeFormat, UnusableField
from app.payload.registry import LOOK_AGAIN_S, MAX_SCHEMA_ID

SUFFIX = ".avsc"
MAX_SCHEMAS = 1_000
_LAYOUT = f"a folder of schemas holds <schema id>{SUFFIX}"


class Folder:
    """Plans by schema id.

    Attributes:
        unusable: schema id -> why the field cannot be read in it.
    """

    def __init__(
        self,
        folder: Path,
        path: tuple[str, ...],
        time_format: TimeFormat | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the folder.

        Raises:
            UnusableField: it cannot be read, or the field in none of its schemas.
        """
        self.unusable: dict[int, UnusableField] = {}
        self._folder = folder
        self._path = path
        self._format = time_format
        self._clock = clock
        self._plans: dict[int, Plan] = {}
        name = ".".join(path)
        try:
            ids = sorted(int(entry.stem) for entry in folder.iterdir() if _is_schema(entry))
        except OSError as error:
            raise UnusableField(name, f"{folder} cannot be read: {error.strerror}", _LAYOUT) from None
        if len(ids) > MAX_SCHEMAS:
            raise UnusableField(name, f"{folder} holds more than {MAX_SCHEMAS} schemas", "split the folder")
        for schema_id in ids:
            self._load(schema_id)
        self._looked_s = clock()
        if not self._plans:
            why = next(iter(self.unusable.values()), None)
            raise why or UnusableField(name, f"{folder} holds no schema", _LAYOUT)

    def plan(self, schema_id: int) -> Plan | None:
        """See `avro_field.Schemas`."""
        found = self._plans.get(schema_id)
        if found is not None or schema_id in self.unusable:
            return found
        now_s = self._clock()
        if now_s < self._looked_s + LOOK_AGAIN_S or len(self._plans) + len(self.unusable) >= MAX_SCHEMAS:
            return None
        self._looked_s = now_s
        if (self._folder / f"{schema_id}{SUFFIX}").is_file():
            self._load(schema_id)
        return self._plans.get(schema_id)

    def _load(self, schema_id: int) -> None:
        try:
            self._plans[schema_id] = _compiled(
                self._folder / f"{schema_id}{SUFFIX}", self._path, self._format
            )
        except UnusableField as problem:
            self.unusable[schema_id] = problem


def open_avro(
    source: Path, path: tuple[str, ...], time_format: TimeFormat | None, framing: Framing
) -> AvroTime:
    """A field by the schema of a file, which stands for every schema id, or by those of a folder.

    Raises:
        UnusableField: the schemas cannot be used.
    """
    if source.is_dir():
        if framing is Framing.NONE:
            raise UnusableField(
                ".".join(path), f"{source} is a folder, and values without framing name no schema",
                f"name one {SUFFIX} file in it, or say framing confluent",
            )  # fmt: skip
        return AvroTime(Folder(source, path, time_format), framing)
    return AvroTime(OneSchema(_compiled(source, path, time_format)), framing)


def _compiled(file: Path, path: tuple[str, ...], time_format: TimeFormat | None) -> Plan:
    name = ".".join(path)
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UnusableField(name, f"{file} cannot be read: {words}", "correct the path") from None
    try:
        return compiled(text, path, time_format)
    except UnusableField as wrong:
        raise UnusableField(name, f"{file}: {wrong.problem}", wrong.remedy) from None


def _is_schema(entry: Path) -> bool:
    stem = entry.stem
    return (
        entry.suffix == SUFFIX
        and stem.isascii()
        and stem.isdigit()
        and len(stem) <= 10
        and int(stem) <= MAX_SCHEMA_ID
        and stem == str(int(stem))
    )
