"""Durations and sizes as people write them, in options and requests."""

from __future__ import annotations

import math
import re

DURATION_RULE = "a duration such as 30s, 5m or 1h30m, or a number of seconds; 0 is at once, and a negative one never"
SIZE_RULE = "a number of bytes above 0, such as 500M, 8G (decimal) or 8Gi (binary)"

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(\d{1,15}\.?\d{0,15}|\.\d{1,15})"
_MAX_S = 1e15
_PART = re.compile(rf"{_NUMBER}({'|'.join(_UNIT_S)})", re.ASCII)
_DURATION = re.compile(rf"(?P<sign>[-+]?)((?P<seconds>{_NUMBER})|(?P<parts>({_PART.pattern})+))", re.ASCII)
_SIZE = re.compile(rf"(?P<number>{_NUMBER})((?P<prefix>[kmgt])(?P<binary>i?))?b?", re.ASCII | re.IGNORECASE)


def seconds_of(value: object) -> float:
    """Return the seconds of a duration in Ollama's form, a text or a number; math.inf: negative, which means never.

    Raises:
        ValueError: another value; with the rule.
    """
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = min(max(value, -1.0), _MAX_S)
    elif isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        parts = ((float(part[1]), _UNIT_S[part[2]]) for part in _PART.finditer(found["parts"] or ""))
        seconds = float(found["seconds"] or sum(number * unit_s for number, unit_s in parts))
        seconds = -seconds if found["sign"] == "-" else seconds
    if math.isnan(seconds):
        raise ValueError(f"expected {DURATION_RULE}")
    return math.inf if seconds < 0 else float(seconds)


def bytes_of(text: str) -> int:
    """Return the bytes of a size.

    Raises:
        ValueError: another text; with the rule.
    """
    if found := _SIZE.fullmatch(text):
        base, power = 1024 if found["binary"] else 1000, " kmgt".index((found["prefix"] or " ").lower())
        if num_bytes := int(float(found["number"]) * base**power):
            return num_bytes
    raise ValueError(f"expected {SIZE_RULE}")
