"""The real llama.cpp on a tiny model of random weights."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import (
    EngineRequest,
    Mirostat,
    OutputFormat,
    Params,
    SamplingParams,
    StructuredOutput,
)
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig, Prepared, StepOutput
from model_repository.engine.token_constraint import AllowedTokenIds
from model_repository.errors import CannotContinue, EngineFailed, InvalidRequest, UnknownAdapter
from model_repository.runtimes import NGRAM
from model_repository.system.linked_file import LinkedFile
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.engine_requests import changed
from tests.model_repository.engine.tiny_adapter import write_adapter
from tests.waiting import DEADLINE_S, wait_until

EOS = 261  # <|im_end|> of the tiny checkpoint
GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple(range(40, 140))
FEW = {"logit_bias": dict.fromkeys((5, 6, 7), 30.0)}  # tokens: a text repeats itself, but not only
NUM_TOKENS = 24
UNUSED = itertools.count(100)  # numbers of sequences


@pytest.fixture(scope="module")
def config(tiny_artifact: Path) -> EngineConfig:
    """A built artifact, served with three slots and two adapters."""
    for seed, name in enumerate(("a", "b")):
        write_adapter(tiny_artifact / f"{name}.gguf", seed)
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=tiny_artifact,
        context_window=CONFIG["max_position_embeddings"],
        eos_token_ids=frozenset([EOS]),
        max_sequences=3,
        num_threads=1,
        adapters={"a": "a.gguf", "b": "b.gguf"},
    )


type Tokens = dict[int, list[int | None]]  # by sequence
type Start = Callable[..., LlamaCppRuntime]


@pytest.fixture
def start(config: EngineConfig) -> Iterator[Start]:
    """Start runtimes with these changes of the configuration; all are closed at the end."""
    with contextlib.ExitStack() as started:

        def start(**changes: Any) -> LlamaCppRuntime:
            runtime = LlamaCppRuntime(replace(config, **changes), load_byte_table(config.artifact_dir / FILE_NAME))
            started.callback(runtime.close)
            return runtime

        yield start


@pytest.fixture
def runtime(start: Start) -> LlamaCppRuntime:
    """A fresh context: nothing to reuse in it."""
    return start()


@pytest.fixture
def contexts(start: Start) -> LlamaCppRuntime:
    """Two contexts: one of a slot, one of two. With a KV cache in f32, so that only a wrong one makes a difference."""
    return start(num_threads=2, precision="f32")


def request(prompt: Sequence[int] = PROMPT, **sampling: Any) -> EngineRequest:
    params = Params(sampling=msgspec.structs.replace(GREEDY, **sampling))
    return EngineRequest(prompt_token_ids=tuple(prompt), max_tokens=NUM_TOKENS, params=params)


def complete(
    runtime: LlamaCppRuntime, requests: Mapping[int, EngineRequest], num_tokens: int = NUM_TOKENS
) -> tuple[Tokens, dict[int, int]]:
    """Run requests together; return the tokens and the number of reused tokens of each."""
    tokens: Tokens = {sequence: [] for sequence in requests}
    num_cached: dict[int, int] = {}
    for sequence, item in requests.items():
        runtime.submit(sequence, item)
    while runtime.has_work:
        step(runtime, tokens, num_cached, num_tokens)
    return tokens, num_cached


def step(
    runtime: LlamaCppRuntime,
    tokens: Tokens,
    num_cached: dict[int, int] | None = None,
    num_tokens: int = NUM_TOKENS,
) -> None:
    """Add the tokens of one step, and free the sequences that have enough."""
    for output in runtime.step():
        assert output.token_id is not None
        tokens[output.sequence].append(output.token_id)
        if num_cached is not None:
            num_cached[output.sequence] = output.num_cached_tokens
        if len(tokens[output.sequence]) == num_tokens:
            runtime.free(output.sequence)


def tokens_of(runtime: LlamaCppRuntime, item: EngineRequest, num_tokens: int = NUM_TOKENS) -> list[int]:
    number = next(UNUSED)  # a context may still compute an earlier, freed sequence
    return [token_id for token_id in complete(runtime, {number: item}, num_tokens)[0][number] if token_id is not None]


def test_the_context_window_can_be_filled_to_the_last_token(runtime: LlamaCppRuntime, config: EngineConfig) -> None:
    prompt = [index % 250 for index in range(config.context_window - 3)]
    requests = {number: request([number, *prompt[1:]]) for number in (1, 2, 3)}
    assert all(len(tokens) == 3 for tokens in complete(runtime, requests, num_tokens=3)[0].values())


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("prompt_token_ids", {"prompt_token_ids": (5, 288)}),
    ("prompt_token_ids", {"prompt_token_ids": (5, -1)}),
    ("prompt_token_ids", {"prompt_token_ids": ()}),
    ("stop_token_ids", {"stop_token_ids": (5, 288)}),
    ("end_token_ids", {"end_token_ids": (288,)}),
    ("allowed_token_ids", {"allowed_token_ids": (5, 288)}),
    ("logit_bias_token_ids", {"sampling": SamplingParams(logit_bias={288: 1.0})}),
    ("lora_name", {"lora_name": "c"}),
    ("guided_decoding_guide", {"grammar": "start: /(/"}),
]


@pytest.mark.parametrize(("name", "fields"), REFUSED)
def test_a_request_that_the_model_cannot_serve_does_not_touch_the_others(
    runtime: LlamaCppRuntime, name: str, fields: dict[str, Any]
) -> None:
    """llama.cpp refuses the whole batch for a token that it does not know, so everybody's request failed."""
    expected = tokens_of(runtime, request())
    runtime.submit(1, request())
    for accept in (runtime.prepare, lambda refused: runtime.submit(2, refused)):
        with pytest.raises(InvalidRequest) as caught:
            accept(changed(request(), **fields))
        assert caught.value.field == name
    assert [output.sequence for output in runtime.step()] == [1]
    runtime.free(1)
    assert tokens_of(runtime, request()) == expected


