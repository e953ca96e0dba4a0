"""The time of each log line: UTC, such as 2026-11-28T15:47:12.123Z."""

from __future__ import annotations

import functools
import logging
import re
import time

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@functools.lru_cache(maxsize=1)
def _second_text(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def time_text(seconds: float) -> str:
    """Format the seconds since 1970."""
    return f"{_second_text(int(seconds))}.{int(seconds % 1 * 1000):03d}Z"


def text_line(seconds: float, level: int, name: str, message: str) -> str:
    """Return the line of a message of a logger."""
    return f"{time_text(seconds)} {logging.getLevelName(level)} {name}: {message}"


class TimedFormatter(logging.Formatter):
    """Writes a record as a line of text with its time."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return text_line(record.created, record.levelno, record.name, record.message)
