"""The console over a fake runtime, and a browser for its pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.web.http import forwarding
from tests.web.browser import browsing
from tests.web.client import Console
from tests.web.runtime_fake import ENOUGH_S, FakeRuntime, serving


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    # On a busy machine another worker takes longer to answer than the console waits.
    monkeypatch.setattr(forwarding, "FORWARDED_READ_TIMEOUT_S", ENOUGH_S)
    fed = FakeRuntime()
    with serving(fed) as url:
        yield Console(url, fed)


@pytest.fixture
def browse(console: Console) -> Iterator[Any]:
    """A function that opens the console's pages in a real browser."""
    with browsing(console.url) as opened:
        yield opened
