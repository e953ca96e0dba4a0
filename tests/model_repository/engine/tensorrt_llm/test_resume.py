"""Completions that go on behind their first tokens."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.contract.request import Mirostat, OutputFormat, StructuredOutput, Thinking
from model_repository.errors import Unsupported
from model_repository.reasoning_formats import REASONING_FORMATS
from tests.model_repository.engine.tensorrt_llm.conftest import Tiny

PENALTIES = {"repetition_penalty": 3.0, "frequency_penalty": 1.0}
REGEX = StructuredOutput(OutputFormat.REGEX, "([a-c][x-z]){20}")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"sampling": PENALTIES},
    "log probabilities": {"sampling": PENALTIES, "num_logprobs": 2},
    "regular expression": {"structured_output": REGEX},
    "native regular expression": {"structured_output": REGEX, "ignore_eos": False},
    "bad words": {"bad_words": ("a", "b"), "sampling": {"presence_penalty": 1.0}},
    "budget of thinking": {"thinking": Thinking(REASONING_FORMATS["think"], True, budget=3)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_completion_is_the_one_that_was_never_cut(tiny: Tiny, kind: str) -> None:
    fields = {"max_tokens": 24} | KINDS[kind]
    whole = tiny.tokens(**fields)
    assert len(whole) == 24
    for num_seen in (1, 7, 23):
        assert tiny.tokens(**fields, resume_token_ids=tuple(whole[:num_seen])) == whole[num_seen:], num_seen


def test_the_estimate_of_mirostat_cannot_be_restored(tiny: Tiny) -> None:
    with pytest.raises(Unsupported, match="Mirostat") as caught:
        tiny.submit(sampling={"temperature": 1.0, "mirostat": Mirostat()}, resume_token_ids=(5,))
    assert caught.value.field == "resume_token_ids"
