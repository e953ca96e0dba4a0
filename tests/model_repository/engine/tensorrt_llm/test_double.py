"""The double itself: it takes what the contract records and refuses the rest, and behaves as recorded."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tensorrt_llm import LLM, SamplingParams, llmapi
from tensorrt_llm._contract import Recorded, contract
from tensorrt_llm._executor import EXIT_STATUS_OF_DEFECT
from tensorrt_llm._tensorrt_engine import LLM as EngineLLM
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, GuidedDecodingParams, KvCacheConfig, SchedulerConfig

from tests.model_repository.engine.tensorrt_llm.conftest import write_model
from tests.tensorrt_llm_artifact import DOUBLES

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
    """Start an LLM on a tiny model; `built` is what its engine was built with."""
    started: list[Any] = []

    def start(name: str, built: dict[str, Any] | None = None, **keywords: Any) -> Any:
        folder = write_model(tmp_path / str(len(started)), **built or {})
        model = str(folder / ("engine" if name == ENGINE else "checkpoint"))
        llm = (EngineLLM if name == ENGINE else LLM)(model=model, **{"skip_tokenizer_init": True} | keywords)
        started.append(llm)
        return llm

    yield start
    for llm in started:
        llm.shutdown()


class Recorder:
    """A processor that forces token 7; its copies share what they record."""

    by_number: ClassVar[dict[int, list[tuple[int, int | None]]]] = {}  # how many tokens there were, and the stream

    def __init__(self) -> None:
        self.number = len(self.by_number)
        self.by_number[self.number] = []

    def __call__(self, req_id: int, logits: Any, token_ids: Any, stream_ptr: int | None, client_id: int | None) -> None:
        self.calls.append((len(token_ids[0]), stream_ptr))
        logits[..., 7] = 1000.0

    @property
    def calls(self) -> list[tuple[int, int | None]]:
        return self.by_number[self.number]


def params(**keywords: Any) -> Any:
    return SamplingParams(**{"end_id": 1, "max_tokens": 4, "top_k": 1} | keywords)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_takes_exactly_what_is_recorded_as_certain(name: str) -> None:
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
def test_an_llm_refuses_what_is_uncertain_or_of_the_other_backend(name: str, start: Start) -> None:
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


def test_values_that_are_none_of_the_recorded_are_refused(start: Start) -> None:
    with pytest.raises(ValueError, match="guided_decoding_backend"):
        start(TORCH, guided_decoding_backend="outlines")
    with pytest.raises(KeyError):
        CapacitySchedulerPolicy["FAIR"]
    assert not hasattr(llmapi, "BuildCacheConfig")  # exported, but of no recorded form


@pytest.mark.parametrize(
    "keywords",
    [
        {"top_p": 1.5},
        {"top_k": -1},
        {"temperature": -0.1},
        {"n": 2, "best_of": 1},
        {"n": 2},  # greedy
        {"truncate_prompt_tokens": 0},
    ],
)
def test_sampling_params_keep_their_rules(keywords: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="require"):
        params(**keywords)


def test_one_guide_at_most() -> None:
    with pytest.raises(ValueError, match="only one"):
        GuidedDecodingParams(regex="a", json="{}")


def test_an_adapter_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        LoRARequest("polite", 1, str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("name", "keywords", "options", "message"),
    [
        (ENGINE, {"logprobs": 1}, {}, "gather_generation_logits"),
        (ENGINE, {"return_context_logits": True}, {"built": {"gather_context_logits": False}}, "gather_context_logits"),
        (ENGINE, {"max_tokens": 300}, {}, "max_seq_len"),
        (ENGINE, {"logits_processor": [print]}, {}, "one logits processor"),
        (ENGINE, {"guided_decoding": GuidedDecodingParams(structural_tag="x")}, {}, "structural_tag"),
        (TORCH, {"end_id": None}, {}, "end_id"),
        (TORCH, {}, {"max_num_tokens": 2}, "max_num_tokens"),
        (TORCH, {"n": 4, "temperature": 1.0, "top_k": 0}, {"max_batch_size": 2}, "best_of"),
    ],
)
def test_what_a_request_needs_is_asked_for_at_once(
    start: Start, name: str, keywords: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    llm = start(name, **options)
    with pytest.raises(ValueError, match=message):
        llm.generate_async(inputs=PROMPT, sampling_params=params(**keywords))


@pytest.mark.parametrize("name", ARGS)
def test_stop_texts_need_the_tokenizer(start: Start, name: str) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        start(name).generate_async(inputs=PROMPT, sampling_params=params(stop=["x"]))


@pytest.mark.parametrize("name", ARGS)
def test_some_mistakes_show_only_on_the_way(start: Start, name: str, tmp_path: Path) -> None:
    llm = start(name)
    for keywords, sampling in (
        ({"lora_request": LoRARequest("polite", 1, str(tmp_path))}, params()),
        ({}, params(guided_decoding=GuidedDecodingParams(regex="a"))),
    ):
        with pytest.raises(llmapi.RequestError):
            llm.generate_async(inputs=PROMPT, sampling_params=sampling, **keywords).result()


@pytest.mark.parametrize("name", ARGS)
async def test_a_stream_yields_the_same_object_with_all_tokens_so_far(start: Start, name: str) -> None:
    result = start(name).generate_async(inputs=PROMPT, sampling_params=params(ignore_eos=True), streaming=True)
    lengths = []
    async for update in result:
        assert update is result
        lengths.append((len(update.outputs[0].token_ids), update.outputs[0].finish_reason))
    assert lengths == [(1, None), (2, None), (3, None), (4, "length")]


async def test_a_step_updates_one_sequence_and_the_ends_are_told_at_the_end(start: Start) -> None:
    sampling = params(n=2, temperature=1.0, top_k=0, top_p=1.0, max_tokens=3, ignore_eos=True, seed=4)
    result = start(TORCH).generate_async(inputs=PROMPT, sampling_params=sampling, streaming=True)
    seen = []
    async for update in result:
        seen.append([len(output.token_ids) for output in update.outputs])
        stale = [len(output.token_ids_diff) for output in update.outputs if output.token_ids]
        assert set(stale) == {1}  # also of the one that this step has not updated
        reasons = {output.finish_reason for output in update.outputs}
        assert reasons == ({"length"} if update.finished else {None})
    assert [sum(counts) for counts in seen] == [1, 2, 3, 4, 5, 6]


def test_a_result_made_without_an_event_loop_cannot_be_awaited(start: Start) -> None:
    result = start(TORCH).generate_async(inputs=PROMPT, sampling_params=params())
    with pytest.raises(RuntimeError, match="cannot be awaited"):
        asyncio.run(result.aresult())
    assert result.result().finished


async def test_an_aborted_request_is_cancelled(start: Start) -> None:
    result = start(TORCH).generate_async(
        inputs=PROMPT, sampling_params=params(max_tokens=200, ignore_eos=True), streaming=True
    )
    async for update in result:
        if not update.aborted():
            update.abort()
    assert (result.outputs[0].finish_reason, result.aborted()) == ("cancelled", True)


def test_a_temperature_alone_is_greedy_on_an_engine(start: Start) -> None:
    llm = start(ENGINE)
    drawn = [
        llm.generate_async(inputs=PROMPT, sampling_params=SamplingParams(end_id=1, temperature=2.0, seed=seed))
        for seed in range(3)
    ]
    assert len({tuple(result.result().outputs[0].token_ids) for result in drawn}) == 1


@pytest.mark.parametrize("name", ARGS)
def test_processors_of_a_request_and_of_all_edit_the_logits(start: Start, name: str) -> None:
    def force_all(req_ids: Any, logits: Any, token_ids: Any, stream_ptr: int | None, client_ids: Any) -> None:
        assert [len(req_ids), len(logits), len(token_ids), len(client_ids)] == [1, 1, 1, 1]
        logits[0][..., 8] = 2000.0

    llm = start(name, batched_logits_processor=force_all)
    force = Recorder()
    for keywords, token_id in ((params(logits_processor=force), 7), (params(apply_batched_logits_processor=True), 8)):
        assert (
            llm.generate_async(inputs=PROMPT, sampling_params=keywords).result().outputs[0].token_ids == [token_id] * 4
        )
    assert {stream_ptr is None for _, stream_ptr in force.calls} == {name == TORCH}


def test_a_processor_must_stand_being_pickled(start: Start) -> None:
    asked = params(logits_processor=lambda *call: None)
    with pytest.raises(AttributeError, match="pickle"):
        start(TORCH).generate_async(inputs=PROMPT, sampling_params=asked).result()


@pytest.mark.parametrize(
    ("name", "keywords", "num_told"),
    [
        (ENGINE, {"enable_chunked_prefill": True, "max_num_tokens": 2}, [0, 1, 2, 3]),
        (TORCH, {"disable_overlap_scheduler": True}, [0, 1, 2, 3]),
        (TORCH, {}, [0, 0, 1, 2]),
        (
            TORCH,
            {"disable_overlap_scheduler": True, "enable_chunked_prefill": True, "max_num_tokens": 2},
            [0, 0, 1, 2, 3],
        ),
    ],
)
def test_processors_are_called_per_chunk_and_told_late_on_the_pytorch_backend(
    start: Start, name: str, keywords: dict[str, Any], num_told: list[int]
) -> None:
    recorder = Recorder()
    start(name, **keywords).generate_async(inputs=PROMPT, sampling_params=params(logits_processor=recorder)).result()
    assert [num_tokens - len(PROMPT) for num_tokens, _ in recorder.calls] == num_told


def test_what_the_double_does_not_do_it_refuses(start: Start) -> None:
    with pytest.raises(NotImplementedError, match="no_repeat_ngram_size"):
        start(TORCH).generate_async(inputs=PROMPT, sampling_params=params(no_repeat_ngram_size=2))


def test_generate_async_refuses_what_is_uncertain(start: Start) -> None:
    with pytest.raises(TypeError, match="trace_headers"):
        start(TORCH).generate_async(inputs=PROMPT, sampling_params=params(), trace_headers={})
    assert "trace_headers" in Recorded(f"{TORCH}.generate_async").refused


def test_after_a_shutdown_nothing_is_taken(start: Start) -> None:
    llm = start(TORCH)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(RuntimeError, match="shutting down"):
        llm.generate_async(inputs=PROMPT, sampling_params=params())
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(llm)


def test_to_abort_a_stream_with_log_probabilities_kills_an_engines_process(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from tensorrt_llm import SamplingParams
from tensorrt_llm._tensorrt_engine import LLM

async def main():
    llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, gather_generation_logits=True)
    params = SamplingParams(end_id=1, max_tokens=100, ignore_eos=True, logprobs=1)
    async for result in llm.generate_async([5], params, streaming=True):
        result.abort()

asyncio.run(main())
"""
    model = write_model(tmp_path / "model") / "engine"
    done = subprocess.run([sys.executable, "-c", program, str(model)], env={"PYTHONPATH": str(DOUBLES)}, timeout=60)
    assert done.returncode == EXIT_STATUS_OF_DEFECT
