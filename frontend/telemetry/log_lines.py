"""Log lines as text or as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson

from model_repository.system.log_time import TimedFormatter, text_line, time_text
from model_repository.system.terminal_text import escaped_output

REQUEST_LOGGER = "frontend.app"  # a stable name for filters of request lines
_FIELDS = "fields"  # attribute of a log record: returns what replaces the message in JSON


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = getattr(record, _FIELDS, None)
        line = _json_fields(record.created, record.levelno, record.name)
        line |= {"message": record.getMessage()} if fields is None else fields()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _json_fields(seconds: float, level: int, name: str) -> dict[str, Any]:
    return {"time": time_text(seconds), "level": logging.getLevelName(level), "logger": name}


class GatheringHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of a turn of the event loop together. A warning, or a thread without a loop, writes at once."""

    def __init__(self, stream: TextIO, *, is_json: bool) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter() if is_json else TimedFormatter())
        self._is_json = is_json
        self._lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that will write them

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, now or at the end of this turn."""
        try:
            self._add(record.levelno, self.format(record))
        except Exception:
            self.handleError(record)

    def log(self, name: str, level: int, text: Callable[[], str], fields: Callable[[], Mapping[str, Any]]) -> None:
        """Write the line of a logger without a record, which costs several times as much."""
        with self.lock or contextlib.nullcontext():
            if self._is_json:
                self._add(
                    level, orjson.dumps({**_json_fields(time.time(), level, name), **fields()}, default=str).decode()
                )
            else:
                self._add(level, text_line(time.time(), level, name, text()))

    def _add(self, level: int, line: str) -> None:
        self._lines.append(line + self.terminator)
        if level >= logging.WARNING or not self._has_scheduled():
            self.flush()

    def flush(self) -> None:
        """Write the lines, also those at the end of the process."""
        with self.lock or contextlib.nullcontext():
            self._loop = None
            if self._lines:
                self.stream.write("".join(self._lines))
                self._lines.clear()
            super().flush()

    def _has_scheduled(self) -> bool:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # this thread has no event loop
            return False
        if self._loop is not loop:  # none, or one that has ended
            self._loop = loop
            loop.call_soon(self.flush)
        return True


def configure_logging(log_format: str) -> None:
    """Log to standard error, as `text` or as `json`."""
    # No line shows these; to find them out would take half the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # the same for file and line: the documented way
    handler = GatheringHandler(escaped_output(sys.stderr), is_json=log_format == "json")
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_fields(
    logger: logging.Logger, level: int, text: Callable[[], str], fields: Callable[[], Mapping[str, Any]]
) -> None:
    """Log a line: `text` in the text format, `fields` in JSON."""
    handlers = [*logger.handlers, *logging.root.handlers]
    if len(handlers) == 1 and isinstance(handlers[0], GatheringHandler):
        handlers[0].log(logger.name, level, text, fields)
    else:
        logger.log(level, text(), extra={_FIELDS: fields})


def labels_text(labels: Mapping[str, str]) -> str:
    """Return the client's labels as the end of a text line."""
    return f" labels={json.dumps(labels)}" if labels else ""
