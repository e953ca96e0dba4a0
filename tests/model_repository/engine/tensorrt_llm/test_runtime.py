"""The runtime against the double: the outputs of steps, on both backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorrt_llm
from msgspec.structs import replace
from tensorrt_llm import _executor, _llm
from tensorrt_llm._model import Model
from tensorrt_llm._sampler import logprob_entry

from model_repository.capabilities import Capability
from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.grammar_budget import MAX_SENDER_BYTES
from model_repository.engine.runtime import EngineConfig, StepOutput
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.engine.tensorrt_llm.result_reader import ResultReader
from model_repository.errors import (
    EngineFailed,
    InternalError,
    InvalidRequest,
    Overloaded,
    TooManyWaiting,
    UnknownAdapter,
    Unsupported,
)
from model_repository.runtimes import RUNTIMES
from tests.model_repository.engine.tensorrt_llm.conftest import (
    BYTE_TABLE,
    RUNTIME,
    VOCAB_SIZE,
    Tiny,
    request,
)
from tests.waiting import wait_until

REGEX = StructuredOutput(OutputFormat.REGEX, "(ab){3}")
LONG = tuple(range(3, 90))  # several blocks of the KV cache


def test_log_probabilities_are_of_the_raw_distribution(tiny: Tiny) -> None:
    outputs = tiny.run(num_logprobs=3, max_tokens=2, sampling={"repetition_penalty": 2.0})
    rows = Model(tiny.runtime._config.artifact_dir, {"vocab_size": VOCAB_SIZE}).start(None)
    logits = [rows.feed((10, 11, 12))[-1], rows.feed([outputs[0].token_id or 0])[-1]]
    for output, row in zip(outputs, logits, strict=True):
        expected = logprob_entry(row, 3, output.token_id)
        assert output.logprob is not None and output.token_id is not None and output.logprob.logprob is not None
        assert np.isclose(output.logprob.logprob, expected[output.token_id].logprob)
        best = [token_id for token_id, item in expected.items() if (item.rank or 0) <= 3]
        assert [token_id for token_id, _ in output.logprob.top] == best


def test_each_token_is_drawn_under_the_adapter(tiny: Tiny) -> None:
    """In CUDA graphs TensorRT-LLM 1.2 decodes without it."""
    folder = tiny.runtime._config.artifact_dir
    rows, token_ids, drawn = (
        Model(folder, {"vocab_size": VOCAB_SIZE}).start(folder / "adapters/polite"),
        [10, 11, 12],
        [],
    )
    for _ in range(8):
        token_ids = [int(rows.feed(token_ids)[-1].argmax())]
        drawn += token_ids
    assert tiny.tokens(lora_name="polite") == drawn


@pytest.mark.parametrize("asked", [{}, {"num_logprobs": 1}])
def test_a_stream_is_whole_though_it_is_updated_once_in_several_tokens(
    start: Callable[..., Tiny], asked: dict[str, Any]
) -> None:
    each, fourth = start(backend="pytorch"), start(backend="pytorch", stream_interval="4")
    assert fourth.run(max_tokens=10, **asked) == each.run(max_tokens=10, **asked)


def test_the_whole_prompt_is_scored_also_where_its_beginning_was_computed_before(tiny: Tiny) -> None:
    fields: dict[str, Any] = {"prompt_token_ids": LONG, "max_tokens": 0, "num_logprobs": 0, "echo": (b"",) * len(LONG)}
    plain = tiny.run(prompt_token_ids=LONG, max_tokens=1)
    [first], [second] = tiny.run(**fields), tiny.run(**fields)
    [own] = tiny.run(prompt_token_ids=LONG, max_tokens=1, num_prompt_logprobs=0)
    assert (own.prompt_logprobs, own.logprob) == (first.prompt_logprobs, None)
    assert plain[0].num_cached_tokens == 0
    assert len(second.prompt_logprobs) == len(LONG)
    assert first.prompt_logprobs == second.prompt_logprobs
    assert all(item.logprob is not None and item.logprob < 0 for item in second.prompt_logprobs[1:])


def test_kv_tokens_are_reused_among_requests_of_one_salt(tiny: Tiny) -> None:
    for salt, is_known in (("a", False), ("a", True), ("b", False), ("", False), ("b", True)):
        outputs = tiny.run(prompt_token_ids=LONG, max_tokens=1, cache_salt=salt)
        assert (outputs[0].num_cached_tokens > 0) == is_known, salt


def large(text: str, sender: str) -> dict[str, Any]:
    """Return the fields of a request with a grammar that takes half of the memory for one sender."""
    form = StructuredOutput(OutputFormat.REGEX, f"{text}b")
    return {"structured_output": form, "sender": sender, "grammar_bytes": MAX_SENDER_BYTES // 2}


def test_large_grammars_of_three_senders_are_served_side_by_side(start: Callable[..., Tiny]) -> None:
    """The workers counted them as one sender's, and the third ended with the client's mistake."""
    tiny = start()
    for number in range(3):
        tiny.submit(max_tokens=2, **large("acd"[number], f"sender {number}"))
    num_drawn = 0
    while num_drawn < 6:
        outputs = tiny.runtime.step() or ()
        assert all(output.error is None for output in outputs), outputs
        num_drawn += len(outputs)


def test_the_grammars_of_running_requests_are_within_the_memory_of_sender_and_model(tiny: Tiny) -> None:
    prepared = [tiny.runtime.prepare(request(max_tokens=240, **large(text, "hog"))) for text in "ac"]
    for number, each in enumerate(prepared):
        tiny.runtime.submit(100 + number, each.request, each)
    del prepared, each
    with pytest.raises(TooManyWaiting):
        tiny.runtime.prepare(request(**large("d", "hog")))
    others = [tiny.runtime.prepare(request(**large(text, "other"))) for text in "de"]
    with pytest.raises(Overloaded):
        tiny.runtime.prepare(request(**large("f", "third")))
    for number in (100, 101):
        tiny.runtime.free(number)
    tiny.wait_until_idle()
    assert tiny.runtime.prepare(request(**large("f", "hog"))) and others


def test_a_refused_request_is_not_queued(tiny: Tiny) -> None:
    with pytest.raises(UnknownAdapter):
        tiny.submit(lora_name="rude")
    assert not tiny.runtime.has_work


def test_log_probabilities_need_their_switches(start: Callable[..., Tiny]) -> None:
    off = start(logprobs="false", prompt_logprobs="false")
    with pytest.raises(Unsupported, match="option logprobs=false"):
        off.submit(num_logprobs=0)
    with pytest.raises(Unsupported, match="built to gather context logits"):
        start(prompt_logprobs="false").submit(num_logprobs=0, echo=(b"", b"", b""))
    with pytest.raises(Unsupported, match="built to gather context logits") as caught:
        start(prompt_logprobs="false").submit(num_prompt_logprobs=0)
    assert caught.value.field == "prompt_logprobs"
    start(logprobs="false").submit(num_prompt_logprobs=0)


def test_sequences_beyond_the_limit_wait_in_order(tiny: Tiny) -> None:
    numbers = [tiny.submit(max_tokens=240) for _ in range(4)]
    stats = tiny.runtime.stats()
    assert (stats.num_active, stats.num_waiting) == (2, 2)
    tiny.runtime.free(numbers[2])  # while it waits
    tiny.runtime.free(numbers[0])
    seen: set[int] = set()
    while numbers[3] not in seen:
        seen |= {output.sequence for output in tiny.runtime.step() or ()}
    assert seen <= {numbers[1], numbers[3]}


def test_the_urgent_pass_others_that_wait(tiny: Tiny) -> None:
    running = [tiny.submit(max_tokens=240) for _ in range(2)]
    patient, urgent = tiny.submit(priority=1), tiny.submit(priority=-1)
    tiny.runtime.free(running[0])
    seen: set[int] = set()
    while urgent not in seen:
        seen |= {output.sequence for output in tiny.runtime.step() or ()}
    assert patient not in seen


def test_the_queue_inside_tensorrt_llm_has_the_same_order_where_it_has_priorities(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_executor, "_STEP_S", 0.05)  # the first request must not end before the others come
    options = {"backend": "pytorch", "max_batch_size": "1"}
    tiny = Tiny(RUNTIME.TensorRtLlmRuntime(replace(config, options=options, max_sequences=3), BYTE_TABLE))
    try:
        first, patient, urgent = (tiny.submit(max_tokens=200, priority=priority) for priority in (0, 1, -1))
        tiny.runtime.free(first)
        seen: set[int] = set()
        while not (seen := seen | {output.sequence for output in tiny.runtime.step() or ()}):
            pass
    finally:
        tiny.runtime.close()
    assert seen == {urgent if release_of(tensorrt_llm.__version__).has_priority else patient}


def test_a_dead_worker_of_an_idle_model_is_noticed_without_a_request(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the next request showed it, or a minute of silence after that."""
    monkeypatch.setattr(_llm.TorchLLM, "_check_health", _llm._check_health, raising=False)  # release 1.2 has none
    tiny = start(backend="pytorch", iteration_stats="false")
    tiny.run()
    tiny.runtime._llm._executor._worker.kill()

    def failure() -> EngineFailed | None:
        try:
            tiny.runtime.stats()
        except EngineFailed as exc:
            return exc
        return None

    assert "must be loaded again" in str(wait_until(failure, "the death is noticed"))
    with pytest.raises(EngineFailed):
        tiny.submit()


