"""Decoded JSON whose fields are read by name: bodies of requests, answers of the API, definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]  # is only read
