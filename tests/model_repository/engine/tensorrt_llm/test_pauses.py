"""Sequences that TensorRT-LLM pauses when the KV cache is full, and then draws a token of without our edits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorrt_llm

from model_repository.contract.request import Mirostat, OutputFormat, StructuredOutput
from model_repository.engine.runtime import StepOutput
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.errors import CannotContinue, Unsupported
from tests.model_repository.engine.tensorrt_llm.conftest import Tiny, has_ended, request
from tests.waiting import DEADLINE_S

PAUSING = [{"scheduler_policy": "max_utilization"}, {"scheduler_policy": "max_utilization", "stream_interval": "4"}]
if release_of(tensorrt_llm.__version__).has_kv_cache_manager_v2:
    PAUSING.append({"kv_cache_manager": "v2"})
PENALTIES = {"repetition_penalty": 3.0, "frequency_penalty": 1.0}


def regex(pattern: str) -> StructuredOutput:
    return StructuredOutput(OutputFormat.REGEX, pattern)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"sampling": PENALTIES},
    "log probabilities": {"sampling": PENALTIES, "num_logprobs": 2},
    "regular expression": {"structured_output": regex("([a-c][x-z]){80}")},
    "end": {"structured_output": regex("([a-c][x-z]){35}"), "ignore_eos": False},
    "bad words": {"bad_words": ("a", "b", "c", "d"), "sampling": {"presence_penalty": 1.0}},
}


@pytest.fixture(params=PAUSING, ids=lambda options: ",".join(options.values()))
def paused(start: Callable[..., Tiny], request: pytest.FixtureRequest) -> Tiny:
    """The runtime with a KV cache of 5 blocks, which two of the requests below overflow."""
    cache = json.dumps({"kv_cache_config": {"max_tokens": 5 * 32}})
    return start(backend="pytorch", llm_options=cache, **request.param)


def run_together(tiny: Tiny, requests: Mapping[str, dict[str, Any]]) -> dict[str, list[StepOutput]]:
    """Return the outputs of requests that are submitted at once."""
    numbers = {name: tiny.submit(**fields) for name, fields in requests.items()}
    names = {number: name for name, number in numbers.items()}
    asked = {name: request(**fields) for name, fields in requests.items()}
    outputs: dict[str, list[StepOutput]] = {name: [] for name in requests}
    deadline_s = time.monotonic() + DEADLINE_S
    while names:
        assert time.monotonic() < deadline_s, names
        for output in tiny.runtime.step() or ():
            name = names[output.sequence]  # no output comes after the last one
            outputs[name].append(output)
            if has_ended(outputs[name], asked[name]):
                tiny.runtime.free(output.sequence)
                del names[output.sequence]
    return outputs


def test_a_pause_does_not_change_an_answer(start: Callable[..., Tiny], paused: Tiny) -> None:
    kinds = [*KINDS, "plain", *KINDS]  # of two that run, the newer one is paused
    requests = {
        f"{index} {kind}": {"prompt_token_ids": tuple(range(10, 20 + index)), "max_tokens": 80, **KINDS[kind]}
        for index, kind in enumerate(kinds)
    }
    expected, found = run_together(start(backend="pytorch"), requests), run_together(paused, requests)
    differing = [
        name
        for name in requests
        if [(each.token_id, each.logprob, each.error) for each in found[name]]
        != [(each.token_id, each.logprob, each.error) for each in expected[name]]
    ]
    assert (differing, paused.runtime._llm._executor.num_pauses > 0) == ([], True)
    for name, fields in requests.items():
        assert max(output.num_cached_tokens for output in found[name]) < len(fields["prompt_token_ids"]), name


def test_an_end_of_all_tokens_is_still_told_from_a_pause(paused: Tiny) -> None:
    outputs = paused.run(structured_output=regex("ab{9}c"), bad_words=("bbbbb",))
    assert [output.token_id for output in outputs[:-1]] == paused.tokens(structured_output=regex("ab{4}"), max_tokens=5)
    assert isinstance(outputs[-1].error, CannotContinue)


def test_requests_that_cannot_go_on_after_a_pause_are_refused(paused: Tiny) -> None:
    with pytest.raises(Unsupported, match="a pause loses its estimate") as caught:
        paused.submit(sampling={"mirostat": Mirostat(), "temperature": 1.0})
    assert caught.value.field == "mirostat_target"
    with pytest.raises(Unsupported, match="beside edited logits: not with the option") as caught:
        paused.submit(sampling=PENALTIES, num_prompt_logprobs=0)
    assert caught.value.field == "prompt_logprobs"
    assert len(paused.tokens(num_prompt_logprobs=0)) == 8
