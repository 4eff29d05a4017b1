"""Logs of a partition for the tests of audit: records with any timestamps, in real batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatchBuilder

LOG_APPEND_TIME = 0x08


@dataclass
class Log:
    """Batches, each of (base offset, bytes, timestamps of its records)."""

    next_offset: int = 0
    batches: list[tuple[int, bytes, list[int]]] = field(default_factory=list)

    def append(
        self, timestamps: Sequence[int], *, codec: int = 0, by_log: int = -1, names: Sequence[bytes] = ()
    ) -> None:
        """Appends a batch. `by_log`: the log's own time of all its records; `names`: ids, in a header."""
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
        for index, timestamp_ms in enumerate(timestamps):
            headers = [("id", names[index])] if names else []
            assert builder.append(
                index, timestamp=timestamp_ms, key=b"k", value=b"v" * (index % 7), headers=headers
            )
        data = bytearray(builder.build())
        struct.pack_into(">q", data, 0, self.next_offset)
        if by_log >= 0:
            data[22] |= LOG_APPEND_TIME
            struct.pack_into(">q", data, 35, by_log)
        times = [by_log] * len(timestamps) if by_log >= 0 else list(timestamps)
        self.batches.append((self.next_offset, bytes(data), times))
        self.next_offset += len(timestamps)

    def records(self, start: int = 0, end: int = 1 << 62) -> list[tuple[int, int]]:
        """Offsets and timestamps."""
        return [
            (base + index, timestamp_ms)
            for base, _, timestamps in self.batches
            for index, timestamp_ms in enumerate(timestamps)
            if start <= base + index < end
        ]

    def fetch(self, position: int, batches: int) -> tuple[bytes, int]:
        """A broker's answer: whole batches from the one that holds the position, and the next position."""
        found = [one for one in self.batches if one[0] + len(one[2]) > position][:batches]
        if not found:
            return b"", position
        return b"".join(data for _, data, _ in found), found[-1][0] + len(found[-1][2])
