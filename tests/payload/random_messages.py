"""Random messages of any type, for property tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F
from hypothesis import strategies as st

_SCALARS: dict[int, Any] = {
    F.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    F.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    F.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    F.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    F.CPPTYPE_DOUBLE: st.floats(),
    F.CPPTYPE_FLOAT: st.floats(width=32),
    F.CPPTYPE_BOOL: st.booleans(),
    F.CPPTYPE_STRING: st.text(max_size=8),
}
_RANGES = {"google.protobuf.Timestamp": (-62135596800, 253402300799), "google.protobuf.Duration": (0, 10**9)}


def fill(draw: Callable[..., Any], message: Any, depth: int) -> None:
    """Sets some fields at random, nested at most `depth` levels, but none that ProtoJSON cannot express."""
    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name in _RANGES:
        message.seconds = draw(st.integers(*_RANGES[name]))
        message.nanos = draw(st.integers(0, 999_999_999))
        return
    if name == "google.protobuf.FieldMask":
        message.paths.extend(draw(st.lists(st.sampled_from(["a", "b_c", "d.e_f"]), max_size=3)))
        return
    if name == "google.protobuf.Any":
        return  # has tests of its own
    if not descriptor.fields:
        return
    for field in draw(st.lists(st.sampled_from(list(descriptor.fields)), unique=True, max_size=6)):
        if field.message_type is not None and depth == 0:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, inner = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            for _ in range(draw(st.integers(1, 2))):
                at = draw(_scalar(key))
                if inner.message_type is not None:
                    fill(draw, value[at], depth - 1)
                else:
                    value[at] = draw(_scalar(inner))
        elif field.message_type is not None and field.is_repeated:
            for _ in range(draw(st.integers(1, 2))):
                fill(draw, value.add(), depth - 1)
        elif field.message_type is not None:
            value.SetInParent()
            fill(draw, value, depth - 1)
        elif field.is_repeated:
            value.extend(draw(st.lists(_scalar(field), max_size=3)))
        else:
            setattr(message, field.name, draw(_scalar(field, finite=name == "google.protobuf.Value")))


def _scalar(field: Any, *, finite: bool = False) -> st.SearchStrategy[Any]:
    if field.cpp_type == F.CPPTYPE_ENUM:
        # An open enum holds numbers without a name, too.
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from(known if field.enum_type.is_closed else [*known, 77, -1])
    if field.type == F.TYPE_BYTES:
        return st.binary(max_size=8)
    if finite and field.cpp_type == F.CPPTYPE_DOUBLE:
        return st.floats(allow_nan=False, allow_infinity=False)
    found: st.SearchStrategy[Any] = _SCALARS[field.cpp_type]
    return found
