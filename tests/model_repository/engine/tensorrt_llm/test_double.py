"""The double of TensorRT-LLM accepts the recorded interface, and refuses all other and all uncertain arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm import LLM, SamplingParams, llmapi
from tensorrt_llm._contract import Recorded, contract
from tensorrt_llm._tensorrt_engine import LLM as EngineLLM
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, GuidedDecodingParams, KvCacheConfig, SchedulerConfig

from tests.model_repository.engine.tensorrt_llm.conftest import write_model

PROMPT = [10, 11, 12]
ENGINE, TORCH = "tensorrt_llm._tensorrt_engine.LLM", "tensorrt_llm.LLM"
ARGS = {ENGINE: "tensorrt_llm.llmapi.TrtLlmArgs", TORCH: "tensorrt_llm.llmapi.TorchLlmArgs"}
CLASSES = {
    "tensorrt_llm.SamplingParams": SamplingParams,
    "tensorrt_llm.llmapi.GuidedDecodingParams": GuidedDecodingParams,
    "tensorrt_llm.llmapi.KvCacheConfig": KvCacheConfig,
    "tensorrt_llm.llmapi.SchedulerConfig": SchedulerConfig,
}

type Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an LLM on a tiny model."""
    started: list[Any] = []

    def start(name: str, **keywords: Any) -> Any:
        folder = write_model(tmp_path / str(len(started)))
        model = str(folder / ("engine" if name == ENGINE else "checkpoint"))
        llm = (EngineLLM if name == ENGINE else LLM)(model=model, **{"skip_tokenizer_init": True} | keywords)
        started.append(llm)
        return llm

    yield start
    for llm in started:
        llm.shutdown()


def params(**keywords: Any) -> Any:
    return SamplingParams(**{"end_id": 1, "max_tokens": 4, "top_k": 1} | keywords)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_accepts_exactly_the_arguments_recorded_as_certain(name: str) -> None:
    recorded = contract()["callables"][f"{name}.__init__"]["params"]
    made = CLASSES[name]()
    assert {param["name"] for param in recorded if not param.get("uncertain")} <= set(made.__dict__)
    for param in recorded:
        if param.get("uncertain"):
            with pytest.raises(TypeError, match=param["name"]):
                CLASSES[name](**{param["name"]: param["default"]})
    with pytest.raises(TypeError, match="beams"):
        CLASSES[name](beams=1)


@pytest.mark.parametrize("name", ARGS)
def test_an_llm_refuses_uncertain_arguments_and_those_of_the_other_backend(name: str, start: Start) -> None:
    recorded = contract()["callables"][f"{ARGS[name]}.__init__"]["params"]
    uncertain = {param["name"] for param in recorded if param.get("uncertain")}
    other = set(contract()["callables"][f"{name}.__init__"].get("rejects_trt_only_kwargs", []))
    for keyword in sorted(uncertain | other | {"beams"}):
        with pytest.raises(ValueError, match=f"unexpected keyword argument {keyword!r}"):
            start(name, **{keyword: None})


def test_values_of_another_type_are_refused(start: Start) -> None:
    wrong: list[dict[str, Any]] = [{"max_batch_size": "8"}, {"enable_chunked_prefill": 1}, {"kv_cache_config": {}}]
    for keywords in wrong:
        with pytest.raises(TypeError):
            start(TORCH, **keywords)
    with pytest.raises(TypeError):
        KvCacheConfig(free_gpu_memory_fraction="0.5")
    with pytest.raises(TypeError):
        SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
    with pytest.raises(TypeError):
        params(stop_token_ids=["1"])
    with pytest.raises(TypeError):
        KvCacheConfig(True)  # keywords only


def test_values_that_are_not_recorded_are_refused(start: Start) -> None:
    with pytest.raises(ValueError, match="guided_decoding_backend"):
        start(TORCH, guided_decoding_backend="outlines")
    with pytest.raises(KeyError):
        CapacitySchedulerPolicy["FAIR"]
    assert not hasattr(llmapi, "BuildCacheConfig")  # exported, but of no recorded form


def test_generate_async_refuses_uncertain_arguments(start: Start) -> None:
    with pytest.raises(TypeError, match="trace_headers"):
        start(TORCH).generate_async(inputs=PROMPT, sampling_params=params(), trace_headers={})
    assert "trace_headers" in Recorded(f"{TORCH}.generate_async").refused
