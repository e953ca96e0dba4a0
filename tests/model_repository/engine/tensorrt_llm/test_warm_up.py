"""The requests before a model is ready, by options and against the double."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tensorrt_llm import _executor, _sampler
from tensorrt_llm.llmapi import RequestError

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.tensorrt_llm import processors
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from model_repository.engine.tensorrt_llm.warm_up import warm_up_requests
from model_repository.errors import EngineFailed
from tests.model_repository.engine.tensorrt_llm.conftest import Tiny

SAMPLED: dict[str, Any] = {"sampling": {"temperature": 1.0, "top_p": 0.9}, "max_tokens": 1}
FORMED: dict[str, Any] = {"structured_output": StructuredOutput(OutputFormat.REGEX, "a+"), "max_tokens": 1}


def test_no_client_has_the_first_request_of_its_kind(start: Callable[..., Tiny]) -> None:
    """The first sampled request waited for a compiler, minutes perhaps, and the engine was taken for a dead one."""
    tiny = start(backend="pytorch", max_num_tokens="64")
    executor = tiny.runtime._llm._executor
    before = executor.num_compilations, processors._compiler.cache_info().misses
    for fields in (SAMPLED, SAMPLED | {"num_logprobs": 1}, FORMED):
        assert tiny.run(**fields)[-1].error is None
    assert (executor.num_compilations, processors._compiler.cache_info().misses) == before == (1, before[1])
    assert len(max((prompt for _, prompt, _ in executor._blocks), key=len)) == 65  # two chunks


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        ({}, "greedy, sampled, log probabilities, structured output and penalty"),
        ({"logprobs": "false", "overlap_scheduler": "true"}, "greedy, sampled"),
        (
            {"overlap_scheduler": "true", "guided_decoding": "native_llguidance"},
            "greedy, sampled, log probabilities, structured output",
        ),
        (
            {"llm_options": '{"speculative_config": {"decoding_type": "NGram"}}', "max_num_tokens": "99"},
            "greedy, sampled, log probabilities",
        ),
        (
            {"max_num_tokens": "98"},
            "greedy, sampled, log probabilities, structured output and penalty, prompt of two chunks",
        ),
        (
            {"max_num_tokens": "98", "chunked_prefill": "false"},
            "greedy, sampled, log probabilities, structured output and penalty",
        ),
    ],
)
def test_each_kind_that_the_options_allow_is_served_before_the_model_is_ready(
    texts: dict[str, str], kinds: str
) -> None:
    found = list(warm_up_requests(TensorRtLlmOptions.of({"backend": "pytorch", **texts}), 1, context_window=100))
    assert ", ".join(each.kind for each in found) == kinds
    assert all(len(each.request.prompt_token_ids) + each.request.max_tokens <= 100 for each in found)


def fail(*arguments: object) -> Any:
    raise RequestError("no kernel image is available")


def test_a_model_that_cannot_sample_does_not_load(start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sampler.Sampler, "_sample", fail)
    with pytest.raises(EngineFailed, match=r"warm-up \(sampled\): TensorRT-LLM failed on this request"):
        start(backend="pytorch")
    assert "tensorrt-llm-requests" not in {thread.name for thread in threading.enumerate()}


def test_a_kind_of_request_that_alone_fails_is_in_the_log(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_executor, "logprob_entry", fail)
    tiny = start(backend="pytorch")
    assert len(tiny.tokens()) == 8
    warnings = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert warnings == ["warm-up (log probabilities): TensorRT-LLM failed on this request; such requests will fail"]
    assert "warm-up (structured output and penalty): a token after" in caplog.text
