"""Every file in a folder of definitions is read or reported; no definition in a skipped file is deleted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.config.problems import InvalidConfiguration
from app.definitions.registry import load_definitions
from tests.config.examples import changed


def write(path: Path, topic: str = "orders") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# one\n" + json.dumps(changed("metadata/topic", topic), indent=1))
    return path


def topics(folder: Path, *, prune: bool = True) -> tuple[list[str], list[str]]:
    """The topics of the definitions, and the names of the files that were skipped with a warning."""
    found, warnings = load_definitions([folder], prune=prune)
    return sorted(one.key.rpartition("/")[2] for one in found), [Path(one.file).name for one in warnings]


def mounted_config_map(folder: Path) -> None:
    """A mounted config map as the kubelet's atomic writer lays it out."""
    write(folder / "..2026_11_26_20_00_00.1" / "orders.yaml")
    write(folder / "..2026_11_26_20_00_00.1" / "refunds.yml", "refunds")
    (folder / "..data").symlink_to("..2026_11_26_20_00_00.1")
    for name in ("orders.yaml", "refunds.yml"):
        (folder / name).symlink_to(Path("..data") / name)


def config_map_while_it_is_swapped(folder: Path) -> None:
    mounted_config_map(folder)
    write(folder / "..2026_11_26_20_05_00.2" / "orders.yaml")
    write(folder / "..2026_11_26_20_05_00.2" / "invoices.yaml", "invoices")
    (folder / "..data_tmp").symlink_to("..2026_11_26_20_05_00.2")


def linked_folder(folder: Path) -> None:
    write(folder / "a" / "orders.yaml")
    write(folder.parent / "elsewhere" / "refunds.yaml", "refunds")
    (folder / "b").symlink_to(folder.parent / "elsewhere")
    (folder / "again").symlink_to(folder.parent / "elsewhere")
    (folder / "a" / "round").symlink_to(folder)


def link_to_a_hidden_folder(folder: Path) -> None:
    write(folder / ".now" / "refunds.yaml", "refunds")
    (folder / "now").symlink_to(".now")
    write(folder / "orders.yaml")


def other_case(folder: Path) -> None:
    write(folder / "ORDERS.YAML")
    write(folder / "refunds.Json", "refunds").write_text(json.dumps(changed("metadata/topic", "refunds")))


