"""The time of each log line: UTC, such as 2026-11-28T15:47:12.123Z."""

from __future__ import annotations

import logging
import re
import time

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

_SECONDS, _MILLISECONDS = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"


def time_text(seconds: float) -> str:
    """Format the seconds since 1970."""
    return _MILLISECONDS % (time.strftime(_SECONDS, time.gmtime(seconds)), int(seconds % 1 * 1000))


class TimedFormatter(logging.Formatter):
    """Writes a record as a line of text with its time."""

    converter = staticmethod(time.gmtime)
    default_time_format = _SECONDS
    default_msec_format = _MILLISECONDS

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
