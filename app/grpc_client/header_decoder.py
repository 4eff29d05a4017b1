"""Header blocks of answers (HPACK, RFC 7541). A block that only names entries of the table is looked up.

A block changes the table for all later ones, so one that is too large for its call is read to its end all the
same. Only one that is many times too large ends the connection.

A server's answers are alike. After the first ones, their blocks are a few bytes that name entries of the
dynamic table. Such blocks are remembered until the table changes. All else goes through `hpack`.
"""

from __future__ import annotations

from hpack import Decoder, HPACKError, OversizedHeaderListError

from app.grpc_client.frames import ConnectionFault, ErrorCode
from app.grpc_client.header_encoder import header_list_size

FieldList = tuple[tuple[bytes, bytes], ...]

READ_FACTOR = 16  # so many times the limit of an answer are read, for the table
MAX_READ_BYTES = 2**20  # at most, unless the limit is larger
MAX_REMEMBERED = 1_000
MAX_REMEMBERED_BYTES = 64  # of a block; with more, a hostile peer fills memory by one entry's indices


class HeadersTooLarge(Exception):
    """The fields of one block exceed the limit. The table is known, and the connection goes on."""


class HeaderDecoder:
    """The receiving side of one connection. Sizes are bytes by RFC 9113's count (6.5.2).

    Attributes:
        max_list_size: Of the fields of a block.
        max_read_size: Of those that are read for the table. A block with more ends the connection.
    """

    def __init__(self, max_list_size: int) -> None:
        self.max_list_size = max_list_size
        self.max_read_size = max(max_list_size, min(READ_FACTOR * max_list_size, MAX_READ_BYTES))
        self._decoder = Decoder(self.max_read_size)
        self._remembered: dict[bytes, FieldList] = {}

    def decode(self, block: bytes) -> FieldList:
        """The fields in order.

        Raises:
            HeadersTooLarge: The block exceeds the limit; the next one may come.
            ConnectionFault: The table is unknown, and the connection over.
        """
        found = self._remembered.get(block)
        return self._decode(block) if found is None else found

    def _decode(self, block: bytes) -> FieldList:
        entries = self._decoder.header_table.dynamic_entries
        newest, count = (entries[0] if entries else None), len(entries)
        try:
            found = tuple(
                [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
            )
        except OversizedHeaderListError as error:
            reason = f"an answer's headers are larger than {self.max_read_size} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason) from error
        except (HPACKError, IndexError, ValueError) as error:
            reason = f"header compression: {type(error).__name__}"  # its text may have addresses of memory
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, reason) from error
        if len(entries) != count or (entries and entries[0] is not newest):
            self._remembered.clear()
        size = header_list_size(found)
        if size > self.max_list_size:
            reason = f"the limit for an answer's headers is {self.max_list_size} bytes, and they have {size}"
            raise HeadersTooLarge(reason)
        if len(block) <= MAX_REMEMBERED_BYTES and _only_names_entries(block):
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = found
        return found


def _only_names_entries(block: bytes) -> bool:
    """Each byte is an index, so the block changes no table: an index of more bytes ends below 0x80."""
    return not block or min(block) > 0x80