def test_a_model_or_adapter_that_does_not_load_is_named(config: EngineConfig, start: Start, tmp_path: Path) -> None:
    for name in ("model.gguf", "bad.gguf"):
        (tmp_path / name).write_bytes(b"not a model")
    with pytest.raises(EngineFailed, match=r"model\.gguf: llama\.cpp does not load it"):
        LlamaCppRuntime(replace(config, artifact_dir=tmp_path), [])
    with pytest.raises(EngineFailed, match=r"bad\.gguf: llama\.cpp does not load it"):
        start(adapters={"bad": str(tmp_path / "bad.gguf")})


def test_a_file_that_is_changed_under_a_running_model_is_named(
    config: EngineConfig, start: Start, tmp_path: Path
) -> None:
    """The weights are read from the disk as they are needed: clients got other answers, or the process was killed."""
    folder = shutil.copytree(config.artifact_dir, tmp_path / "artifact")
    linked = {"model.gguf": LinkedFile.of(folder / "model.gguf")}
    runtime = start(artifact_dir=folder, linked_files=linked)
    runtime.stats()
    (folder / "model.gguf").touch()
    with pytest.raises(EngineFailed, match=r"model\.gguf: changed since the model was built"):
        runtime.stats()
    shutil.rmtree(folder)  # which changes no file that is open
    runtime.stats()


# --- adapters --------------------------------------------------------------------------------------------------------


def test_an_unloaded_adapter_is_unknown_and_its_sequence_goes_on(contexts: LlamaCppRuntime) -> None:
    adapted = changed(request(), lora_name="a")
    alone = tokens_of(contexts, adapted)
    contexts.submit(1, adapted)
    tokens: Tokens = {1: []}
    step(contexts, tokens)
    contexts.unload_adapter("a")
    while contexts.has_work:
        step(contexts, tokens)
    assert tokens[1] == alone
    with pytest.raises(UnknownAdapter, match=r"'a': expected one of \['b'\]"):
        contexts.submit(4, adapted)


def test_memory_that_llama_cpp_does_not_give_back_is_counted_reused_and_bounded(start: Start, tmp_path: Path) -> None:
    root = AdapterRoot(folder=tmp_path, ensemble="tiny", runtime="llama_cpp", base="", max_adapters=2, max_rank=8)
    runtime = start(adapter_root=root)
    built_in_bytes = runtime.stats().adapter_bytes
    adapters = [Adapter.of_artifact(write_adapter(tmp_path / f"{seed}.gguf", seed)) for seed in range(2, 5)]
    for adapter in (adapters[0], adapters[0], adapters[1]):
        runtime.load_adapter("c", adapter)
        runtime.unload_adapter("c")
    assert runtime.stats().adapter_bytes == built_in_bytes + adapters[0].num_bytes + adapters[1].num_bytes
    with pytest.raises(InvalidRequest, match="2 were loaded since the model was"):
        runtime.load_adapter("c", adapters[2])
    runtime.load_adapter("c", adapters[0])


