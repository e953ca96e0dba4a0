"""The guided decoding of TensorRT-LLM itself, which needs its own tokenizer; by llguidance also in place of xgrammar.

The only end that it knows is the tokenizer's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from tensorrt_llm._model import Floats


class Grammar:
    """Masks for one sequence.

    Args:
        end_id: the tokenizer's.
        is_llguidance: a grammar is in llguidance's language, as for that backend.

    Raises:
        ValueError: the structured output is none.
    """

    def __init__(self, params: Any, tokenizer: LLTokenizer, end_id: int, *, is_llguidance: bool) -> None:
        self._matcher = LLMatcher(tokenizer, _grammar(params, is_llguidance), log_level=0)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        self._end_id = end_id

    def ban(self, logits: Floats) -> None:
        """Ban the tokens that may not follow."""
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8)[: len(logits)] != 0
        allowed[self._end_id] = self._matcher.is_accepting()
        logits[: len(allowed)][~allowed] = -np.inf

    def take(self, token_id: int) -> None:
        """Note the token that was drawn."""
        if token_id != self._end_id:
            self._matcher.consume_token(token_id)


def load_tokenizer(folder: Path, vocab_size: int) -> LLTokenizer:
    """Return the tokenizer in a folder."""
    return LLTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), n_vocab=vocab_size)


def end_token(folder: Path) -> int:
    """Return the end token of the tokenizer in a folder."""
    name = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"]
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == name)


def _grammar(params: Any, is_llguidance: bool) -> str:
    if params.json_object:
        grammar = LLMatcher.grammar_from_json_schema('{"type": "object"}')
    elif params.json is not None:
        schema = params.json if isinstance(params.json, str) else json.dumps(params.json)
        grammar = LLMatcher.grammar_from_json_schema(schema)
    elif params.regex is not None:
        grammar = LLMatcher.grammar_from_regex(params.regex)
    else:
        grammar = LLMatcher.grammar_from_lark(params.grammar if is_llguidance else any_to_lark(params.grammar))
    return str(grammar)
