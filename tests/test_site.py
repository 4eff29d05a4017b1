"""The documents' links lead to files, and each document has one place in the site."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from tests.site import (
    DOCS,
    ROOT,
    links_of,
    outside,
    place_of,
    resolved,
    rewritten,
    tags_that_load_from_other_hosts,
)

PAGES = sorted({path for path in outside() if path.endswith(".md")} | {
    file.relative_to(ROOT).as_posix() for file in (ROOT / DOCS).rglob("*.md")
})  # fmt: skip


def test_every_link_of_a_document_leads_to_a_file() -> None:
    broken = [(page, link) for page in PAGES for link in links_of(page) if not (ROOT / link).exists()]
    assert broken == []


@pytest.mark.parametrize(
    ("path", "link", "in_the_site"),
    [
        (
            "docs/push.md",
            "../app/sdk/receiver/switchyard/v1/receiver.proto",
            "app/sdk/receiver/switchyard/v1/receiver.proto.md",
        ),
        ("docs/push.md", "../docker/receiver", "docker/receiver/README.md"),
        ("docs/push.md", "limits.md#regions", "limits.md#regions"),
        ("docs/explain/audit.md", "../../README.md", "../index.md"),
        ("README.md", "docs/push.md", "push.md"),
        ("docker/README.md", "../docs/push.md", "../push.md"),
        ("README.md", "https://kafka.apache.org", "https://kafka.apache.org"),
    ],
)
def test_a_link_leads_to_the_same_file_in_the_repository_and_in_the_site(
    path: str, link: str, in_the_site: str
) -> None:
    assert rewritten(f"[a]({link})", path) == f"[a]({in_the_site})"
    code = f"```sh\n[a]({link})\n```\n"
    assert rewritten(code, path) == code


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ('<script src="https://unpkg.com/x.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ('<pre class="mermaid">', True),
        ('<img src="pictures/a.png">', False),
        ('<a href="https://kafka.apache.org">', False),
    ],
)
def test_a_tag_that_loads_from_another_host_is_found(html: str, loads: bool) -> None:
    assert bool(tags_that_load_from_other_hosts(html)) == loads


def test_every_document_is_in_the_site_at_one_place() -> None:
    assert "README.md" in outside()
    places = [place_of(resolved(page)) for page in PAGES]
    assert len(set(places)) == len(places)


def test_every_document_is_in_the_navigation() -> None:
    def pages(node: object) -> set[str]:
        match node:
            case dict():
                return {page for inner in node.values() for page in pages(inner)}
            case list():
                return {page for inner in node for page in pages(inner)}
        return {str(node)}

    named = pages(YAML(typ="safe").load(ROOT / "mkdocs.yml")["nav"])
    assert {place_of(page) for page in PAGES if page.startswith((DOCS, "README"))} <= named
