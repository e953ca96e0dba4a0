"""Structured outputs as grammars of llguidance; anything that cannot be enforced is refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.structured_output.compilation import check
from model_repository.structured_output.gbnf import gbnf_to_lark
from model_repository.structured_output.json_schema import enforceable_schema, rewritten_schema
from model_repository.structured_output.pattern import MAX_OPTIONAL, literal, whole_pattern
from model_repository.structured_output.refusal import parse_json, refuse

# llguidance's parser recurses on the native stack, also over references: without these limits a request could crash it.
MAX_CHARS = 100_000
MAX_LARK_CHARS = 250_000  # written by the tokenizer stage from checked schemas
MAX_RULES = 500  # lines of a grammar
MAX_GRAMMAR_CHARS = 1_000_000  # a part with several references is written out for each
MAX_CHOICES = 1_000

# If only one text can follow, llguidance would allow only its own tokens of that text. This option is the last line,
# so that line numbers in messages are the client's.
FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'


def structured_output_to_grammar(structured_output: StructuredOutput) -> str:
    """Return llguidance's grammar for a structured output, checked without the model's tokenizer.

    JSON looks as `json.dumps` writes it: ", " and ": " and no other white space. Properties come in the order of the
    schema. An object with `properties` and without `additionalProperties` gets no others: a weak model would invent
    some. It stays open inside a combination, by allOf or by a reference or a choice beside other keywords, since a
    closed one could contradict the others. Objects without `properties` stay open.

    Raises:
        InvalidRequest: the structured output is malformed or too large.
        Unsupported: a part of it cannot be enforced.
    """
    grammar = _grammar(structured_output, functools.partial(enforceable_schema, is_strict=structured_output.is_strict))
    check(grammar)
    return grammar


def grammar_text(structured_output: StructuredOutput) -> str:
    """Return the grammar of a structured output that `structured_output_to_grammar` has accepted, without its checks.

    The grammar of any other structured output may fail to compile, or be wider than its source.

    Raises:
        InvalidRequest, Unsupported: as structured_output_to_grammar does.
    """
    return _grammar(structured_output, rewritten_schema)


def rule_of(structured_output: StructuredOutput) -> str:
    """Return the right side of `start:`, for use in a larger grammar.

    Raises:
        InvalidRequest, Unsupported: as structured_output_to_grammar does.
    """
    grammar = structured_output_to_grammar(structured_output).removesuffix(FREE_TOKENS)
    has_rules = structured_output.format is OutputFormat.GRAMMAR
    return f"%lark {{\n{grammar}\n}}" if has_rules else grammar.removeprefix("start: ")


def _grammar(structured_output: StructuredOutput, rewrite: Callable[[object], dict[str, Any]]) -> str:
    content = structured_output.content
    most = MAX_LARK_CHARS if structured_output.format is OutputFormat.LARK else MAX_CHARS
    if len(content) > most:
        refuse(f"{len(content)} characters: at most {most} are allowed")
    if _has_surrogates(content):
        refuse("half of a surrogate pair: this is no text")
    match structured_output.format:
        case OutputFormat.JSON_OBJECT | OutputFormat.JSON_SCHEMA as form:
            schema = {"type": "object"} if form is OutputFormat.JSON_OBJECT else parse_json(content, "schema")
            grammar = f"start: %json {json.dumps(rewrite(schema))}"
        case OutputFormat.REGEX:
            grammar = _regex_grammar(content)
        case OutputFormat.CHOICE:
            grammar = _choice_grammar(content)
        case OutputFormat.GRAMMAR:
            _check_grammar_size(content)
            grammar = gbnf_to_lark(content)
        case OutputFormat.LARK:
            grammar = content
    if len(grammar) > MAX_GRAMMAR_CHARS:
        refuse(f"{len(grammar)} characters when written out: at most {MAX_GRAMMAR_CHARS} are allowed")
    return grammar + FREE_TOKENS


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _regex_grammar(content: str) -> str:
    if not content:
        refuse("the regular expression must not be empty")
    return f"start: /{whole_pattern(content, 'regex')}/"


def _choice_grammar(content: str) -> str:
    choices = parse_json(content, "choice")
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        refuse(f"choice: must be a list of 1 to {MAX_CHOICES} texts")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            refuse(f"choice[{index}]: must be a text, not empty")
        if _has_surrogates(choice):
            refuse(f"choice[{index}]: half of a surrogate pair: this is no text")
    return f"start: /{'|'.join(''.join(map(literal, choice)) for choice in dict.fromkeys(choices))}/"


def _check_grammar_size(content: str) -> None:
    if content.count("\n") > MAX_RULES or content.count("::=") > MAX_RULES:
        refuse(f"grammar: more than {MAX_RULES} lines")
    if len(re.findall(r"[?*]|\{\s*0", content)) > MAX_OPTIONAL:
        refuse(f"grammar: more than {MAX_OPTIONAL} optional parts")
