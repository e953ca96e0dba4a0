"""Upper bounds for the results of a template's operations, calls and filters, before they are computed.

A size is in characters of a text, items of a list, or bits of an integer. Results that cannot grow, and those that
Python itself will refuse, have the size 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"[0-9]+")
_WIDTH_ELSEWHERE = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")  # a format with a width among its arguments
_UNBOUNDED = 2**63

_PADDING_FILTERS = frozenset({"center", "indent", "batch", "slice", "round", "tojson", "wordwrap"})
_MAX_PADDING = 100  # of each line, number or row


def size_of_operation(operator: str, left: Any, right: Any) -> int:
    """Return the size of a result of `+`, `*`, `**` or `%`."""
    if isinstance(left, str) and isinstance(right, str) and operator == "+":
        return len(left) + len(right)  # the most frequent operation
    if isinstance(left, int) and isinstance(right, int):
        bits, other_bits = left.bit_length(), right.bit_length()
        match operator:
            case "*":
                return bits + other_bits
            case "**":
                return bits * max(0, right)
        return max(bits, other_bits)
    match operator:
        case "+":
            return _length(left) + _length(right)
        case "*" if isinstance(left, int):
            return left * _length(right)
        case "*" if isinstance(right, int):
            return right * _length(left)
        case "%" if isinstance(left, str):
            return _size_of_format(left)
    return 0


def size_of_call(function: Any, arguments: Sequence[Any]) -> int:
    """Return the size of the result of a text's or a number's method; 0 for other calls."""
    function = getattr(function, "__wrapped__", function)  # Jinja's own around `format`
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, str | bytes | int):
        return 0
    largest = max((item for item in arguments if isinstance(item, int)), default=0)
    match owner, function.__name__, arguments:
        case _, "center" | "ljust" | "rjust" | "zfill" | "to_bytes", _:
            return largest
        case str(), "expandtabs", _:
            return owner.count("\t") * max(largest, 8)
        case str(), "replace", [str(old), str(new), *_]:
            return _size_of_replacement(owner, old, new)
        case str(), "join", [list(items) | tuple(items), *_]:
            return _size_of_join(owner, items)
        case str(), "format" | "format_map", _:
            return _size_of_format(owner)
        case bytes(), "expandtabs" | "replace" | "join", _:
            return _UNBOUNDED  # templates do not need it
    return 0


def size_of_filter(name: str, value: Any, arguments: Sequence[Any]) -> tuple[Any, int]:
    """Return a filter's value, with iterators read to their end, and the size of its result."""
    match name:
        case "replace" if len(arguments) >= 2:
            return value, _size_of_replacement(str(value), str(arguments[0]), str(arguments[1]))
        case "join" if not isinstance(value, str):
            items = list(value)
            return items, _size_of_join(str(arguments[0]) if arguments else "", items)
        case "format":
            return value, _size_of_format(str(value))
        case _ if name in _PADDING_FILTERS and any(_padding(item) > _MAX_PADDING for item in arguments):
            return value, _UNBOUNDED
    return value, 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _size_of_replacement(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * len(new)


def _size_of_join(separator: str, items: Sequence[Any]) -> int:
    return len(separator) * len(items) + sum(map(_length, items))


def _size_of_format(text: str) -> int:
    """Return the sum of the widths in a format."""
    if _WIDTH_ELSEWHERE.search(text):
        return _UNBOUNDED
    return sum(int(number) if len(number) < 10 else _UNBOUNDED for number in _NUMBER.findall(text))


def _padding(argument: Any) -> int:
    if isinstance(argument, tuple):
        return max(map(_padding, argument), default=0)
    return argument if isinstance(argument, int) else _length(argument)
