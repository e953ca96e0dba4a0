"""How often other servers' parsers read the same calls as ours, in answers of models and in random calls."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple

from model_repository.tool_formats import TOOL_FORMATS, ToolFormat
from tests.frontend.test_output_parser_shapes import SCHEMAS, SHAPES
from tests.parsed_calls import parse_tool_calls

type Parsed = tuple[str, list[tuple[str, Any]]]  # content, and calls with the JSON values of their arguments

NUM_RANDOM = 100  # per format, of each kind
KEYS = ("text", "number", "flag", "list", "object")
PIECES = [
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    ":",
    ",",
    ";",
    "=",
    "\n",
    "\t",
    " ",
    "é",
    "\U0001f600",
]
PIECES += ["a", "1", "true", "None", "name", '"arguments": {}', "```", "</", "&amp;", "\\n", "\\u00e9"]
KINDS = ("content", "marker", "more", "fewer", "other")


class Comparison(NamedTuple):
    """What two parsers read in a text."""

    format_name: str
    oracle: str  # with its version
    source: str  # of the text, a key of `_texts`
    text: str
    ours: Parsed
    theirs: Parsed

    @property
    def kind(self) -> str:
        """`agree`, or one of `KINDS`."""
        calls, found = self.ours[1], self.theirs[1]
        if self.ours == self.theirs:
            return "agree"
        if calls == found:
            return "content" if calls else "marker"
        if not calls:
            return "more"
        return "fewer" if len(found) < len(calls) else "other"


def comparisons() -> list[Comparison]:
    """Compare our parser with the installed oracles."""
    texts = {name: _texts(name) for name in SHAPES}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
    job = {"tools": tools, "texts": {name: list(chain(*groups.values())) for name, groups in texts.items()}}
    command = [sys.executable, "-m", f"{__package__}.foreign"]
    process = subprocess.run(command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True)
    return [
        Comparison(name, f"{oracle} {version(oracle)}", source, text, _ours(name, text), values(*found))
        for oracle, formats in json.loads(process.stdout.splitlines()[-1]).items()
        for name, results in formats.items()
        for (source, text), found in zip(
            ((source, text) for source, group in texts[name].items() for text in group), results, strict=True
        )
    ]


def table() -> str:
    """Return the table of formats and installed oracles, in Markdown."""
    counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for each in comparisons():
        counts.setdefault((each.format_name, each.oracle), Counter())[each.source, each.kind] += 1
    header = f"| format | oracle | answers | agree | {' | '.join(KINDS)} | random calls | with markers |"
    lines = [header, "| --- " * (header.count("|") - 1) + "|"]
    for key, count in counts.items():
        num_answers = sum(number for (source, _), number in count.items() if source == "answers")
        cells = [*key, num_answers, *(count["answers", kind] or "" for kind in ("agree", *KINDS))]
        cells += [f"{count[source, 'agree']} of {NUM_RANDOM}" for source in ("random", "marked")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def differences() -> str:
    """Return each text that an oracle reads otherwise."""
    return "".join(
        f"{each.format_name}, {each.oracle}, {each.source}: {each.kind}\n"
        f"    {each.text!r}\n    ours   {each.ours}\n    theirs {each.theirs}\n"
        for each in comparisons()
        if each.kind != "agree"
    )


def _texts(format_name: str) -> dict[str, list[str]]:
    tool_format = TOOL_FORMATS[format_name]
    notation = tool_format.notation
    # A text that ends itself cannot be generated.
    ends = () if notation is None else (notation.after_value.strip(), notation.quote)
    special_tokens = [token for token in tool_format.special_tokens if token not in ends]
    return {
        "answers": [row.text for row in SHAPES[format_name] if not row.is_cut],
        "random": _random_answers(tool_format, PIECES),
        "marked": _random_answers(tool_format, [*PIECES, *special_tokens]),
    }


def _random_answers(tool_format: ToolFormat, pieces: Sequence[str]) -> list[str]:
    """Return calls, some behind text, whose texts are made of pieces."""
    rng = random.Random(tool_format.name)

    def text() -> str:
        return "".join(rng.choices(pieces, k=rng.randrange(8)))

    def value(kind: str) -> Any:
        match kind:
            case "text":
                return text()
            case "number":
                return rng.choice([0, -1, 3.5, 1e-7, 2**53, rng.randrange(1000)])
            case "flag":
                return rng.random() < 0.5
            case "list":
                return [value(rng.choice(["text", "number", "flag"])) for _ in range(rng.randrange(3))]
            case _:
                return {rng.choice("abc"): value(rng.choice(["text", "list"])) for _ in range(rng.randrange(3))}

    def arguments() -> str:
        kinds = rng.sample(KEYS, rng.randrange(4))
        return json.dumps({kind: value(kind) for kind in KEYS if kind in kinds}, ensure_ascii=False)

    return [
        ("Yes.\n" if tool_format.trigger and rng.random() < 0.5 else "")
        + tool_format.calls_text([(rng.choice("fg"), arguments()) for _ in range(rng.randint(1, 3))])
        for _ in range(NUM_RANDOM)
    ]


def _ours(format_name: str, text: str) -> Parsed:
    content, calls = parse_tool_calls(format_name, text, schemas=SCHEMAS)
    return values(content, [(call.name, call.arguments) for call in calls])


def values(content: str, calls: Iterable[tuple[str, str]]) -> Parsed:
    """Return content without white space around it, and calls with the JSON values of their arguments."""
    return content.strip(), [(name, _value(arguments)) for name, arguments in calls]


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
