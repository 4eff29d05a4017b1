"""Logging: structlog for Switchyard and the same handlers for Faust and aiokafka, in one format.

`console` is for people (colour only on a terminal), `json` for machines. Faust gets the dict config,
because its own set-up turns the root logger to DEBUG for some levels.

Records and peers choose parts of the messages. Control characters could drive a terminal or forge a
line, so they are escaped. A flood of warnings becomes a bounded number of lines that count the rest.
"""

from __future__ import annotations

import logging
import logging.config
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import structlog

from app.kernel.json_types import JsonObject


class LoggingSettings(Protocol):
    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...


# A filter applies to its own logger only, not to those below it. These are the ones that storm.
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
QUIET_S = 5.0  # for one message of a kind by these: without a broker they log thousands a minute
MAX_KINDS = 10_000
FLOOD_WINDOW_S = 10.0
# warnings and errors in `FLOOD_WINDOW_S`; a worker in trouble logs fewer
MOST_OF_A_KIND, MOST_OF_ALL = 20, 500


class FloodFilter(logging.Filter):
    """Passes a bounded number of warnings and errors, of each kind and of all, in `window_s`.

    The next one of a kind counts those left out, so a bad record every millisecond fills no disk.
    """

    def __init__(
        self,
        window_s: float = FLOOD_WINDOW_S,
        most_of_a_kind: int = MOST_OF_A_KIND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._window_s = window_s
        self._most_of_a_kind = most_of_a_kind
        self._clock = clock
        self._began_s = float("-inf")
        self._passed: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], int] = {}
        self._all = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now_s, kind = self._clock(), _kind_of(record)
        if now_s - self._began_s >= self._window_s:
            self._began_s, self._all = now_s, 0
            self._passed.clear()
        passed = self._passed.get(kind, 0)
        if passed >= self._most_of_a_kind or self._all >= MOST_OF_ALL:
            if kind in self._left_out or len(self._left_out) < MAX_KINDS:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._passed[kind] = passed + 1
        self._all += 1
        if left_out := self._left_out.pop(kind, 0):
            _add_left_out(record, left_out)
        return True


def _kind_of(record: logging.LogRecord) -> tuple[str, str]:
    """Logger and template; a structlog record's message is a mapping with a constant event."""
    said: object = record.msg
    return record.name, str(said.get("event", "") if isinstance(said, dict) else said)[:200]


def _add_left_out(record: logging.LogRecord, left_out: int) -> None:
    said: object = record.msg
    if isinstance(said, dict):
        said["left_out"] = left_out
        return
    record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
    record.args = ()


def escape_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for terminals: text from a record or a peer cannot move the cursor or begin a line.

    An exception's text keeps its lines, indented so that none looks like a line of the log.
    """
    for name, value in event.items():
        if name in ("exception", "stack"):
            lines = str(value).split("\n")
            event[name] = "\n".join([_escaped(lines[0]), *(f"  {_escaped(line)}" for line in lines[1:])])
        elif isinstance(value, str):
            event[name] = _escaped(value)
        elif value is not None and not isinstance(value, bool | int | float):
            event[name] = _escaped(repr(value))
    return event


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _code_of(char) for char in text)


def _code_of(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def logging_config(settings: LoggingSettings) -> JsonObject:
    renderer: object = (
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
                    *([] if settings.format == "json" else [escape_controls]),
                    renderer,
                ],
            }
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "switchyard",
                "filters": ["flood"],
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["stderr"], "level": settings.level.upper()},
        "filters": {
            "once": {"()": FloodFilter, "window_s": QUIET_S, "most_of_a_kind": 1},
            "flood": {"()": FloodFilter},
        },
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
