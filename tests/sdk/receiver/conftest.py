"""Started receivers of the SDK, and clients of both contracts for them."""

from __future__ import annotations

from tests.dispatch.push.conftest import call_to, serve

__all__ = ["call_to", "serve"]
