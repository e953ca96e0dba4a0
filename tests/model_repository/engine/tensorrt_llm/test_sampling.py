"""From a request to the keywords of SamplingParams, with plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_repository.capabilities import Capability
from model_repository.contract.request import Mirostat, OutputFormat, StructuredOutput, Thinking
from model_repository.engine.tensorrt_llm.options import GuidedDecoding, lost_capabilities
from model_repository.engine.tensorrt_llm.processors import VocabularyFile
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, SamplingPlanner, embedding_bias
from model_repository.reasoning_formats import REASONING_FORMATS
from tests.model_repository.engine.tensorrt_llm.conftest import EOS, OTHER_EOS, UNUSED, VOCAB_SIZE, request

SAMPLED = {"temperature": 0.7, "seed": 2**64 - 1}


def plan(guided_decoding: GuidedDecoding = GuidedDecoding.LLGUIDANCE, **fields: Any) -> SamplingPlan:
    vocabulary = VocabularyFile(Path("unused"), VOCAB_SIZE, frozenset([EOS, OTHER_EOS]))
    planner = SamplingPlanner(vocabulary=vocabulary, unused=(UNUSED, 5), guided_decoding=guided_decoding)
    return planner.plan(request(**{"ignore_eos": False} | fields))


def keywords(**fields: Any) -> dict[str, Any]:
    return dict(plan(**fields).keywords)


def test_a_greedy_request_has_only_one_greedy_argument() -> None:
    assert keywords() == {
        "end_id": EOS,
        "pad_id": EOS,
        "max_tokens": 8,
        "ignore_eos": False,
        "include_stop_str_in_output": True,
        "detokenize": False,
        "seed": 0,
        "top_k": 1,
        "stop_token_ids": [OTHER_EOS],
        "min_tokens": 0,  # its own default is 1
    }


ECHO = (b"a", b"b", b"c")
GREEDY = {"top_k": 1, "temperature": None, "top_p": None}


# The fields of a request, and some of its arguments; None: absent.
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sampling": {"temperature": 1.0, "top_p": 0.0}}, GREEDY),
        ({"sampling": {"temperature": 1.0, "top_k": 1}}, GREEDY),
        ({"sampling": {"mirostat": Mirostat(), "min_p": 0.5}}, GREEDY | {"logits_processor": None}),
        ({"sampling": SAMPLED}, SAMPLED | {"top_p": 1.0, "top_k": 0}),
        ({"sampling": SAMPLED | {"top_p": 0.9, "top_k": 40}}, {"top_p": 0.9, "top_k": 40}),
        ({"max_tokens": 0}, {"max_tokens": 1}),
        ({"num_logprobs": 0}, {"logprobs": 1, "return_context_logits": None}),
        ({"num_logprobs": 5}, {"logprobs": 5}),
        ({"num_logprobs": 0, "echo": ECHO}, {"return_context_logits": True}),
        ({"num_prompt_logprobs": 5}, {"logprobs": None, "return_context_logits": True}),
        ({"echo": ECHO}, {"logprobs": None, "return_context_logits": None}),
        ({"ignore_eos": True}, {"stop_token_ids": None}),
    ],
    ids=str,
)
def test_a_request_becomes_arguments_of_tensorrt_llm(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    asked = keywords(**fields)
    assert {name: asked.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "ends"), [({}, [OTHER_EOS, 20, 30]), ({"ignore_eos": True, "min_tokens": 3}, [20])], ids=str
)
def test_every_end_is_named_and_ignored_ones_are_not(fields: dict[str, Any], ends: list[int]) -> None:
    asked = plan(stop_token_ids=(20,), end_token_ids=(30,), **fields)
    assert asked.keywords["stop_token_ids"] == ends
    assert asked.ends == ({20} if fields else {EOS, *ends})


def test_min_tokens_hold_back_every_end() -> None:
    asked = keywords(min_tokens=3, stop_token_ids=(20,))
    assert asked["min_tokens"] == 0  # TensorRT-LLM's own would hold the end back even where nothing else can follow
    [edit] = asked["logits_processor"]._edits
    assert (edit.ends, edit.request.params.min_tokens, edit.has_grammar) == ({EOS, OTHER_EOS, 20}, 3, False)


def test_biases_are_a_vector_of_the_vocabulary_unless_penalties_follow_them() -> None:
    biases = {"logit_bias": {7: 2.5, 8: -100.0, 9: -99.5}}
    bias = embedding_bias(plan(sampling=biases).biases, VOCAB_SIZE)
    assert bias.dtype == np.float32 and bias.shape == (VOCAB_SIZE,)
    assert {int(index): float(bias[index]) for index in np.flatnonzero(bias)} == {7: 2.5, 8: -np.inf, 9: -99.5}
    penalized = plan(sampling=biases | {"repetition_penalty": 1.1})
    assert not penalized.biases
    banned, shaping = penalized.keywords["logits_processor"]._edits
    assert (banned.banned, shaping._bias) == ({8}, {7: 2.5, 9: -99.5})


@pytest.mark.parametrize("output_format", OutputFormat)
def test_a_structured_output_is_followed_by_our_own_masks(output_format: OutputFormat) -> None:
    asked = plan(structured_output=StructuredOutput(output_format, "x"), grammar="start: x", grammar_bytes=7)
    [edit] = asked.keywords["logits_processor"]._edits
    assert edit.request.grammar_bytes == 7
    assert (edit.has_grammar, edit.request.grammar) == (True, "start: x")
    assert (asked.native_grammar, asked.dead_end) == (None, UNUSED)


@pytest.mark.parametrize(
    ("output_format", "native"),
    [
        (OutputFormat.JSON_OBJECT, {"json_object": True}),
        (OutputFormat.JSON_SCHEMA, {"json": "x"}),
        (OutputFormat.REGEX, {"regex": "x"}),
        (OutputFormat.GRAMMAR, {"grammar": "x"}),
        (OutputFormat.CHOICE, None),
    ],
)
def test_xgrammar_follows_the_formats_that_it_has(output_format: OutputFormat, native: dict[str, Any] | None) -> None:
    form = {"structured_output": StructuredOutput(output_format, "x"), "grammar": "start: x"}
    asked = plan(GuidedDecoding.XGRAMMAR, **form)
    assert asked.native_grammar == native
    assert ("logits_processor" in asked.keywords) == (native is None)
    combined = plan(GuidedDecoding.XGRAMMAR, **form, is_combined=True)
    assert combined.native_grammar is None and "logits_processor" in combined.keywords


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 2},
        {"ignore_eos": True},
        {"bad_words": ("x",)},
        {"allowed_token_ids": (7,)},
        {"sampling": {"logit_bias": {7: -100.0}}},
    ],
    ids=str,
)
def test_a_structured_output_is_followed_by_our_own_masks_where_others_are_too(fields: dict[str, Any]) -> None:
    regex = StructuredOutput(OutputFormat.REGEX, "x")
    asked = plan(GuidedDecoding.XGRAMMAR, structured_output=regex, **fields)
    assert asked.native_grammar is None
    assert [edit.has_grammar for edit in asked.keywords["logits_processor"]._edits] == [True]


EDITED: dict[Capability, dict[str, Any]] = {
    Capability.ALLOWED_TOKEN_IDS: {"allowed_token_ids": (20,)},
    Capability.BAD_WORDS: {"bad_words": ("a",)},
    Capability.MIN_TOKENS: {"min_tokens": 2},
    Capability.MIROSTAT: {"sampling": SAMPLED | {"mirostat": Mirostat()}},
    Capability.MIN_P: {"sampling": SAMPLED | {"min_p": 0.5}},
    Capability.REPETITION_PENALTY: {"sampling": {"repetition_penalty": 1.5}},
    Capability.PRESENCE_PENALTY: {"sampling": {"presence_penalty": 1.0}},
    Capability.FREQUENCY_PENALTY: {"sampling": {"frequency_penalty": 1.0}},
    Capability.THINKING_BUDGET: {"thinking": Thinking(REASONING_FORMATS["think"], is_open=True, budget=5)},
}


def test_the_overlap_scheduler_costs_the_capabilities_that_need_a_logits_processor() -> None:
    lost = lost_capabilities({"backend": "pytorch", "overlap_scheduler": "true"})
    assert lost - {Capability.SEED} == EDITED.keys()
    for fields in EDITED.values():
        assert "logits_processor" in keywords(**fields)
    asked = keywords(sampling=SAMPLED | {"top_p": 0.9, "logit_bias": {7: 1.0, 8: -100.0}}, num_logprobs=2)
    assert "logits_processor" not in asked


def test_a_structured_output_behind_thinking_needs_a_logits_processor_too() -> None:
    json_object, thinking = (
        StructuredOutput(OutputFormat.JSON_OBJECT),
        Thinking(REASONING_FORMATS["think"], is_open=True),
    )
    native = plan(GuidedDecoding.XGRAMMAR, structured_output=json_object, ignore_eos=False)
    masked = plan(GuidedDecoding.XGRAMMAR, structured_output=json_object, thinking=thinking)
    assert [each.native_grammar is not None for each in (native, masked)] == [True, False]
    assert "logits_processor" in masked.keywords
    assert "logits_processor" not in keywords(thinking=thinking)


def test_a_dead_end_is_a_token_that_the_request_does_not_name() -> None:
    regex = StructuredOutput(OutputFormat.REGEX, "x")
    assert plan(structured_output=regex, stop_token_ids=(UNUSED,)).dead_end == 5
    assert plan(structured_output=regex, sampling={"logit_bias": {UNUSED: 1.0}}).dead_end == 5
    assert plan().dead_end is None