def test_a_file_that_is_no_adapter_of_the_model_is_refused(runtime: LlamaCppRuntime, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF, but not really")
    before = runtime.stats()
    with pytest.raises(InvalidRequest, match=r"'teams/bad': llama\.cpp does not load it") as refused:
        bad = dataclasses.replace(Adapter.of_artifact(tmp_path / "bad.gguf"), source="teams/bad")
        runtime.load_adapter("bad", bad)
    assert (refused.value.field, runtime.stats()) == ("source", before)


# --- constraints -----------------------------------------------------------------------------------------------------


def test_a_compiled_grammar_counts_the_memory_that_its_request_names(runtime: LlamaCppRuntime) -> None:
    output = StructuredOutput(OutputFormat.REGEX, "a+")
    assert runtime.prepare(changed(request(), structured_output=output, grammar_bytes=1000)).constraint is not None
    assert runtime._constraints.num_bytes == 1000


# --- sampling --------------------------------------------------------------------------------------------------------


def test_seeds_make_a_difference_in_all_their_bits(runtime: LlamaCppRuntime) -> None:
    seeds = (0, 1, 2**32, 2**32 + 1, 2**64 - 1)
    drawn = {tuple(tokens_of(runtime, request(temperature=1.0, seed=seed))) for seed in seeds}
    assert len(drawn) == len(seeds)


@pytest.mark.parametrize("speculative", [None, NGRAM])
def test_several_threads_draw_the_tokens_that_one_draws(
    start: Start, monkeypatch: pytest.MonkeyPatch, speculative: str | None
) -> None:
    requests = {number: request(PROMPT[number:], temperature=1.0, seed=number, **FEW) for number in range(3)}
    changes = {"num_threads": 2, "options": {"contexts": "1"}, "speculative": speculative}
    expected = complete(start(**changes), requests)
    monkeypatch.setattr("model_repository.engine.llama_cpp.runtime.MIN_LOGITS_OF_THREADS", 0)
    assert complete(start(**changes), requests) == expected


# --- speculation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        (FEW, {"num_logprobs": 3}),
        ({"temperature": 1.0, "seed": 3, **FEW}, {"num_logprobs": 3}),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.95, "min_p": 0.01, "seed": 5, **FEW}, {}),
        ({"temperature": 0.7, "frequency_penalty": 0.01, "repetition_penalty": 1.05, "seed": 1, **FEW}, {}),
        ({"temperature": 1.0, "mirostat": Mirostat(target=1.0), **FEW}, {}),
        ({"temperature": 1.0, "logit_bias": {EOS: 60.0, 5: 30.0, 6: 30.0}}, {"min_tokens": 90}),
        ({"temperature": 1.0}, {"structured_output": StructuredOutput(OutputFormat.REGEX, "(a|b|cd){100}")}),
        ({"temperature": 1.0}, {"allowed_token_ids": (70, 71, 72), "bad_words": ("EEE", "DFD")}),
    ],
    ids=["greedy", "seed", "truncation", "penalties", "mirostat", "min_tokens", "regex", "bad words"],
)
def test_drafts_change_neither_tokens_nor_draws(start: Start, sampling: Any, fields: Any) -> None:
    item = changed(request(**sampling), max_tokens=100, **fields)
    outputs: list[list[StepOutput]] = []
    for speculative in (None, NGRAM):
        runtime = start(precision="f32", speculative=speculative)
        runtime.submit(1, runtime.prepare(item).request, runtime.prepare(item))
        outputs.append([])
        while len(outputs[-1]) < 100:
            outputs[-1] += runtime.step()
        runtime.free(1)
    plain, drafted = outputs
    assert [each.token_id for each in drafted] == [each.token_id for each in plain]
    for each, other in zip(plain, drafted, strict=True):
        if each.logprob is not None and other.logprob is not None:
            assert other.logprob.logprob == pytest.approx(each.logprob.logprob, abs=0.01)  # weights in f16
            assert [token_id for token_id, _ in other.logprob.top] == [token_id for token_id, _ in each.logprob.top]
    assert runtime.stats().num_accepted_tokens > 0


# --- masks -----------------------------------------------------------------------------------------------------------


class StuckConstraint(AllowedTokenIds):
    """Computes one of its masks only when it is released."""

    def __init__(self, num_quick: int) -> None:
        super().__init__(range(40, 60), CONFIG["vocab_size"], None)
        self.num_quick = num_quick
        self.is_stuck, self.is_released = threading.Event(), threading.Event()

    def allowed(self) -> NDArray[np.bool_]:
        self.num_quick -= 1
        if self.num_quick == -1:
            self.is_stuck.set()
            assert self.is_released.wait(DEADLINE_S)
        return super().allowed()


