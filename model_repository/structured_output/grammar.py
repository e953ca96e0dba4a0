"""Structured outputs as grammars of llguidance; anything that cannot be enforced is refused."""

from __future__ import annotations

import json
import re

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.structured_output.compilation import check
from model_repository.structured_output.gbnf import gbnf_to_lark
from model_repository.structured_output.json_schema import IgnoredKeywords, enforceable_schema
from model_repository.structured_output.pattern import MAX_OPTIONAL, literal, whole_pattern
from model_repository.structured_output.refusal import parse_json, refuse

# llguidance's parser recurses on the native stack, also over references: without these limits a request could crash it.
MAX_CHARS = 100_000
MAX_LARK_CHARS = 400_000  # written by the tokenizer stage from checked schemas
MAX_RULES = 500  # lines of a grammar
MAX_GRAMMAR_CHARS = 1_000_000  # a part with several references is written out for each
MAX_CHOICES = 1_000

# If only one text can follow, llguidance would allow only its own tokens of that text. This option is the last line,
# so that line numbers in messages are the client's.
FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'


def structured_output_to_grammar(structured_output: StructuredOutput, ignored: IgnoredKeywords | None = None) -> str:
    """Return llguidance's grammar for a structured output, checked without the model's tokenizer.

    JSON looks as `json.dumps` writes it: ", " and ": " and no other white space. Properties come in the order of the
    schema. An object with `properties` and without `additionalProperties` gets no others: a weak model would invent
    some. It stays open inside a combination, by allOf or by a reference or a choice beside other keywords, since a
    closed one could contradict the others. Objects without `properties` stay open.

    Args:
        ignored: gets the keywords of a schema that are not enforced.

    Raises:
        InvalidRequest: the structured output is malformed or too large.
        Unsupported: a part of it cannot be enforced.
    """
    rules = _rules(structured_output, ignored)
    if len(rules) > MAX_GRAMMAR_CHARS:
        refuse(f"{len(rules)} characters when written out: at most {MAX_GRAMMAR_CHARS} are allowed")
    return _checked(rules)


def lark_to_grammar(rules: str) -> str:
    """Return llguidance's grammar for rules in its dialect of Lark, which the tokenizer stage has written.

    Raises:
        InvalidRequest, Unsupported: as structured_output_to_grammar does.
    """
    if len(rules) > MAX_LARK_CHARS:
        refuse(f"{len(rules)} characters: at most {MAX_LARK_CHARS} are allowed")
    if _has_surrogates(rules):
        refuse("half of a surrogate pair: this is no text")
    return _checked(rules)


def rule_of(structured_output: StructuredOutput, ignored: IgnoredKeywords | None = None) -> str:
    """Return the right side of `start:`, for use in a larger grammar.

    Raises:
        InvalidRequest, Unsupported: as structured_output_to_grammar does.
    """
    grammar = structured_output_to_grammar(structured_output, ignored).removesuffix(FREE_TOKENS)
    has_rules = structured_output.format is OutputFormat.GRAMMAR
    return f"%lark {{\n{grammar}\n}}" if has_rules else grammar.removeprefix("start: ")


def _checked(rules: str) -> str:
    grammar = rules + FREE_TOKENS
    check(grammar)
    return grammar


def _rules(structured_output: StructuredOutput, ignored: IgnoredKeywords | None) -> str:
    content = structured_output.content
    if len(content) > MAX_CHARS:
        refuse(f"{len(content)} characters: at most {MAX_CHARS} are allowed")
    if _has_surrogates(content):
        refuse("half of a surrogate pair: this is no text")
    match structured_output.format:
        case OutputFormat.JSON_OBJECT | OutputFormat.JSON_SCHEMA as form:
            schema = {"type": "object"} if form is OutputFormat.JSON_OBJECT else parse_json(content, "schema")
            rewritten = enforceable_schema(schema, "schema", structured_output.is_strict, ignored)
            return f"start: %json {json.dumps(rewritten)}"
        case OutputFormat.REGEX:
            return _regex_grammar(content)
        case OutputFormat.CHOICE:
            return _choice_grammar(content)
        case OutputFormat.GRAMMAR:
            _check_grammar_size(content)
            return gbnf_to_lark(content)


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