@pytest.mark.parametrize(
    "layout",
    [mounted_config_map, config_map_while_it_is_swapped, linked_folder, link_to_a_hidden_folder, other_case],
)
def test_every_definition_is_read_once_without_a_warning(
    tmp_path: Path, layout: Callable[[Path], None]
) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    layout(folder)
    assert topics(folder) == (["orders", "refunds"], [])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".#orders.yaml", None),  # Emacs' lock: a link that leads nowhere
        ("._orders.yaml", b"\0\x05\x16\x07\0\x02\0\0Mac OS X kind: Workload"),
        (".orders.yaml.swp", b"b0VIM 9.0\0\0\nkind: Workload\n"),
        ("values.yaml.txt", b"replicas: 3\n"),
        ("route.yaml.off", b"apiVersion: route.openshift.io/v1\nkind: Route\n"),
    ],
)
def test_a_document_that_is_no_definition_is_skipped_and_reported(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    write(tmp_path / "orders.yaml")
    if content is None:
        (tmp_path / name).symlink_to("me@host.1234:5678")
    else:
        (tmp_path / name).write_bytes(content)
    assert topics(tmp_path) == (["orders"], [name])


@pytest.mark.parametrize(
    "name",
    [".refunds.yaml", "refunds.yaml.bak", "refunds.yaml~", "#refunds.yaml#", ".off/refunds.yml", "refunds",
     "refunds.yaml2", "refunds.json5", "..refunds.yaml", "..old/refunds.yaml"],
)  # fmt: skip
@pytest.mark.parametrize(
    "form",
    [
        lambda data: "# one\n" + json.dumps(data, indent=1),
        lambda data: json.dumps(data, separators=(",", ":")),
        lambda data: "\ufeff" + "apiVersion: switchyard/v1\n" + json.dumps(data["metadata"]),
        lambda data: "{apiVersion: switchyard/v1, kind: Workload}",
    ],
)
def test_a_prune_is_refused_where_a_definition_is_skipped(
    tmp_path: Path, name: str, form: Callable[[Any], str]
) -> None:
    write(tmp_path / "orders.yaml")
    write(tmp_path / name).write_text(form(changed("metadata/topic", "refunds")))
    assert topics(tmp_path, prune=False) == (["orders"], [Path(name).name])
    with pytest.raises(InvalidConfiguration, match="prune would delete what it defines") as caught:
        topics(tmp_path)
    (problem,) = caught.value.problems
    assert problem.file == str(tmp_path / name)


def dangling(folder: Path) -> Path:
    (folder / "team").symlink_to(folder / "gone" / "team")
    return folder / "team"


def round_and_round(folder: Path) -> Path:
    (folder / "team").symlink_to("other")
    (folder / "other").symlink_to("team")
    return folder / "other"


def closed_and_hidden(folder: Path) -> Path:
    (folder / ".closed").mkdir()
    return folder / ".closed"


@pytest.mark.parametrize("layout", [dangling, round_and_round, closed_and_hidden])
def test_a_prune_is_refused_if_a_place_cannot_be_read(
    tmp_path: Path, layout: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "orders.yaml")
    place, scandir = layout(tmp_path), os.scandir

    def closed(folder: Any) -> Any:
        if Path(folder).name == ".closed":
            raise PermissionError(13, "Permission denied")  # root may read every folder
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    assert place.name in topics(tmp_path, prune=False)[1]
    with pytest.raises(InvalidConfiguration, match=rf"{place.name}: error: cannot be"):
        topics(tmp_path)


def test_a_dangling_link_to_a_definition_and_an_unreadable_folder_are_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "orders.yaml")
    for target, why in (("gone.yaml", "does not exist"), ("refunds.yaml", "cannot be read: Too many levels")):
        (tmp_path / "refunds.yaml").symlink_to(target)
        with pytest.raises(InvalidConfiguration, match=rf"refunds\.yaml: error: {why}"):
            topics(tmp_path, prune=False)
        (tmp_path / "refunds.yaml").unlink()
    scandir = os.scandir
    (tmp_path / "closed").mkdir()

    def closed(folder: Any) -> Any:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InvalidConfiguration, match="closed: error: cannot be looked into: Permission denied"):
        topics(tmp_path, prune=False)


def test_a_config_map_that_is_swapped_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted_config_map(tmp_path)
    (tmp_path / "invoices.yaml").symlink_to(Path("..data") / "invoices.yaml")  # made before the swap
    waited = []

    def swap(seconds: float) -> None:
        waited.append(seconds)
        write(tmp_path / "..2026_11_26_20_05_00.2" / "orders.yaml")
        write(tmp_path / "..2026_11_26_20_05_00.2" / "invoices.yaml", "invoices")
        (tmp_path / "..data_tmp").symlink_to("..2026_11_26_20_05_00.2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        (tmp_path / "refunds.yml").unlink()

    monkeypatch.setattr(time, "sleep", swap)
    assert topics(tmp_path) == (["invoices", "orders"], [])
    assert len(waited) == 1


def test_a_document_that_another_source_names_is_not_skipped(tmp_path: Path) -> None:
    write(tmp_path / "orders.yaml")
    write(tmp_path / ".more" / "invoices.yaml", "invoices")
    write(tmp_path / "refunds.yaml.off", "refunds")
    sources = [tmp_path, tmp_path / ".more", tmp_path / "refunds.yaml.off", tmp_path]
    found, warnings = load_definitions(sources, prune=True)
    assert (len(found), warnings) == (3, [])


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# all of it is commented out\n", "---\n---\nnull\n"])
def test_a_file_without_definitions_is_a_mistake_unless_it_may_be_empty(tmp_path: Path, text: str) -> None:
    write(tmp_path / "orders.yaml")
    (tmp_path / "refunds.yaml").write_text(text)
    for sources in ([tmp_path], [tmp_path / "refunds.yaml"]):
        with pytest.raises(InvalidConfiguration, match="defines nothing") as caught:
            load_definitions(sources)
        assert [Path(one.file).name for one in caught.value.problems] == ["refunds.yaml"]
    assert load_definitions([tmp_path / "refunds.yaml"], may_be_empty=True) == ([], [])
    assert len(load_definitions([tmp_path], may_be_empty=True)[0]) == 1


def test_an_empty_folder_is_a_mistake_unless_it_may_be_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"has no \.yaml"):
        load_definitions([tmp_path])
    assert load_definitions([tmp_path], may_be_empty=True) == ([], [])
