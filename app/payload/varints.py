"""Protobuf varints: numbers of 7 bits a byte, in values that may be damaged or hostile."""

from __future__ import annotations

MAX_VARINT_BYTES = 10
CUT_OFF = -1  # as a position: the number is cut off or too long


def varint(value: bytes, at: int) -> tuple[int, int]:
    """(number of at most 64 bits, position behind it). The position is `CUT_OFF` if there is no number."""
    if at < len(value) and (byte := value[at]) < 0x80:  # most varints have one byte
        return byte, at + 1
    number = shift = 0
    for byte in value[at : at + MAX_VARINT_BYTES]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7
    return 0, CUT_OFF


def zigzag(number: int) -> int:
    """The signed number of a zig-zag varint (sint32, sint64)."""
    return (number >> 1) ^ -(number & 1)


def signed(number: int) -> int:
    """The signed number that 64 bits hold in two's complement."""
    return number - (1 << 64) if number >> 63 else number