SCORED: dict[str, Any] = {"num_logprobs": 0, "echo": (b"", b"", b"")}


def running(tiny: Tiny) -> set[int]:
    return {call.sequence for call in tiny.runtime._loop.busy_calls()}


@pytest.mark.engine_backend
@pytest.mark.parametrize("asked", ["num_logprobs", "num_prompt_logprobs"])
def test_an_engine_streams_log_probabilities_which_are_the_raw_ones_only_there(
    start: Callable[..., Tiny], asked: str
) -> None:
    tiny = start(backend="engine")
    number = tiny.submit(max_tokens=240, is_stream=False, **{asked: 0})
    wait_until(lambda: number in tiny.runtime._loop._results, "it runs")
    result = tiny.runtime._loop._results[number]
    tiny.runtime.free(number)
    tiny.wait_until_idle()
    assert not result.aborted()  # that would end TensorRT-LLM


@pytest.mark.engine_backend
def test_an_engine_keeps_logits_only_within_its_memory(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUNTIME, "MAX_LOGITS_BYTES", 200 * VOCAB_SIZE * 4)
    monkeypatch.setattr(_executor, "_STEP_S", 0.01)  # on a busy machine the first request must not end too soon
    tiny = start(backend="engine")
    with pytest.raises(
        InvalidRequest, match="201: with log probabilities this model has memory for 200 tokens"
    ) as caught:
        tiny.submit(max_tokens=201, num_logprobs=0)
    assert caught.value.field == "max_tokens"
    with pytest.raises(InvalidRequest):
        tiny.submit(max_tokens=198, **SCORED)
    with pytest.raises(InvalidRequest):
        tiny.submit(prompt_token_ids=(3,) * 201, num_prompt_logprobs=0)
    first, second, plain = (
        tiny.submit(max_tokens=150, **fields) for fields in ({"num_logprobs": 0}, {"num_logprobs": 0}, {})
    )
    assert running(tiny) == {first, plain}
    wait_until(lambda: first in tiny.runtime._loop._results, "it runs")  # else it would end at once
    tiny.runtime.free(first)  # it runs on, unread, with its memory
    assert running(tiny) == {first, plain}
    seen: set[int] = set()
    while second not in seen:
        seen |= {output.sequence for output in tiny.runtime.step() or ()}


