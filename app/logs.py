"""Logging: structlog for Switchyard, the same handlers for Faust and aiokafka, in one format.

`console` for people (colour only on a terminal), `json` for machines. Faust gets the dict config, so that
its own set-up (which turns the root logger to DEBUG for some levels) does not apply.
"""

from __future__ import annotations

import logging
import logging.config
import sys
from typing import Any, Protocol

import structlog


class LoggingSettings(Protocol):
    """What the configuration says of logging."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...


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
        "loggers": {
            "aiokafka": {"level": "WARNING"},
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
