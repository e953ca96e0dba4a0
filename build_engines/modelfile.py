"""Ollama's Modelfile. Only what a preset has is read: the rest is refused by name.

Source: https://docs.ollama.com/modelfile
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from build_engines.errors import BuildError
from model_repository.model_parameters import checked_defaults
from model_repository.system.command_parser import expected_one_of, json_or_text

_INSTRUCTIONS = ("FROM", "SYSTEM", "PARAMETER")
_OTHER_INSTRUCTIONS = {
    "TEMPLATE": "a model has the chat template of its own files",
    "ADAPTER": "`conch build MODEL --adapter NAME=DIR` adds an adapter to a model",
    "MESSAGE": "clients send the whole conversation with each request",
    "LICENSE": "a preset has no license of its own",
}
# The defaults that a parameter sets.
_PARAMETERS = {
    **{name: (name,) for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    "num_predict": ("chat_max_tokens", "completion_max_tokens"),
    "repeat_penalty": ("repetition_penalty",),
    **{name: (name,) for name in ("presence_penalty", "frequency_penalty")},
}
_BY_THE_CLIENT = "clients set it in a request"
_OTHER_PARAMETERS = {
    "num_ctx": "`conch build MODEL --context-window N` sets it for a model",
    "num_gpu": "`conch build MODEL --gpu-layers N` sets it for a model",
    "num_thread": "`conch build MODEL --num-threads N` sets it for a model",
    "mirostat": _BY_THE_CLIENT,
    "mirostat_eta": _BY_THE_CLIENT,
    "mirostat_tau": _BY_THE_CLIENT,
    "repeat_last_n": "the penalty counts all tokens of prompt and completion",
}
_WITHOUT_LIMIT = (-1, -2)  # of num_predict: the rest of the context window
_QUOTES, _QUOTE = '"""', '"'
_MAX_SHOWN = 100  # characters of a value in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """The content of a Modelfile."""

    base: str  # of FROM
    system: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)


def read_modelfile(text: str) -> Modelfile:
    """Read a Modelfile.

    Raises:
        BuildError: names the line, the instruction, its value and the rule.
    """
    named: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for number, word, value in _instructions(text):
        instruction, shown = word.upper(), f"{number}: {' '.join((word, *value.split()))}"[:_MAX_SHOWN]
        try:
            if instruction in _OTHER_INSTRUCTIONS:
                raise BuildError(_OTHER_INSTRUCTIONS[instruction])
            if instruction not in _INSTRUCTIONS:
                raise BuildError(expected_one_of(instruction, _INSTRUCTIONS))
            if instruction == "PARAMETER":
                _set_parameter(defaults, *_name_and_text(value))
            elif instruction in named:
                raise BuildError("given twice")
            else:
                named[instruction] = _unquoted(value).strip()
        except BuildError as exc:
            raise BuildError(f"line {shown}: {exc}") from exc
    if not named.get("FROM"):
        raise BuildError("FROM: required, with the name of a model")
    return Modelfile(base=named["FROM"], system=named.get("SYSTEM"), defaults=defaults)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the number of the first line of each instruction, its word, and its value with the quotes.

    Raises:
        BuildError: three quotes are not closed, or a text follows the closing ones.
    """
    lines = enumerate(text.split("\n"), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, *rest = line.strip().split(maxsplit=1)
        value = "".join(rest)
        text_of_line = _name_and_text(value)[1] if word.upper() == "PARAMETER" else value
        if text_of_line.startswith(_QUOTES):
            while value.count(_QUOTES) < 2:
                if (following := next(lines, None)) is None:
                    raise BuildError(f"line {number}: {word}: {_QUOTES} without an end")
                value += f"\n{following[1]}"
            value = value.rstrip()
            if value.count(_QUOTES) > 2 or not value.endswith(_QUOTES):
                raise BuildError(f"line {number}: {word}: a text behind the closing {_QUOTES}")
        yield number, word, value


def _name_and_text(value: str) -> tuple[str, str]:
    name, *rest = value.split(maxsplit=1) or [""]
    return name, "".join(rest)


def _unquoted(value: str) -> str:
    for quotes in (_QUOTES, _QUOTE):
        if value.count(quotes) == 2 and value.startswith(quotes) and value.endswith(quotes):
            return value[len(quotes) : -len(quotes)]
    return value


def _set_parameter(defaults: dict[str, Any], name: str, text: str) -> None:
    if name in _OTHER_PARAMETERS:
        raise BuildError(_OTHER_PARAMETERS[name])
    if name not in _PARAMETERS:
        raise BuildError(expected_one_of(name, [*_PARAMETERS]))
    value = json_or_text(text)
    if name == "stop":
        value = [*defaults.pop(name, ()), _unquoted(text)]
    elif name == "num_predict" and value in _WITHOUT_LIMIT:
        value = None
    for default in _PARAMETERS[name]:
        if default in defaults:
            raise BuildError("given twice")
        try:
            defaults |= checked_defaults({default: value})
        except ValueError as exc:
            raise BuildError(f"must be {str(exc).rpartition(': must be ')[2]}") from exc
