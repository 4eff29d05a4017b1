"""Schemas that are compiled once."""

from __future__ import annotations

import pytest

from app.payload.descriptors import Schema
from tests.payload.schemas import OLD, ORDERS, schema_of


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    """The schema `ORDERS`, proto3."""
    return schema_of(tmp_path_factory.mktemp("orders"), ORDERS)


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    """The schema `OLD`, proto2."""
    return schema_of(tmp_path_factory.mktemp("old"), OLD)
