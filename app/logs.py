"""Logging: structlog for Switchyard, the same handlers for Faust and aiokafka, in one format.

`console` for people (colour only on a terminal), `json` for machines. Faust gets the dict config, so that
its own set-up (which turns the root logger to DEBUG for some levels) does not apply.
"""

from __future__ import annotations

import logging
import logging.config
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog


class LoggingSettings(Protocol):
    """What the configuration says of logging."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...


# A filter holds for its own logger only, not for those below it: the ones that storm, by name.
NOISY = (
    "aiokafka",
    "aiokafka.client",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.sender",
    "faust.transport.drivers.aiokafka",
)
QUIET_S = 5.0  # of the client libraries' messages of one kind, one this often


class OncePerWhile(logging.Filter):
    """Lets one message of a kind (logger and template) through every `every_s`; the next tells how many were
    left out. While a broker is away, the Kafka client says the same thing thousands of times a minute."""

    def __init__(self, every_s: float = QUIET_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        kind = (record.name, str(record.msg)[:200])
        now_s = self._clock()
        last_s, left_out = self._seen.get(kind, (float("-inf"), 0))
        if now_s - last_s < self._every_s:
            self._seen[kind] = (last_s, left_out + 1)
            return False
        if len(self._seen) > MAX_KINDS:
            self._seen.clear()
        self._seen[kind] = (now_s, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
            record.args = ()
        return True


MAX_KINDS = 10_000

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def logging_config(settings: LoggingSettings) -> dict[str, Any]:
    """A `logging.config.dictConfig` for the whole process."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "switchyard": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _SHARED,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    renderer,
                ],
            }
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "switchyard",
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["stderr"], "level": settings.level.upper()},
        "filters": {"once": {"()": OncePerWhile}},
        "loggers": {
            **{name: {"level": "WARNING", "filters": ["once"]} for name in NOISY},
            "kafka": {"level": "WARNING"},
            "faust": {"level": "WARNING"},
            "mode": {"level": "WARNING"},
            "aiohttp.access": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
        },
    }


def configure_logging(settings: LoggingSettings) -> None:
    """Puts `settings` in force for this process."""
    logging.config.dictConfig(logging_config(settings))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
