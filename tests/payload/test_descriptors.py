"""Descriptor sets, sources and registry folders are loaded, or refused with a remedy."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from app.payload import schema_registry
from app.payload.descriptors import Schema, load_schema, parse_set
from app.payload.schema_files import MAX_SET_BYTES, DescriptorError, SchemaFiles
from app.payload.schema_registry import SchemaRegistry, open_source
from tests.payload.schemas import ORDERS, compile_set, file_of, set_of, write_source


def _written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _refused(path: Path) -> str:
    with pytest.raises(DescriptorError) as caught:
        open_source(path)
    assert isinstance(caught.value, ValueError)
    assert caught.value.remedy
    return str(caught.value)


def test_a_descriptor_set_gives_its_messages_and_leaves_the_default_pool_alone(tmp_path: Path) -> None:
    schema = load_schema(_written(tmp_path / "x.binpb", compile_set(tmp_path, ORDERS)))
    assert schema.messages == ["acme.Order", "acme.Refund", "acme.Order.Line"]
    order = schema.message_class("acme.Order")
    assert order.DESCRIPTOR.file.pool is schema.pool
    assert schema.message_class(".acme.Order") is order
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("acme.Order")


def test_two_sets_may_define_the_same_message_differently(tmp_path: Path) -> None:
    one = load_schema(_written(tmp_path / "1.binpb", set_of(file_of("a.proto", "Order"))))
    file = file_of("a.proto", "Order")
    file.message_type[0].field[0].name = "other"
    two = load_schema(_written(tmp_path / "2.binpb", set_of(file)))
    assert [f.name for f in one.message_class("acme.Order").DESCRIPTOR.fields] == ["word"]
    assert [f.name for f in two.message_class("acme.Order").DESCRIPTOR.fields] == ["other"]


def chain(length: int) -> bytes:
    """The set of a file with this many messages. Each refers to the next one, and the last to the first."""
    file = file_of("chain.proto")
    for at in range(length):
        following = f".acme.M{(at + 1) % length}"
        message = file.message_type.add(name=f"M{at}")
        message.field.add(name="next", number=1, label=1, type=11, type_name=following)
    return set_of(file)


def test_a_long_chain_of_messages_is_read_and_a_longer_one_is_a_problem(tmp_path: Path) -> None:
    found = load_schema(_written(tmp_path / "long.binpb", chain(5_000))).message_class("acme.M1")
    assert type(found.FromString(b"\x0a\x02\x0a\x00").next.next).DESCRIPTOR.full_name == "acme.M3"
    longer = load_schema(_written(tmp_path / "longer.binpb", chain(30_000)))
    for _ in range(2):
        with pytest.raises(
            DescriptorError, match=r"longer\.binpb: message acme\.M1 refers to more than 10,0"
        ):
            longer.message_class("acme.M1")


def test_a_set_may_have_any_order_and_lack_well_known_imports() -> None:
    upper = file_of("b.proto", "B", imports=("a.proto", "google/protobuf/timestamp.proto"))
    upper.message_type[0].field.add(name="a", number=2, label=1, type=11, type_name=".acme.A")
    upper.message_type[0].field.add(
        name="at", number=3, label=1, type=11, type_name=".google.protobuf.Timestamp"
    )
    lower = file_of("a.proto", "A", imports=("google/protobuf/descriptor.proto",))
    schema = Schema(Path("x"), parse_set(Path("x"), set_of(upper, lower, lower)))
    assert schema.messages == ["acme.B", "acme.A"]
    message = schema.message_class("acme.B")()
    message.at.FromJsonString("2026-01-01T00:00:00Z")  # type: ignore[attr-defined]


def test_imports_shared_by_many_files_are_visited_once() -> None:
    files, before = [], ()
    for layer in range(60):  # 2**60 ways from the top to the bottom
        names = (f"{layer}a.proto", f"{layer}b.proto")
        files += [file_of(name, f"M{name[:-6]}", imports=before) for name in names]
        before = names
    assert len(Schema(Path("x"), parse_set(Path("x"), set_of(*reversed(files)))).messages) == 120


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"$schema": "https://json-schema.org"}', "is JSON (a JSON Schema?)"),
        (b'  // comment\nsyntax = "proto3";', ".proto source"),
        (gzip.compress(b"x"), "gunzip"),
        (b"\xff\xff\xff", "not a descriptor set"),
        (b"", "holds no message files"),
        (set_of(file_of("", "A")), "a file without a name"),
        (set_of(file_of("a.proto", "A"), file_of("a.proto", "B")), "two different files 'a.proto'"),
        (set_of(file_of("a.proto", "A"), file_of("b.proto", "A")), "duplicate symbol 'acme.A'"),
        (set_of(file_of("a.proto", "A", imports=("x/y.proto",))), "'x/y.proto' (imported by 'a.proto')"),
        (
            set_of(
                file_of("a.proto", "A", imports=("b.proto",)), file_of("b.proto", "B", imports=("a.proto",))
            ),
            "is in an import cycle",
        ),
    ],
)
def test_an_unusable_set_is_refused_with_its_file_and_a_remedy(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = _written(tmp_path / "x.binpb", data)
    problem = _refused(path)
    assert words in problem
    assert str(path) in problem


def test_missing_huge_and_impossible_files_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in _refused(tmp_path / "gone.binpb")
    with (tmp_path / "huge.binpb").open("wb") as file:
        file.truncate(MAX_SET_BYTES + 1)
    assert "larger than 16 MiB" in _refused(tmp_path / "huge.binpb")
    assert "cannot be read" in _refused(tmp_path / "a\0b")


def test_the_error_for_an_unknown_message_suggests_another(tmp_path: Path) -> None:
    schema = Schema(Path("x.binpb"), [file_of("a.proto", "Order", "Refund")])
    for name, words in [
        ("acme.Ordr", "did you mean acme.Order?"),
        ("shop.Refund", "did you mean acme.Refund?"),
        ("zzz", "known: acme.Order, acme.Refund"),
        ("", "known:"),
        ("acme.Order.word", "no message"),
    ]:
        with pytest.raises(DescriptorError) as caught:
            schema.message_class(name)
        assert words in str(caught.value)
        assert "x.binpb" in str(caught.value)


@given(st.binary(max_size=400))
def test_random_bytes_are_loaded_or_refused(data: bytes) -> None:
    _load_or_refuse(data)


@given(st.data())
def test_a_damaged_set_is_loaded_or_refused(data: st.DataObject) -> None:
    whole = bytearray(
        set_of(file_of("a.proto", "A", "B"), file_of("b.proto", "C", imports=("a.proto",), package="b"))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    _load_or_refuse(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def _load_or_refuse(data: bytes) -> None:
    try:
        schema = Schema(Path("x"), parse_set(Path("x"), data))
    except DescriptorError:
        return
    for name in schema.messages:
        schema.message_class(name)


# -- sources -----------------------------------------------------------------------------------------


def test_a_proto_source_is_compiled_with_its_imports(tmp_path: Path) -> None:
    write_source(tmp_path, 'syntax = "proto3"; package acme; message Item {}', "item.proto")
    path = write_source(
        tmp_path, 'syntax = "proto3"; import "item.proto"; message Cart { acme.Item item = 1; }', "cart.proto"
    )
    schema = load_schema(path)
    assert set(schema.messages) == {"Cart", "acme.Item"}


MONEY = 'syntax = "proto3"; package acme; message Money { int64 cents = 1; }'
ORDER = 'syntax = "proto3"; package acme; import "%s"; message Order { Money total = 1; }'


def test_imports_begin_at_the_folder_of_schemas_and_then_beside_the_source(tmp_path: Path) -> None:
    write_source(tmp_path / "acme/common/v1", MONEY, "money.proto")
    path = write_source(tmp_path / "acme/orders/v1", ORDER % "acme/common/v1/money.proto", "order.proto")
    files = SchemaFiles(tmp_path)
    schema = load_schema(path, files)
    assert schema.messages == ["acme.Money", "acme.Order"]
    assert schema.doubts == []
    write_source(path.parent, MONEY.replace("Money", "Unit"), "unit.proto")
    imports = 'acme/common/v1/money.proto"; import "unit.proto'
    path = write_source(path.parent, ORDER % imports, "both.proto")
    assert set(load_schema(path, files).messages) == {"acme.Money", "acme.Unit", "acme.Order"}


def test_a_registry_imports_from_the_folder_of_schemas(tmp_path: Path) -> None:
    write_source(tmp_path / "acme/common/v1", MONEY, "money.proto")
    for place in ("registry", "registry/orders-value"):
        write_source(tmp_path / place, ORDER % "acme/common/v1/money.proto", "7.proto")
    found = open_source("registry", SchemaFiles(tmp_path))
    assert isinstance(found, SchemaRegistry)
    assert found.message_class("acme.Order").DESCRIPTOR.file.name == "registry/orders-value/7.proto"


def test_a_missing_import_is_refused_with_the_folders_where_it_was_looked_for(tmp_path: Path) -> None:
    files = SchemaFiles(tmp_path)
    path = write_source(tmp_path / "acme/orders/v1", ORDER % "acme/common/v1/money.proto", "order.proto")
    with pytest.raises(DescriptorError, match=r"acme/common/v1/money\.proto: File not found") as caught:
        load_schema(path, files)
    assert caught.value.remedy == (
        "add the file or correct the import: imports are looked for in "
        f"{tmp_path}, then in {path.parent}, then in {path.parent.parent}"
    )
    write_source(tmp_path / "acme/common/v1", MONEY, "money.proto")
    assert "acme.Order" in load_schema(path, files).messages, "an added file counts at once"


@pytest.mark.parametrize("name", ["../../outside.proto", "/outside.proto", "x" * 5_000, "\0", "acme", "."])
def test_an_import_that_cannot_be_a_file_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    write_source(tmp_path, MONEY, "outside.proto")
    for folder in ("schemas", "schemas/acme"):
        path = write_source(tmp_path / folder, ORDER % name, "order.proto")
    with pytest.raises(DescriptorError, match="does not compile") as caught:
        load_schema(path, SchemaFiles(tmp_path / "schemas"))
    assert "found first" not in caught.value.problem


def test_of_two_files_of_one_name_the_first_is_taken_and_named(tmp_path: Path) -> None:
    files = SchemaFiles(tmp_path)
    beside = write_source(tmp_path / "acme", MONEY.replace("cents", "euros"), "money.proto")
    path = write_source(tmp_path / "acme", ORDER % "money.proto", "order.proto")
    assert load_schema(path, files).doubts == []
    first = write_source(tmp_path, MONEY, "money.proto")
    schema = load_schema(path, files)
    assert [field.name for field in schema.message_class("acme.Money").DESCRIPTOR.fields] == ["cents"]
    doubt = f"import 'money.proto' is {first}, which is found first, and not {beside}"
    assert schema.doubts == [doubt]
    write_source(tmp_path, MONEY.replace("Money", "Unit"), "money.proto")
    with pytest.raises(DescriptorError, match='"Money" is not defined') as caught:
        load_schema(path, files)
    assert doubt in caught.value.problem
    first.unlink()
    first.symlink_to(beside)
    assert load_schema(path, files).doubts == []
    above = write_source(tmp_path / "acme" / "v1", ORDER % "money.proto", "order.proto")
    write_source(tmp_path / "acme" / "v1", MONEY, "money.proto")
    assert load_schema(above, files).doubts == [doubt.replace(str(beside), f"{above.parent}/money.proto")]


def test_a_source_that_does_not_compile_is_refused_with_protocs_error(tmp_path: Path) -> None:
    problem = _refused(write_source(tmp_path, 'syntax = "proto3"; message Broken { strin x = 1; }'))
    assert "orders.proto: does not compile" in problem
    assert '"strin" is not defined' in problem
    assert "is empty" in _refused(write_source(tmp_path, " ", "empty.proto"))


def test_without_grpcio_tools_a_source_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    problem = _refused(write_source(tmp_path, ORDERS))
    assert "grpcio-tools is not installed" in problem
    assert "protoc --include_imports" in problem


# -- registry folders --------------------------------------------------------------------------------


def test_a_registry_gives_the_latest_version_of_a_subject_and_every_schema_by_its_id(tmp_path: Path) -> None:
    newer = file_of("a.proto", "Order")
    newer.message_type[0].field.add(name="more", number=2, label=1, type=9)
    _written(tmp_path / "orders-value" / "2.binpb", set_of(file_of("a.proto", "Order")))
    _written(tmp_path / "orders-value" / "10.binpb", set_of(newer))
    _written(tmp_path / "7.binpb", set_of(file_of("r.proto", "Refund")))
    write_source(tmp_path, 'syntax = "proto3"; package acme; message Parcel {}', "8.proto")
    write_source(tmp_path, "an import of another, passed over", "common.proto")
    (tmp_path / "README").write_text("passed over, too")
    found = open_source(tmp_path)
    assert isinstance(found, SchemaRegistry)
    assert sorted(found.by_id) == [7, 8]
    assert sorted(found.by_subject["orders-value"]) == [2, 10]
    assert [f.name for f in found.message_class("acme.Order").DESCRIPTOR.fields] == ["word", "more"]
    assert found.message_class("acme.Refund").DESCRIPTOR.full_name == "acme.Refund"
    with pytest.raises(DescriptorError, match=r"did you mean acme\.Parcel"):
        found.message_class("acme.Parcl")


def test_a_registry_with_a_bad_file_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "holds no schema" in _refused(tmp_path)
    good = set_of(file_of("a.proto", "Order"))
    _written(tmp_path / "7.binpb", good)
    for name, data, words in [
        ("8.binpb", b"{}", "8.binpb: is JSON"),
        ("orders.binpb", good, "orders.binpb: has a name that is not a schema id"),
        ("99999999999.binpb", good, "has a name that is not a schema id"),
        ("7.pb", good, "has the same number as 7.binpb"),
        ("orders/x.binpb", good, "has a name that is not a schema id"),
    ]:
        bad = _written(tmp_path / name, data)
        assert words in _refused(tmp_path), name
        bad.unlink()
    _written(tmp_path / "8.binpb", good)
    monkeypatch.setattr(schema_registry, "MAX_SCHEMAS", 1)
    assert "more than 1 schemas" in _refused(tmp_path)


def test_an_added_schema_is_found_without_reading_the_folder_for_every_message(
    tmp_path: Path,
) -> None:
    _written(tmp_path / "7.binpb", set_of(file_of("a.proto", "Order")))
    files = SchemaFiles(tmp_path)
    found = open_source(tmp_path, files)
    assert isinstance(found, SchemaRegistry)
    _written(tmp_path / "8.binpb", set_of(file_of("a.proto", "Refund")))
    nine = _written(tmp_path / "9.binpb", b"{}")
    os.mkfifo(tmp_path / "10.binpb")
    _written(tmp_path / "1-old.binpb", set_of(file_of("a.proto", "Order")))  # before 8, and misnamed
    assert found.schema(8) is None, "a value asks memory only"
    files.refresh()
    eight = found.schema(8)
    assert eight is not None
    assert eight.messages == ["acme.Refund"]
    with pytest.raises(DescriptorError, match="is JSON"):
        found.schema(9)
    nine.write_bytes(set_of(file_of("a.proto", "Parcel")))
    files.refresh()
    assert found.schema(9) is not None
    assert found.schema(10) is None
    assert found.schema(7) is not None


def test_a_file_that_is_not_regular_or_not_in_the_folder_is_refused_at_once(tmp_path: Path) -> None:
    folder, outside = tmp_path / "schemas", tmp_path / "outside.binpb"
    good = set_of(file_of("a.proto", "Order"))
    _written(outside, good)
    _written(folder / "in.binpb", good)
    os.mkfifo(folder / "fifo.binpb")
    (folder / "link.binpb").symlink_to(outside)
    (folder / "ptmx").symlink_to("/dev/ptmx")
    (folder / "circle").symlink_to("circle")
    (tmp_path / "same").symlink_to(folder)
    files = SchemaFiles(tmp_path / "same")
    for name in ("in.binpb", str(folder / "in.binpb"), str(tmp_path / "same" / "in.binpb")):
        open_source(name, files)
    for name, words in [
        ("/dev/ptmx", "is not in the folder of schemas"),
        ("../outside.binpb", "is not in the folder of schemas"),
        (str(outside), "is not in the folder of schemas"),
        ("link.binpb", "is not in the folder of schemas"),
        ("ptmx", "is not in the folder of schemas"),
        ("fifo.binpb", "is a FIFO, not a regular file"),
        ("in.binpb/x", "cannot be read"),
        ("x" * 5000, "is not a valid path"),
        ("\0", "is not a valid path"),
        ("circle", "is not a valid path"),
    ]:
        with pytest.raises(DescriptorError, match=words) as caught:
            open_source(name, files)
        assert caught.value.remedy
    with pytest.raises(DescriptorError, match="is a device, not a regular file"):
        open_source("/dev/ptmx")


def test_a_source_is_compiled_once_until_it_or_an_import_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: runs.append(1) or run(*args, **named))
    write_source(tmp_path, 'syntax = "proto3"; package acme; message Word {}', "word.proto")
    text = 'syntax = "proto3"; package acme; import "word.proto"; message {} {{ Word word = 1; }}'
    path = write_source(tmp_path, text.format("Order"), "order.proto")
    for _ in range(3):
        assert "acme.Order" in load_schema(path).messages
    assert len(runs) == 1
    write_source(tmp_path, 'syntax = "proto3"; package acme; message Word { int32 n = 1; }', "word.proto")
    assert len(load_schema(path).message_class("acme.Word").DESCRIPTOR.fields) == 1
    write_source(tmp_path, text.format("Parcel"), "order.proto")
    assert "acme.Parcel" in load_schema(path).messages
    assert len(runs) == 3
    write_source(tmp_path, "message", "order.proto")
    for _ in range(3):
        with pytest.raises(DescriptorError, match="does not compile"):
            load_schema(path)
    assert len(runs) == 4, "a job that is tried again each second runs no compiler each time"