@pytest.mark.parametrize("fields", [{}, {"num_threads": 2}, {"speculative": NGRAM}], ids=["one", "two", "drafts"])
def test_other_sequences_go_on_while_one_waits_for_its_mask(start: Start, fields: dict[str, Any]) -> None:
    """A step waited for the slowest mask of all sequences."""
    runtime, constraint = start(precision="f32", **fields), StuckConstraint(3)
    expected = tokens_of(runtime, changed(request(), allowed_token_ids=tuple(range(40, 60))))
    tokens: Tokens = {1: [], 2: []}
    runtime.submit(1, request(), Prepared(request(), constraint))
    while not constraint.is_stuck.is_set():
        step(runtime, tokens)
    runtime.submit(2, request(PROMPT[2:]))
    while len(tokens[2]) < NUM_TOKENS:
        step(runtime, tokens)
    assert tokens[1] == expected[:3]
    assert (runtime.has_work, runtime.step()) == (True, [])  # it neither hangs nor fails
    constraint.is_released.set()
    while runtime.has_work:
        step(runtime, tokens)
    assert tokens[1] == expected


def test_a_message_is_read_while_all_sequences_wait_for_their_masks(
    runtime: LlamaCppRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_repository.engine.llama_cpp.runtime._MAX_IDLE_S", DEADLINE_S)
    constraint = StuckConstraint(1)
    runtime.submit(1, request(), Prepared(request(), constraint))
    assert len(runtime.step()) == 1
    waiting = threading.Thread(target=runtime.step)
    waiting.start()
    wait_until(lambda: runtime._is_waiting, "the step waits")
    runtime.wake()
    waiting.join(DEADLINE_S / 2)
    assert not waiting.is_alive()
    runtime.free(1)
    assert not runtime.has_work
    constraint.is_released.set()


def test_the_work_of_masks_ends_a_completion_at_the_same_token_alone_and_beside_others(
    contexts: LlamaCppRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_repository.engine.constraint.MAX_WORK", 20_000)
    ambiguous = StructuredOutput(OutputFormat.GRAMMAR, "root ::= s\ns ::= s s | [a-z]")
    item = changed(request(), structured_output=ambiguous, max_tokens=100)
    ends: list[list[int | None]] = []
    for others in (0, 2):
        tokens: list[int | None] = []
        for number in (1, 2, 3)[: others + 1]:
            contexts.submit(number, item if number == 1 else request(PROMPT[number:]))
        while 1 in contexts._sequences:
            for output in contexts.step():
                if output.sequence == 1 and output.error is not None:
                    assert isinstance(output.error, CannotContinue)
                    contexts.free(1)
                elif output.sequence == 1:
                    tokens.append(output.token_id)
        for number in (2, 3):
            contexts.free(number)
        ends.append(tokens)
    assert ends[0] == ends[1]
    assert 8 <= len(ends[0]) < 100


# --- contexts --------------------------------------------------------------------------------------------------------


def test_a_small_model_has_a_context_for_each_thread_unless_set_otherwise_and_a_large_one_has_one(
    config: EngineConfig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_threads, options, expected in ((1, {}, 1), (2, {}, 2), (8, {}, 3), (2, {"contexts": "1"}, 1)):
        runtime = start(num_threads=num_threads, options=options)
        assert len(runtime._contexts) == expected
        assert runtime.stats().max_kv_tokens == config.context_window * config.max_sequences  # in all contexts
    assert len(start(num_threads=2, gpu_layers=1)._contexts) == 1  # a device computes one step at a time
    monkeypatch.setattr("model_repository.engine.llama_cpp.context_count.MAX_CACHED_WEIGHTS_BYTES", 1000)
    assert len(start(num_threads=2)._contexts) == 1


@pytest.mark.parametrize("value", ["0", "4", "-1", "two", ""])
def test_a_number_of_contexts_that_cannot_be_is_refused(start: Start, value: str) -> None:
    with pytest.raises(EngineFailed, match=f"option contexts={value}: expected a whole number from 1 to 3"):
        start(options={"contexts": value})


def test_the_urgent_pass_others_that_wait(contexts: LlamaCppRuntime) -> None:
    runtime = contexts
    for number, priority in enumerate((0, 0, 0, 1, 0, -1)):
        runtime.submit(number, changed(request(PROMPT[number:]), priority=priority))
        runtime.step()
    scheduled_s: dict[int, float] = {}
    while runtime.has_work:
        for output in runtime.step():
            assert output.scheduled_s is not None
            scheduled_s[output.sequence] = output.scheduled_s
            runtime.free(output.sequence)
    assert scheduled_s[5] < scheduled_s[4] < scheduled_s[3]


def test_contexts_are_filled_evenly(contexts: LlamaCppRuntime) -> None:
    for number in range(1, 6):
        contexts.submit(number, request(PROMPT[number:]))
    while contexts.stats().num_active < 3:
        contexts.step()
    assert [context.scheduler.num_running for context in contexts._contexts] == [1, 2]
    assert contexts.stats().num_waiting == 2
    contexts.free(5)
    assert contexts.stats().num_waiting == 1


class Broken:
    """A context of llama.cpp that computes no more."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, batch: Any) -> None:
        raise RuntimeError("out of something")


def test_a_failing_context_ends_all_sequences_and_the_contexts_continue(
    contexts: LlamaCppRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens_of(contexts, request())
    for context in contexts._contexts:
        monkeypatch.setattr(context, "llama_context", Broken(context.llama_context))
    for number in (1, 2, 3, 4):
        contexts.submit(number, request(PROMPT[number:]))
    with pytest.raises(EngineFailed, match="out of something"):
        contexts.step()
    assert not contexts.has_work
    monkeypatch.undo()
    assert tokens_of(contexts, request()) == expected


def test_a_device_that_failed_is_not_used_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a lost device is lost. Triton loads the stage again when `stats` fails."""
    runtime = start(gpu_layers=1)
    [context] = runtime._contexts
    monkeypatch.setattr(context, "llama_context", Broken(context.llama_context))
    monkeypatch.setattr(context.scheduler, "forget_all", lambda: pytest.fail("the device is asked for something"))
    runtime.submit(1, request())
    for call in (runtime.step, runtime.stats, lambda: runtime.submit(2, request())):
        with pytest.raises(EngineFailed, match="out of something"):
            call()
    runtime.free(1)
    assert not runtime.has_work
    monkeypatch.undo()  # else the context is not freed


def test_the_presence_penalty_counts_only_the_completion(runtime: LlamaCppRuntime) -> None:
    plain = tokens_of(runtime, request())
    repeated = request((*PROMPT, plain[0], *PROMPT))  # the likely tokens are in the prompt, and stay likely
    penalized = changed(repeated, sampling=msgspec.structs.replace(GREEDY, presence_penalty=2.0))
    assert tokens_of(runtime, repeated, 1) == tokens_of(runtime, penalized, 1)
    assert tokens_of(runtime, request(presence_penalty=2.0), 100) != tokens_of(runtime, request(), 100)


def test_an_echo_without_logprobs_reuses_kv_tokens(runtime: LlamaCppRuntime) -> None:
    tokens_of(runtime, request())
    item = changed(request(), echo=(b"",) * len(PROMPT))
    assert complete(runtime, {1: item})[1] == {1: len(PROMPT) - 1}


def test_a_prompt_is_scored_as_its_echo_is_and_never_from_kv_tokens(runtime: LlamaCppRuntime) -> None:
    def scores(**fields: Any) -> StepOutput:
        number = next(UNUSED)
        runtime.submit(number, changed(request(), **fields))
        outputs = [output for _ in PROMPT for output in runtime.step()][:1]
        runtime.free(number)
        return outputs[0]

    echoed, own = scores(echo=(b"",) * len(PROMPT), num_logprobs=2), scores(num_prompt_logprobs=2)
    assert own.prompt_logprobs == echoed.prompt_logprobs
    assert len(own.prompt_logprobs) == len(PROMPT)
    assert (own.num_cached_tokens, own.logprob) == (0, None)
    ranks = [each.rank for each in own.prompt_logprobs]
    assert ranks[0] is None and max(rank or 0 for rank in ranks) > 2


def test_a_continued_conversation_goes_to_the_context_with_its_kv_tokens(contexts: LlamaCppRuntime) -> None:
    first = {number: request(PROMPT[number:]) for number in (1, 2)}
    complete(contexts, first)
    for number, item in first.items():
        longer = changed(item, prompt_token_ids=(*item.prompt_token_ids, 7, 8, 9))
        assert complete(contexts, {number: longer})[1] == {number: len(item.prompt_token_ids)}


def test_a_sequence_freed_while_its_context_computes_has_no_output(contexts: LlamaCppRuntime) -> None:
    expected = tokens_of(contexts, request())
    contexts.submit(1, request(PROMPT[1:]))
    contexts.submit(2, request(PROMPT[2:]))
    (output, *_) = contexts.step()  # the other context goes on
    other = 3 - output.sequence
    contexts.free(other)
    heard = [item.sequence for _ in range(NUM_TOKENS) for item in contexts.step()]
    assert set(heard) == {output.sequence}
    contexts.free(output.sequence)
    assert (contexts.has_work, contexts.stats().num_active, contexts.stats().num_kv_tokens_used) == (False, 0, 0)
    assert tokens_of(contexts, request()) == expected
