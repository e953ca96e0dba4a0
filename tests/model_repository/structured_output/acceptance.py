"""Whether a compiled constraint accepts a text."""

import functools
import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.structured_output.grammar import structured_output_to_grammar


def accepts(structured_output: StructuredOutput, text: str) -> bool:
    """Return whether a text may be the whole completion."""
    matcher = _matcher(structured_output).deep_copy()
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


def canonical(value: Any) -> str:
    """Return JSON as constrained decoding writes it: as json.dumps does, with DEL escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@functools.lru_cache(maxsize=4)
def _matcher(structured_output: StructuredOutput) -> LLMatcher:
    matcher = LLMatcher(LLTokenizer("byte"), structured_output_to_grammar(structured_output), log_level=0)
    assert not matcher.get_error()
    return matcher
