"""Whether a compiled constraint accepts a text."""

import contextlib
import functools
import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.errors import InvalidRequest
from model_repository.structured_output.grammar import lark_to_grammar, structured_output_to_grammar
from model_repository.structured_output.json_schema import IgnoredKeywords, enforceable_schema


def accepts(form: StructuredOutput | str, text: str) -> bool:
    """Return whether a text may be the whole completion, by a structured output or by the tokenizer stage's rules."""
    matcher = _matcher(form).deep_copy()
    content = text.encode()
    return bool(matcher.try_consume_tokens([*content]) == len(content) and matcher.is_accepting())


def accepts_json(schema: object, value: Any, *, is_strict: bool = True) -> bool:
    """Return whether a value, written as we have JSON written, satisfies the constraint of a schema."""
    return accepts(
        StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps(schema), is_strict=is_strict), canonical(value)
    )


def schema_to_grammar(schema: object) -> str:
    """Return the grammar of a JSON schema."""
    return structured_output_to_grammar(StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps(schema)))


def ignored_keywords(schema: object) -> list[str]:
    """Return the paths of the keywords that a schema is enforced without; a bad schema has none."""
    ignored = IgnoredKeywords()
    with contextlib.suppress(InvalidRequest):
        enforceable_schema(schema, is_strict=False, ignored=ignored)
    return [*ignored.places]


def canonical(value: Any) -> str:
    """Return JSON as constrained decoding writes it: as json.dumps does, with DEL escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@functools.lru_cache(maxsize=4)
def _matcher(form: StructuredOutput | str) -> LLMatcher:
    grammar = lark_to_grammar(form) if isinstance(form, str) else structured_output_to_grammar(form)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    assert not matcher.get_error()
    return matcher