def test_the_pytorch_backend_edits_no_logits_beside_a_scored_prompt(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="pytorch")
    edited: dict[str, Any] = {"max_tokens": 240, "sampling": {"repetition_penalty": 2.0}}
    first = tiny.submit(**edited)
    scored = tiny.submit(max_tokens=1, **SCORED)
    second = tiny.submit(**edited)
    assert running(tiny) == {first}
    plain = tiny.submit(max_tokens=240)
    assert running(tiny) == {first, plain}
    tiny.runtime.free(first)
    order: list[int] = []
    while second not in order:
        order += [output.sequence for output in tiny.runtime.step() or ()]
    assert order.index(scored) < order.index(second)


def test_the_silence_of_answers_that_come_in_one_piece_is_no_hang(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="pytorch")
    tiny.submit(max_tokens=240, **SCORED)
    assert tiny.runtime.step() is not None
    tiny.runtime.free(1)
    tiny.wait_until_idle()
    assert tiny.runtime.step() is None


@pytest.mark.engine_backend
def test_requests_that_run_on_unread_are_no_hang_to_those_that_wait(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="engine")
    unread = [tiny.submit(max_tokens=100, num_logprobs=0) for _ in range(2)]
    wait_until(lambda: len(tiny.runtime._loop._results) == len(unread), "they run")
    for number in unread:
        tiny.runtime.free(number)
    tiny.submit(max_tokens=1)
    steps: list[Any] = []
    while not (steps and steps[-1]):
        steps.append(tiny.runtime.step())
    assert () in steps or [] in steps


