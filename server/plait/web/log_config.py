"""How a server logs: to standard error, as lines of text or of JSON."""

import logging.config
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from plait_schemas.codec import encode_json, printable

__all__ = ["JsonFormatter", "LogFormat", "LogLevel", "configure_logging"]

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

# Attributes of a record that are not `extra`: the standard ones, and the ones that filters add for lines of text.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "asctime",
    "color_message",
    "context",
    "message",
    "taskName",
}


def configure_logging(
    level: LogLevel, format: LogFormat = "text", *, worker: int | None = None, is_first: bool = True
) -> None:
    """Log plait and uvicorn to standard error, each line with its thread and connection, and its worker if given.

    Only the first process of several workers warns of settings, which are the same for all.
    """
    name = "%(name)s" if worker is None else f"worker {worker} %(name)s"
    lines: dict[str, Any] = {"format": f"%(asctime)s %(levelname)-7s {name}%(context)s: %(message)s"}
    if format == "json":
        lines = {"()": JsonFormatter, "worker": worker}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {
                "context": {"()": "plait.actor.logs.ContextFilter"},
                "startup": {"()": "plait.web.lifespan.StartupFilter"},
                "query": {"()": "plait.actor.logs.QueryFilter"},
            },
            "formatters": {"line": lines},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "line",
                    "filters": ["context", "startup"],
                    "stream": "ext://sys.stderr",
                }
            },
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {
                "aiosqlite": {"level": "WARNING"},
                "asyncio": {"level": "WARNING"},
                "mcp": {"level": "WARNING"},
                "plait.settings": {"level": "NOTSET" if is_first else "ERROR"},
                "uvicorn.access": {"filters": ["query"]},
            },
        }
    )


class JsonFormatter(logging.Formatter):
    """Writes each record as one line of JSON; the fields of its `extra` are members."""

    def __init__(self, *, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _read_message(record),
        }
        if self._worker is not None:
            members["worker"] = self._worker
        if record.exc_info:
            members["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            members["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _OWN and value is not None}
        return encode_json({_to_text(name): _to_json(value) for name, value in (extra | members).items()}).decode()


# Logged objects may run code of the author, which may raise any exception: the line is written nevertheless.


def _read_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        return f"{_to_text(record.msg)} (its arguments raise {type(error).__name__})"


def _to_json(value: object) -> msgspec.Raw | str:
    """Return the JSON of a value if it has one, and otherwise its text."""
    try:
        return msgspec.Raw(encode_json(value))
    except Exception:
        return _to_text(value)


def _to_text(value: object) -> str:
    try:
        return printable(str(value))
    except Exception as error:
        return f"<{type(value).__name__}: its text raises {type(error).__name__}>"
