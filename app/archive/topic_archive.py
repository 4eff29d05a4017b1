"""A topic's archive as a source of records, like its log. Reads in threads; needs pyarrow on the worker,
but no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from app.archive import reader
from app.archive.errors import NotArchived, SparkJobError
from app.archive.log import Archive
from app.kernel.ranges import Range, Ranges, outside

CHUNK_RECORDS = 500


class ArchiveUnreadable(OSError):
    """The archive cannot be used; the text says why and what to do."""


class ArchivedMessage(NamedTuple):
    """An archived record, in the form of a log's record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TopicArchive:
    """The archived records of a topic.

    Attributes:
        spans: By partition, the archived offsets, as they were when it was opened.
    """

    def __init__(
        self, source: reader.ArchiveReader, topic: str, topic_id: str, spans: Mapping[int, Ranges]
    ) -> None:
        self.spans = spans
        self._reader = source
        self._topic = topic
        self._topic_id = topic_id

    async def read(
        self, partition: int, span: Range, timestamps: Range | None
    ) -> AsyncIterator[Sequence[ArchivedMessage]]:
        """Records with these offsets, in chunks, in the order of their offsets. Records outside
        `timestamps` may be missing.

        Raises:
            ArchiveUnreadable: A file cannot be read.
        """
        from_ms, to_ms = timestamps or (-reader.LAST_MS, reader.LAST_MS)
        query = reader.ArchiveQuery(
            self._topic,
            from_ms=from_ms,
            to_ms=to_ms,
            partitions=frozenset({partition}),
            start=span[0],
            end=span[1],
            topic_id=self._topic_id,
            quarantined=True,  # their timestamps are unusable, but their event times may be usable
            max_records=reader.LAST_OFFSET,
        )
        records = self._reader.records(query)
        while chunk := await asyncio.to_thread(_some, records):
            yield chunk


async def open_archive(folder: str, cluster_id: str, topic: str, topic_id: str) -> TopicArchive:
    """The topic's part of the archive in this folder; empty if the archive does not have the topic.

    Raises:
        ArchiveUnreadable: The folder is no archive, or another cluster's, or its files cannot be read.
    """
    return await asyncio.to_thread(_opened, folder, cluster_id, topic, topic_id)


def _opened(folder: str, cluster_id: str, topic: str, topic_id: str) -> TopicArchive:
    try:
        archive = Archive.open(Path(folder))
        if archive.cluster_id != cluster_id:
            raise ArchiveUnreadable(
                f"archive {folder} is of cluster {archive.cluster_id}, not of {cluster_id}: name its own"
            )
        source = reader.ArchiveReader(archive)
        try:
            found = source.coverage(topic, topic_id)
        except NotArchived:
            found = []
        if found:
            reader.check_arrow()  # before the answer begins
    except ArchiveUnreadable:
        raise
    except (SparkJobError, KeyError, ValueError, OSError) as error:
        raise ArchiveUnreadable(f"archive {folder}: {error}") from error
    spans = {
        one.partition: tuple(
            outside(sorted((gap.start, gap.end) for gap in one.gaps), one.reach.start, one.reach.end)
        )
        for one in found
    }
    return TopicArchive(source, topic, topic_id, spans)


def _some(records: Iterator[reader.ArchivedRecord]) -> list[ArchivedMessage]:
    try:
        return [
            ArchivedMessage(one.offset, one.timestamp_ms, one.key, one.value, one.headers)
            for one in islice(records, CHUNK_RECORDS)
        ]
    except (SparkJobError, ValueError, OSError) as error:  # pyarrow raises ValueError for damaged files
        raise ArchiveUnreadable(f"the archive cannot be read: {error}") from error
