"""A console over a runtime fed by hand, for every test that asks for one."""

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
    # On a busy machine another worker answers later than an operator would wait.
    monkeypatch.setattr(forwarding, "FORWARDED_READ_TIMEOUT_S", ENOUGH_S)
    fed = FakeRuntime()
    with serving(fed) as url:
        yield Console(url, fed)


@pytest.fixture
def browse(console: Console) -> Iterator[Any]:
    """Opens its pages in a real browser."""
    with browsing(console.url) as opened:
        yield opened
