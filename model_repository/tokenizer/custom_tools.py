"""Custom tools, whose input is a text: the model calls each as a function with this text as its only argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_repository.errors import InvalidRequest
from model_repository.structured_output.input_grammar import input_pattern

type InputGrammars = tuple[tuple[str, str] | None, ...]  # syntax and definition for each tool; None: any input
type Patterns = tuple[str, ...]  # of the inputs, for each tool; empty: any input


def input_grammars(tools: Sequence[Mapping[str, Any]]) -> InputGrammars:
    """Return the grammars of the inputs of custom tools."""
    return tuple(map(_input_grammar, tools))


def input_patterns(grammars: InputGrammars) -> Patterns:
    """Return the patterns of the inputs that grammars allow.

    Raises:
        InvalidRequest: a grammar is malformed or too large.
        Unsupported: a grammar cannot be enforced.
    """
    patterns = []
    for index, grammar in enumerate(grammars):
        try:
            patterns.append("" if grammar is None else input_pattern(*grammar))
        except InvalidRequest as exc:
            raise type(exc)(exc.text, f"tools[{index}].custom.format.grammar.definition") from exc
    return tuple(patterns)


def as_functions(tools: Sequence[Mapping[str, Any]], patterns: Patterns) -> tuple[Mapping[str, Any], ...]:
    """Return the tools, each custom one as a function.

    Args:
        patterns: one for each tool; empty: the inputs have no grammars.
    """
    patterns = patterns or ("",) * len(tools)
    return tuple(
        _function(tool["custom"], pattern) if tool["type"] == "custom" else tool
        for tool, pattern in zip(tools, patterns, strict=True)
    )


def _input_grammar(tool: Mapping[str, Any]) -> tuple[str, str] | None:
    match tool:
        case {"type": "custom", "custom": {"format": {"type": "grammar", "grammar": grammar}}}:
            return grammar["syntax"], grammar["definition"]
        case _:
            return None


def _function(custom: Mapping[str, Any], pattern: str) -> Mapping[str, Any]:
    text = {"type": "string"}
    if pattern:
        grammar = custom["format"]["grammar"]
        text["pattern"] = pattern
        if grammar["syntax"] == "lark":  # easier to read than the pattern
            text["description"] = f"Text of this Lark grammar:\n{grammar['definition']}"
    parameters = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    function = {"name": custom["name"], "description": custom.get("description"), "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
