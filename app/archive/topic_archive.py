"""Archives of topics (`spark.archive`) as a reader of records sees them: what they have of a topic, and its
records. Reads in threads; needs pyarrow on the worker that is asked, and no Spark.
"""

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
    """Why an archive cannot be used; what to do."""


class ArchivedMessage(NamedTuple):
    """A record of an archive, as one of a log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TopicArchive:
    """See the module.

    Attributes:
        spans: by partition the offsets it has, as it was when it was opened.
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
        """Records of these offsets, some at a time, in the order of their offsets. `timestamps`: of others
        none need be among them.

        Raises:
            ArchiveUnreadable.
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
            quarantined=True,  # their timestamps are of no use, but their event times may be
            max_records=reader.LAST_OFFSET,
        )
        records = self._reader.records(query)
        while chunk := await asyncio.to_thread(_some, records):
            yield chunk


async def open_archive(folder: str, cluster_id: str, topic: str, topic_id: str) -> TopicArchive:
    """What the archive in this folder has of a topic; nothing, where it has never seen it.

    Raises:
        ArchiveUnreadable: it is none, or another cluster's, or its files cannot be read.
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
            reader.check_arrow()  # now, and not in the middle of an answer
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
    except (SparkJobError, ValueError, OSError) as error:  # pyarrow's errors of content are ValueErrors
        raise ArchiveUnreadable(f"the archive cannot be read: {error}") from error
