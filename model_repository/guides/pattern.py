"""Regular expressions: their limits, and the syntax that llguidance reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from model_repository.guides.refusal import decline, refuse

# Time and memory grow with the square of what is optional in one expression: 2,000 take about 0.1 s.
MAX_OPTIONAL = 2_000
MAX_PATTERN_CHARS = 5_000
MAX_PATTERN_SIZE = 100_000  # characters, with every counted repetition written out

_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|[uU]([0-9a-fA-F]{4,8})|[xuU]\{([0-9a-fA-F]{1,6})\}|[pP]\{[^}]*\}|[pP].|.)", re.DOTALL
)


def rust_pattern(pattern: str, path: str) -> str:
    """Return a JSON schema's pattern in the syntax of Rust, where a class may hold classes and has operators.

    Every class is without NUL, and NUL itself is refused: inside JSON strings llguidance 1.9 takes a class that has
    all control characters for one that has the quotation mark and the backslash too.

    Args:
        path: what messages call the pattern.

    Raises:
        InvalidRequest: the pattern is malformed or too large.
        Unsupported: it holds NUL or an empty class.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        refuse(f"{path}: a pattern has at most {MAX_PATTERN_CHARS} characters")
    parts = list(_parts(pattern, path))
    if _size(parts) > MAX_PATTERN_SIZE:
        refuse(f"{path}: its repetitions have more than {MAX_PATTERN_SIZE} characters")
    if sum(part in "*?" or part.startswith("{0") for part in parts) > MAX_OPTIONAL:
        refuse(f"{path}: more than {MAX_OPTIONAL} optional parts")
    return "".join(parts)


def _parts(pattern: str, path: str) -> Iterator[str]:
    """Yield characters, escapes, classes and counted repetitions."""
    index = 0
    while index < len(pattern):
        if pattern[index] == "[":
            part, index = _class(pattern, index, path)
        elif pattern[index] == "\\":
            part, index, is_nul = _escape(pattern, index, path)
            if is_nul:
                decline(f"{path}: a pattern with the character NUL is not enforced")
            if part[1] in "pP":
                part = f"[{part}&&[^\\x00]]"
        else:
            counted = _COUNTED.match(pattern, index)
            part = counted[0] if counted else pattern[index]
            index += len(part)
        if part == "\0":
            decline(f"{path}: a pattern with the character NUL is not enforced")
        yield part


def _size(parts: Sequence[str]) -> int:
    """Return how many characters a pattern has when its counted repetitions are written out."""
    sizes, atom = [0], 0  # of the open groups, and of what a repetition would repeat
    for part in parts:
        counted = _COUNTED.fullmatch(part)
        if counted:
            times = max(int(number[:9]) for number in (counted[1] or "1", counted[2] or "1"))
            sizes[-1] += atom * max(times - 1, 0)
            atom *= max(times, 1)
        elif part == "(":
            sizes.append(0)
            atom = 0
        elif part == ")" and len(sizes) > 1:
            atom = sizes.pop()
            sizes[-1] += atom
        elif part not in "*+?|^$":
            atom = 1
            sizes[-1] += 1
    return sum(sizes)


def _escape(pattern: str, index: int, path: str) -> tuple[str, int, bool]:
    """Return the escape that starts at the index, where it ends, and whether it stands for NUL."""
    found = _ESCAPE.match(pattern, index)
    if found is None:
        refuse(f"{path}: it ends in a backslash")
    code = found[1] or found[2] or found[3]
    return found[0], found.end(), found[0] == "\\0" or (code is not None and int(code, 16) == 0)


def _class(pattern: str, index: int, path: str) -> tuple[str, int]:
    """Return the class of characters that starts at the index, but without NUL, and where it ends."""
    is_negated = pattern.startswith("[^", index)
    index += 2 if is_negated else 1
    items: list[str] = []
    while index < len(pattern) and pattern[index] != "]":
        if pattern.startswith("--", index):
            refuse(f"{path}: write a hyphen in a class as \\-")
        if pattern[index] == "\\":
            item, index, _ = _escape(pattern, index, path)
            items.append("\\x00" if item == "\\0" else item)
        else:
            char = pattern[index]
            items.append(f"\\{char}" if char in "[&~" else char)
            index += 1
    if index == len(pattern):
        refuse(f"{path}: a class of characters has no end")
    if not items:
        decline(f"{path}: an empty class of characters is not enforced")
    inner = "".join(items)
    return f"[^\\x00{inner}]" if is_negated else f"[{inner}&&[^\\x00]]", index + 1
