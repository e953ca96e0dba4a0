"""Short Python functions: some to complete, some with a gap to fill in the middle."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from string import Template

from tests.workshop.demo_training.relations import FACTS

SHARE_OF_LINES = 0.65  # gaps of whole lines; the others begin and end anywhere
INDENT = "    "


@dataclass(frozen=True)
class Function:
    """A function under several names, with several names of its arguments, called $a, $b and $c in the code."""

    names: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    doc: str
    code: str


@dataclass(frozen=True)
class Gap:
    prefix: str
    middle: str
    suffix: str


def read_functions() -> Iterable[Function]:
    """Read the functions of `facts/`: three lines of fields, then the code, then an empty line."""
    for block in (FACTS / "functions.txt").read_text(encoding="utf-8").strip().split("\n\n"):
        names, arguments, doc, code = block.split("\n", maxsplit=3)
        yield Function(
            names=tuple(names.removeprefix("names:").split()),
            arguments=tuple(tuple(option.split()) for option in arguments.removeprefix("arguments:").split("|")),
            doc=doc.removeprefix("doc:").strip(),
            code=code + "\n",
        )


FUNCTIONS = tuple(read_functions())


def draw_function(rng: random.Random) -> str:
    """Write a function, now and then with a comment or a docstring."""
    function = rng.choice(FUNCTIONS)
    slots = dict(zip("abc", rng.choice(function.arguments), strict=False))
    code = Template(function.code).substitute(slots, f=rng.choice(function.names))
    luck = rng.random()
    if luck < 0.15:
        return f"# {function.doc}\n{code}"
    if luck < 0.3:
        return code.replace("\n", f'\n{INDENT}"""{function.doc}"""\n', 1)
    return code


def head_length(code: str) -> int:
    """Return where the body begins, after the line of the `def`."""
    return code.index("\n", code.index("def ")) + 1


def draw_gap(rng: random.Random) -> Gap:
    """Cut a function, or the last of two, in three; the middle lies in its body."""
    before = draw_function(rng) + "\n\n" if rng.random() < 0.2 else ""
    code = draw_function(rng)
    start = head_length(code)
    if code.startswith('    """', start):
        start = code.index("\n", start) + 1
    body = code[start:]
    if rng.random() < SHARE_OF_LINES:
        ends = [0, *(match.end() for match in re.finditer("\n", body))]
    elif rng.random() < 0.85:
        ends = [0, *(match.start() for match in re.finditer(r"\b", body)), len(body) - 1]
    else:
        ends = list(range(len(body)))
    first, last = sorted(rng.sample(sorted(set(ends)), 2))
    if last == len(body) and rng.random() < 0.7:
        last -= 1  # the line after the cursor keeps its end
    prefix, middle, suffix = before + code[: start + first], body[first:last], body[last:]
    if rng.random() < 0.3:  # the end of the file is often not sent
        suffix = suffix.rstrip("\n")
    if rng.random() < 0.2:
        suffix += "\n\n" + draw_function(rng)
    if not suffix or not middle.strip():
        return draw_gap(rng)
    return Gap(prefix, middle, suffix)


def draw_completion(rng: random.Random) -> tuple[str, str]:
    """Return the beginning of a function, its line of the `def` at least, and the rest of it."""
    code = draw_function(rng).rstrip("\n")
    start = head_length(code)
    ends = [start - 1, *(start + match.end() for match in re.finditer("\n", code[start:]))]
    cut = rng.choice((start - 1, rng.choice(ends)))
    return code[:cut], code[cut:]
