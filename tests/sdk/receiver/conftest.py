"""Receivers of the SDK's, started, and both contracts' clients to them."""

from __future__ import annotations

from tests.dispatch.push.conftest import call_to, serve

__all__ = ["call_to", "serve"]
