"""What a completion must look like, as a grammar of llguidance; what cannot be enforced is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.guides.compilation import check
from model_repository.guides.gbnf import gbnf_to_lark
from model_repository.guides.json_schema import enforceable_schema, rewritten_schema, schema_grammar
from model_repository.guides.pattern import MAX_OPTIONAL, literal, whole_pattern
from model_repository.guides.refusal import parse_json, refuse

# llguidance's parser recurses on the native stack, over references too: without these a request could end the process.
MAX_CHARS = 100_000
MAX_RULES = 500  # lines of a grammar
MAX_GRAMMAR_CHARS = 1_000_000  # what is referred to by many names is written out for each
MAX_CHOICES = 1_000

# Where only one text can follow, llguidance would else allow only the tokens that its tokenizer makes of it. At the
# end, so that the lines in its messages are the client's.
FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'


def guide_to_grammar(guide: StructuredOutput) -> str:
    """Return llguidance's grammar for a guide, checked as far as that goes without the model's tokenizer.

    JSON is written as `json.dumps` writes it: ", " and ": " and no other white space. Properties come in the order of
    the schema. An object with `properties` and without `additionalProperties` has no others: that is less than the
    schema allows, and keeps a weak model from inventing some. It stays open where closing it would contradict: inside
    of what is combined, by allOf or by a reference or a choice beside other keywords. Objects without `properties`
    stay open.

    Raises:
        InvalidRequest: the guide is malformed or too large.
        Unsupported: a part of it cannot be enforced.
    """
    grammar = _grammar(guide, functools.partial(enforceable_schema, is_strict=guide.is_strict))
    check(grammar)
    return grammar


def grammar_text(guide: StructuredOutput) -> str:
    """Return what guide_to_grammar returns, for a guide that it took: nothing is compiled or proved again.

    Another guide is refused, or its grammar may not compile, enforce less than it says, or end in a failure.

    Raises:
        InvalidRequest, Unsupported: as guide_to_grammar does.
    """
    return _grammar(guide, rewritten_schema)


def rule_of(guide: StructuredOutput) -> str | None:
    """Return what stands behind `start:` in the grammar of a guide, for use in a larger one; None where that is more.

    Raises:
        InvalidRequest, Unsupported: as guide_to_grammar does.
    """
    if guide.format in (OutputFormat.GRAMMAR, OutputFormat.LARK):
        return None
    return guide_to_grammar(guide).removesuffix(FREE_TOKENS).removeprefix("start: ")


def _grammar(guide: StructuredOutput, rewrite: Callable[[object], dict[str, Any]]) -> str:
    content = guide.content
    if len(content) > MAX_CHARS:
        refuse(f"{len(content)} characters: at most {MAX_CHARS} are allowed")
    if _has_surrogates(content):
        refuse("half of a surrogate pair: this is no text")
    match guide.format:
        case OutputFormat.JSON_OBJECT:
            grammar = schema_grammar({"type": "object"})
        case OutputFormat.JSON_SCHEMA:
            grammar = schema_grammar(rewrite(parse_json(content, "schema")))
        case OutputFormat.REGEX:
            grammar = _regex_grammar(content)
        case OutputFormat.CHOICE:
            grammar = _choice_grammar(content)
        case OutputFormat.GRAMMAR:
            _check_grammar_size(content)
            grammar = gbnf_to_lark(content)
        case OutputFormat.LARK:
            _check_grammar_size(content)
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
