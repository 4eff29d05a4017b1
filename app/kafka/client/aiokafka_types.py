"""Names for what aiokafka's clients take and give, which it leaves untyped."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from aiokafka.structs import RecordMetadata

ClientOptions: TypeAlias = dict[str, Any]  # by the names of aiokafka's parameters
ResponseFields: TypeAlias = Any  # its fields are made from a schema when they are read
Answer: TypeAlias = asyncio.Future[RecordMetadata]  # done once all in-sync replicas have the record