def test_a_step_that_waits_is_woken(tiny: Tiny) -> None:
    tiny.submit(max_tokens=1)
    while not tiny.runtime.step():
        pass
    for _ in range(3):
        tiny.runtime.wake()
    assert tiny.runtime.step() is None


@pytest.mark.engine_backend
def test_one_request_that_tensorrt_llm_refuses_leaves_the_others_alone(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="engine", chunked_prefill="false")
    other = tiny.submit(max_tokens=20)
    refused = tiny.submit(prompt_token_ids=LONG * 2, max_tokens=200)
    outputs: list[StepOutput] = []
    while len(outputs) < 21:
        outputs += tiny.runtime.step() or ()
    [error] = [output.error for output in outputs if output.sequence == refused]
    assert isinstance(error, InvalidRequest) and "max_seq_len" in error.text
    assert sum(output.sequence == other for output in outputs) == 20


def test_a_prompt_longer_than_a_step_is_the_clients_mistake_without_chunks(start: Callable[..., Tiny]) -> None:
    """TensorRT-LLM 1.3 refuses it with a RequestError, which counted as a failure of the engine."""
    tiny = start(backend="pytorch", chunked_prefill="false", max_num_tokens="64")
    [output] = tiny.run(prompt_token_ids=LONG, max_tokens=1)
    assert isinstance(output.error, InvalidRequest) and "max_num_tokens" in output.error.text
    assert len(tiny.tokens()) == 8


def test_a_result_that_cannot_be_read_fails_its_request_only(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ResultReader, result: Any) -> list[StepOutput]:
        raise KeyError("no such field")

    with monkeypatch.context() as broken:
        broken.setattr(ResultReader, "read", fail)
        [output] = tiny.run(max_tokens=240)
    assert isinstance(output.error, InternalError)
    tiny.wait_until_idle()
    assert len(tiny.tokens()) == 8


def test_closing_ends_its_threads(config: EngineConfig) -> None:
    pytorch = replace(config, options={"backend": "pytorch"})
    runtime = RUNTIME.TensorRtLlmRuntime(pytorch, BYTE_TABLE, environment={})
    runtime.submit(1, request(max_tokens=240))
    runtime.close()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"tensorrt-llm-requests", "tensorrt-llm-statistics", "tensorrt-llm-double"}
    assert not runtime.has_work


def test_a_value_that_sampling_params_refuse_fails_its_request_only(tiny: Tiny) -> None:
    [output] = tiny.run(sampling={"temperature": 1.0, "top_p": 2.0})
    assert isinstance(output.error, InvalidRequest) and "top_p" in output.error.text
    assert len(tiny.tokens()) == 8


def test_a_model_without_a_processor_reads_no_images(tiny: Tiny) -> None:
    with pytest.raises(Unsupported, match="reads no images"):
        tiny.runtime.prepare(request(images=(b"GIF89a",)))
    assert Capability.IMAGES not in RUNTIMES["tensorrt_llm"].capabilities_with({"backend": "engine"})


@pytest.mark.engine_backend
def test_one_failing_request_leaves_the_others_alone(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="engine")
    tiny.runtime._llm._args["enable_lora"] = False  # as if the engine had been built without
    [output] = tiny.run(lora_name="polite", max_tokens=1)
    assert isinstance(output.error, EngineFailed)
    assert len(tiny.tokens()) == 8
