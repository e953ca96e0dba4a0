"""Log lines as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from model_repository.system.log_time import TimedFormatter, time_text
from model_repository.system.terminal_text import escaped_output

REQUEST_LOGGER = "frontend.app"  # a stable name for filters of request lines
_FIELDS = "fields"  # attribute of a log record: returns what replaces the message in JSON


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": time_text(record.created),
            "level": record.levelname,
            "logger": record.name,
        }
        fields = getattr(record, _FIELDS, None)
        line |= {"message": record.getMessage()} if fields is None else fields()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logging(log_format: str) -> None:
    """Log to standard error, as `text` or as `json`."""
    # No line shows these; to find them out would take half the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(escaped_output(sys.stderr))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TimedFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_fields(
    logger: logging.Logger, level: int, fields: Callable[[], Mapping[str, Any]], text: str, *arguments: object
) -> None:
    """Log a line: `text` in the text format, the result of `fields` in JSON."""
    logger.log(level, text, *arguments, extra={_FIELDS: fields})


def labels_text(labels: Mapping[str, str]) -> str:
    """Return the client's labels as the end of a text line."""
    return f" labels={json.dumps(labels)}" if labels else ""
