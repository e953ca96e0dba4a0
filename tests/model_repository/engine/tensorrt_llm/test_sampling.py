"""From a request to the keywords of SamplingParams, with plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_repository.contract.request import Mirostat, OutputFormat, StructuredOutput
from model_repository.engine.tensorrt_llm.options import GuidedDecoding
from model_repository.engine.tensorrt_llm.processors import VocabularyFile
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, SamplingPlanner, embedding_bias
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


@pytest.mark.parametrize("sampling", [{"top_p": 0.0}, {"top_k": 1}])
def test_truncating_to_one_token_is_greedy(sampling: dict[str, Any]) -> None:
    asked = keywords(sampling={"temperature": 1.0, **sampling})
    assert asked["top_k"] == 1
    assert not asked.keys() & {"temperature", "top_p"}


def test_a_sampled_request_names_all_that_decides_it() -> None:
    asked = keywords(sampling=SAMPLED)
    assert {name: asked[name] for name in ("temperature", "top_p", "top_k", "seed")} == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 2**64 - 1,
    }
    truncated = keywords(sampling=SAMPLED | {"top_p": 0.9, "top_k": 40})
    assert (truncated["top_p"], truncated["top_k"]) == (0.9, 40)


def test_every_end_is_named() -> None:
    asked = plan(stop_token_ids=(20,), end_token_ids=(30,))
    assert asked.keywords["stop_token_ids"] == [OTHER_EOS, 20, 30]
    assert asked.ends == {EOS, OTHER_EOS, 20, 30}


def test_a_request_that_ignores_the_models_ends_keeps_its_own() -> None:
    asked = plan(ignore_eos=True, stop_token_ids=(20,), end_token_ids=(30,), min_tokens=3)
    assert (asked.keywords["ignore_eos"], asked.keywords["stop_token_ids"]) == (True, [20])
    assert asked.ends == {20}
    assert "min_tokens" not in asked.keywords  # it is about the model's own
    assert "stop_token_ids" not in keywords(ignore_eos=True)


def test_min_tokens_hold_back_every_end() -> None:
    asked = keywords(min_tokens=3, stop_token_ids=(20,))
    assert asked["min_tokens"] == 3
    [edit] = asked["logits_processor"]._edits
    assert (edit.ends, edit.request.params.min_tokens, edit.structured_output) == ({EOS, OTHER_EOS, 20}, 3, None)


def test_a_request_for_no_tokens_asks_for_one() -> None:
    assert keywords(max_tokens=0)["max_tokens"] == 1


@pytest.mark.parametrize(("num_logprobs", "asked"), [(0, 1), (1, 1), (5, 5)])
def test_tensorrt_llm_gets_at_least_one_log_probability(num_logprobs: int, asked: int) -> None:
    assert keywords(num_logprobs=num_logprobs)["logprobs"] == asked
    assert "return_context_logits" not in keywords(num_logprobs=num_logprobs)


def test_an_echo_with_log_probabilities_needs_the_prompts_logits() -> None:
    assert keywords(num_logprobs=0, echo=(b"a", b"b", b"c"))["return_context_logits"] is True
    assert "return_context_logits" not in keywords(echo=(b"a", b"b", b"c"))


def test_biases_are_a_vector_of_the_vocabulary() -> None:
    bias = embedding_bias(plan(sampling={"logit_bias": {7: 2.5, 8: -100.0, 9: -99.5}}).biases, VOCAB_SIZE)
    assert bias.dtype == np.float32 and bias.shape == (VOCAB_SIZE,)
    assert {int(index): float(bias[index]) for index in np.flatnonzero(bias)} == {7: 2.5, 8: -np.inf, 9: -99.5}
    assert not plan().biases


@pytest.mark.parametrize(
    "sampling",
    [{"repetition_penalty": 1.1}, {"presence_penalty": 0.5}, {"frequency_penalty": -0.5}, SAMPLED | {"min_p": 0.1}],
)
def test_penalties_and_min_p_are_our_own_step_and_biases_come_before_it(sampling: dict[str, Any]) -> None:
    asked = plan(sampling={"logit_bias": {7: 2.5, 8: -100.0}, **sampling})
    assert not asked.biases
    banned, shaping = asked.keywords["logits_processor"]._edits
    assert banned.banned == {8}
    assert shaping._bias == {7: 2.5}
    assert not asked.keywords.keys() & {"repetition_penalty", "presence_penalty", "frequency_penalty", "min_p"}


def test_mirostat_draws_by_itself() -> None:
    asked = plan(sampling=SAMPLED | {"mirostat": Mirostat(), "top_p": 0.5})
    assert asked.keywords["top_k"] == 1
    assert not asked.keywords.keys() & {"temperature", "top_p"}
    [shaping] = asked.keywords["logits_processor"]._edits
    assert shaping._mirostat.mirostat == Mirostat()


def test_mirostat_at_temperature_0_is_greedy() -> None:
    assert "logits_processor" not in keywords(sampling={"mirostat": Mirostat(), "min_p": 0.5})


@pytest.mark.parametrize("output_format", OutputFormat)
def test_a_structured_output_is_followed_by_our_own_masks(output_format: OutputFormat) -> None:
    asked = plan(structured_output=StructuredOutput(output_format, "x"), grammar_bytes=7)
    [edit] = asked.keywords["logits_processor"]._edits
    assert edit.request.grammar_bytes == 7
    assert (edit.structured_output, asked.native_grammar, asked.dead_end) == (
        StructuredOutput(output_format, "x"),
        None,
        UNUSED,
    )


@pytest.mark.parametrize(
    ("output_format", "native"),
    [
        (OutputFormat.JSON_OBJECT, {"json_object": True}),
        (OutputFormat.JSON_SCHEMA, {"json": "x"}),
        (OutputFormat.REGEX, {"regex": "x"}),
        (OutputFormat.GRAMMAR, {"grammar": "x"}),
        (OutputFormat.CHOICE, None),
        (OutputFormat.LARK, None),
    ],
)
def test_xgrammar_follows_the_formats_that_it_has(output_format: OutputFormat, native: dict[str, Any] | None) -> None:
    asked = plan(GuidedDecoding.XGRAMMAR, structured_output=StructuredOutput(output_format, "x"))
    assert asked.native_grammar == native
    assert ("logits_processor" in asked.keywords) == (native is None)


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
    assert [edit.structured_output for edit in asked.keywords["logits_processor"]._edits] == [regex]


def test_a_dead_end_is_a_token_that_the_request_does_not_name() -> None:
    regex = StructuredOutput(OutputFormat.REGEX, "x")
    assert plan(structured_output=regex, stop_token_ids=(UNUSED,)).dead_end == 5
    assert plan(structured_output=regex, sampling={"logit_bias": {UNUSED: 1.0}}).dead_end == 5
    assert plan().dead_end is None
