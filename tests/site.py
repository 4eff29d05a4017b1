"""The hooks of mkdocs.yml: links lead to the same files in the repository and in the site.

Rules
1. README.md is the site's first page.
2. A file outside docs/ that a page links to becomes a page of the site at its path in the repository. A
   folder is its README, or its files without one. A file that is no Markdown is shown as code.
3. A link to a missing file stays, so that MkDocs reports it.
4. The build fails if a page loads anything from another host, as Material does for Mermaid diagrams.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS, FIRST = "docs/", "README.md"
FENCE = re.compile(r"(^ *```.*?^ *```\s*?$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#\s])")
LOADING = re.compile(
    r"<(?:link|script|img|source|iframe|object|embed|audio|video)\b[^>]*>|<[^>]*class=.mermaid[^>]*>"
)
OTHER_HOST = re.compile(r"(?:src|srcset|href|data)=[\"']?(?:https?:)?//|class=.mermaid")
PICTURE = re.compile(
    r"<picture>.*?srcset=\"([^\"]+)\".*?alt=\"([^\"]+)\" src=\"([^\"]+)\".*?</picture>", re.DOTALL
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of rules 1 and 2."""
    from mkdocs.structure.files import File

    for path in sorted(outside()):
        files.append(File.generated(config, place_of(path), content=text_of(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A page's Markdown with the links of the site."""
    source = page.file.src_uri
    path = next((one for one in outside() if place_of(one) == source), DOCS + source)
    return rewritten(markdown, path)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """The unchanged page. Raises PluginError by rule 4."""
    from mkdocs.exceptions import PluginError

    if found := tags_that_load_from_other_hosts(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {', '.join(found)}")
    return output


def tags_that_load_from_other_hosts(html: str) -> list[str]:
    """The tags of a page that make a browser load something from another host."""
    return [tag for tag in LOADING.findall(html) if OTHER_HOST.search(tag)]


def outside() -> set[str]:
    """The files outside docs/ that are pages of the site, as paths in the repository."""
    found: set[str] = set()
    waiting = {FIRST, *(file.relative_to(ROOT).as_posix() for file in (ROOT / DOCS).rglob("*.md"))}
    while waiting:
        path = waiting.pop()
        if not path.startswith(DOCS):
            found.add(path)
        if path.endswith(".md"):
            existing = {resolved(one) for one in links_of(path) if (ROOT / one).exists()}
            waiting |= {one for one in existing if not one.startswith(DOCS)} - found
    return found


def links_of(path: str) -> Iterator[str]:
    """The targets of a document's links to files, as paths in the repository; they may not exist."""
    text = PICTURE.sub(r"![](\1) ![](\3)", (ROOT / path).read_text())
    for part in outside_fences(text):
        for link in LINK.findall(part):
            if not leads_to_other_host(link):
                yield target_of(path, link)


def text_of(path: str) -> str:
    """The Markdown of a page outside docs/."""
    place = ROOT / path
    if path.endswith(".md"):
        return place.read_text()
    lines = [f"# {path}", ""]
    for file in sorted(one for one in place.iterdir() if one.is_file()) if place.is_dir() else [place]:
        lines += [
            f"## {file.name}",
            "",
            f"````{file.suffix.lstrip('.')}",
            file.read_text().rstrip("\n"),
            "````",
            "",
        ]
    return "\n".join(lines)


def rewritten(markdown: str, path: str) -> str:
    """The Markdown of the document at `path`, with links to the same files in the site."""
    folder = posixpath.dirname(place_of(path))

    def link(found: re.Match[str]) -> str:
        if leads_to_other_host(found[1]):
            return found[1]
        return posixpath.relpath(place_of(resolved(target_of(path, found[1]))), folder or ".")

    # The site's own switch decides between light and dark, not the browser's alone.
    markdown = PICTURE.sub(r"![\2](\3#only-light) ![\2](\1#only-dark)", markdown)
    parts = FENCE.split(markdown)
    return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(parts))


def outside_fences(markdown: str) -> Iterable[str]:
    """The parts of a document outside code blocks."""
    return FENCE.split(markdown)[::2]


def leads_to_other_host(link: str) -> bool:
    """Whether a link leads to another host."""
    return bool(re.match(r"[a-z]+:", link))


def target_of(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def resolved(path: str) -> str:
    """The file that the site shows for a path: a folder's README."""
    return f"{path}/README.md" if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists() else path


def place_of(path: str) -> str:
    """The place of a repository's file in the site."""
    if path == FIRST:
        return "index.md"
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return path if path.endswith(".md") else f"{path}.md"
