"""Models that embed, on the real llama.cpp: tiny models of random weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cyllama.llama import llama_cpp as llama
from msgspec.structs import replace

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.llama_cpp.gguf_header import read_gguf_facts
from model_repository.engine.llama_cpp import context, encoder
from model_repository.engine.llama_cpp.encoder import LlamaCppEncoder
from model_repository.engine.runtime import EngineConfig, StepOutput
from model_repository.errors import EngineFailed, InvalidRequest
from tests.build_engines.llama_cpp.reference import EmbeddingReference, digest_of
from tests.build_engines.tiny_embedders import CONFIGS, weights_of, write_embedder
from tests.model_repository.engine.llama_cpp.embedding import Vectors, config_of, embed, loaded, step, submit
from tests.model_repository.engine.tiny_models import ENCODERS, write_model
from tests.waiting import DEADLINE_S


@pytest.fixture(scope="module", params=CONFIGS)
def reference(request: pytest.FixtureRequest) -> tuple[str, EmbeddingReference]:
    name = str(request.param)
    expected = EmbeddingReference.load(name)
    found = digest_of(weights_of(name, expected.seed))
    assert found == expected.weights_sha256, "other random numbers: make the fixtures anew"
    return name, expected


@pytest.fixture(scope="module")
def config(reference: tuple[str, EmbeddingReference], tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """The built artifact of a model."""
    (name, expected), folder = reference, tmp_path_factory.mktemp("embedder")
    checkpoint = write_embedder(folder / "checkpoint", name, expected.seed)
    artifact = build(CpuSpec(model_id=name, checkpoint=checkpoint, precision="f32"), folder)
    return config_of(artifact)


@pytest.fixture
def runtime(config: EngineConfig) -> Iterator[LlamaCppEncoder]:
    with loaded(config) as runtime:
        yield runtime


def test_embeddings_are_those_of_transformers(
    runtime: LlamaCppEncoder, reference: tuple[str, EmbeddingReference]
) -> None:
    name, expected = reference
    found = embed(runtime, expected.prompts)
    vectors = np.array(expected.with_f16_gelu)
    assert np.abs(found - vectors).max() < 1e-4
    # llama.cpp computes GELU by an approximation in f16, which these weights, larger than a trained model's, enlarge.
    assert np.abs(found - expected.embeddings).max() < (1e-3 if name == "bert" else 1e-4)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2  # a difference would show


def test_prompts_of_unlike_lengths_share_a_step(
    runtime: LlamaCppEncoder, reference: tuple[str, EmbeddingReference]
) -> None:
    prompts = reference[1].prompts
    alone = np.concatenate([embed(runtime, [prompt]) for prompt in prompts])
    for sequence, prompt in enumerate(prompts):
        submit(runtime, sequence, prompt)
    together = step(runtime)
    assert np.abs(np.stack([together[number] for number in range(len(prompts))]) - alone).max() < 1e-5


@pytest.fixture
def short_steps(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LlamaCppEncoder]]:
    """Makes an encoder that computes at most 32 tokens in a step."""
    with ExitStack() as stack:

        def make(num_threads: int) -> LlamaCppEncoder:
            for module in (context, encoder):
                monkeypatch.setattr(module, "MAX_STEP_TOKENS", 32)
            small = replace(config, num_threads=num_threads, max_sequences=8)
            return stack.enter_context(closing(LlamaCppEncoder(small, [])))

        yield make


def test_a_step_has_few_tokens(short_steps: Callable[..., LlamaCppEncoder]) -> None:
    runtime = short_steps(num_threads=1)
    for sequence, length in enumerate((20, 12, 8, 32, 1)):
        submit(runtime, sequence, [40] * length)
    assert [sorted(step(runtime)) for _ in range(4)] == [[0, 1], [2], [3], [4]]
    assert not runtime.has_work


def test_contexts_share_the_prompts(short_steps: Callable[..., LlamaCppEncoder]) -> None:
    runtime = short_steps(num_threads=2)
    for sequence in range(3):
        submit(runtime, sequence, [40, 41])
    assert sorted([sorted(step(runtime)) for _ in range(2)]) == [[0, 1], [2]]
    assert not runtime.has_work


def test_a_long_prompt_has_the_same_vector_in_its_own_context(
    runtime: LlamaCppEncoder, short_steps: Callable[..., LlamaCppEncoder], reference: tuple[str, EmbeddingReference]
) -> None:
    prompts = [[40 + number % 9 for number in range(length)] for length in (200, 3, 40, 32)]
    expected = embed(runtime, prompts)
    difference = np.abs(embed(short_steps(num_threads=1), prompts) - expected)
    # Flash attention sums in f16. A decoder computes long prompts in pieces, without it.
    assert difference.max() < (1e-3 if reference[0] == "bert" else 1e-5)


@dataclass
class Hold:
    """Holds each step until `is_over`; meanwhile llama.cpp goes on in the contexts that poll."""

    is_over: threading.Event = field(default_factory=threading.Event)
    has_polls: Callable[[encoder._Context], bool] = lambda _: False


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    hold, compute = Hold(), encoder._Context._compute

    def compute_later(context: encoder._Context) -> list[StepOutput]:
        while not hold.is_over.wait(0.001):
            if hold.has_polls(context):
                context._is_unwanted()
        return compute(context)

    monkeypatch.setattr(encoder._Context, "_compute", compute_later)
    yield hold
    hold.is_over.set()


def test_the_prompt_of_a_step_in_progress_is_cancelled(runtime: LlamaCppEncoder, held: Hold) -> None:
    submit(runtime, 0, [40, 41])
    runtime.wake()
    assert not runtime.step()
    assert runtime.stats().num_active == 1
    runtime.free(0)
    held.is_over.set()
    assert step(runtime) == {}
    assert not runtime.has_work


def test_a_long_prompt_leaves_room_for_short_ones(short_steps: Callable[..., LlamaCppEncoder], held: Hold) -> None:
    runtime = short_steps(num_threads=1)
    for sequence, length in enumerate((40, 40, 3)):
        submit(runtime, sequence, [40] * length)
    runtime.wake()
    assert not runtime.step()
    stats = runtime.stats()
    assert (stats.num_active, stats.num_waiting) == (2, 1)


def test_steps_tell_whether_all_go_on(
    short_steps: Callable[..., LlamaCppEncoder], held: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine counts as lost after a minute without a result."""
    monkeypatch.setattr(encoder, "_WAIT_S", 0.1)
    runtime = short_steps(num_threads=1)
    submit(runtime, 0, [40] * 40)
    submit(runtime, 1, [40])
    assert runtime.step() == ()  # the beginning
    monkeypatch.setattr(encoder, "_SIGN_INTERVAL_S", 0.0)
    held.has_polls = lambda context: context.is_long
    assert runtime.step() is None
    held.has_polls = lambda _: True
    assert runtime.step() == ()
    monkeypatch.setattr(encoder, "_SIGN_INTERVAL_S", 1e9)
    assert runtime.step() is None


def test_no_step_starts_beside_one_that_hangs(
    short_steps: Callable[..., LlamaCppEncoder], held: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of the others would hide it from the health check."""
    runtime = short_steps(num_threads=1)
    submit(runtime, 0, [40] * 40)
    runtime.step()
    monkeypatch.setattr(encoder, "_MAX_SILENCE_S", 0.0)
    submit(runtime, 1, [40])
    runtime.step()
    assert runtime.stats().num_waiting == 1


def test_a_step_that_hangs_ends_with_the_process(runtime: LlamaCppEncoder, held: Hold) -> None:
    others = set(threading.enumerate())
    submit(runtime, 0, [40])
    runtime.step()
    assert [thread.daemon for thread in set(threading.enumerate()) - others] == [True]


def test_many_messages_are_one_interruption(runtime: LlamaCppEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_WAIT_S", DEADLINE_S)
    for _ in range(9):
        runtime.wake()
    submit(runtime, 0, [40])
    assert any([runtime.step(), runtime.step()])


def test_a_failed_step_loses_all_prompts_and_no_later_one(
    short_steps: Callable[..., LlamaCppEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: encoder._Context) -> None:
        raise RuntimeError("no memory")

    runtime = short_steps(num_threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(encoder._Context, "_compute", fail)
        for sequence in range(3):  # two fail, and one waits
            submit(runtime, sequence, [40] * 32)
        with pytest.raises(EngineFailed, match="llama\\.cpp failed in a step: no memory"):
            step(runtime)
    assert not runtime.has_work
    submit(runtime, 3, [40])
    assert list(step(runtime)) == [3]


def test_a_device_that_failed_is_not_used_again(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: encoder._Context) -> None:
        raise RuntimeError("no memory")

    with closing(LlamaCppEncoder(replace(config, gpu_layers=1), [])) as runtime:
        monkeypatch.setattr(encoder._Context, "_compute", fail)
        submit(runtime, 0, [40])
        for call in (lambda: step(runtime), runtime.stats, lambda: submit(runtime, 1, [40])):
            with pytest.raises(EngineFailed, match="no memory"):
                call()
        assert not runtime.has_work


def test_a_step_has_no_more_prompts_than_sequences(config: EngineConfig) -> None:
    with closing(LlamaCppEncoder(replace(config, max_sequences=2), [])) as runtime:
        for sequence in range(3):
            submit(runtime, sequence, [40, 41])
        assert [sorted(step(runtime)) for _ in range(2)] == [[0, 1], [2]]


def test_the_longest_prompt_fits(runtime: LlamaCppEncoder, config: EngineConfig) -> None:
    [vector] = embed(runtime, [[40, 41] * (config.context_window // 2)])
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_prompt_of_high_priority_is_first(runtime: LlamaCppEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "MAX_STEP_TOKENS", 1)
    submit(runtime, 0, [40])
    submit(runtime, 1, [41], priority=-1)
    assert list(step(runtime)) == [1]


def test_a_freed_prompt_is_not_computed(runtime: LlamaCppEncoder) -> None:
    submit(runtime, 0, [40])
    submit(runtime, 1, [41])
    assert runtime.stats().num_waiting == 2
    runtime.free(0)
    assert list(step(runtime)) == [1]


def test_an_unknown_token_is_refused_alone(runtime: LlamaCppEncoder) -> None:
    with pytest.raises(InvalidRequest, match=r"^9999: token ids are from 0 to"):
        submit(runtime, 0, [9999])
    assert not runtime.has_work


def test_a_file_that_does_not_load_is_named(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineFailed, match=r"model\.gguf: llama\.cpp does not load it"):
        LlamaCppEncoder(replace(config, artifact_dir=tmp_path), [])


# --- other encoders: llama.cpp's own vectors of single tokens, pooled here --------------------------------------------


def mean_of_tokens(path: Path, prompt: Sequence[int]) -> Vectors:
    params = llama.LlamaContextParams()
    params.embeddings, params.pooling_type, params.flash_attn_type = True, llama.LLAMA_POOLING_TYPE_NONE, 0
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    with (
        closing(llama.LlamaModel(str(path), llama.LlamaModelParams())) as model,
        closing(llama.LlamaContext(model, params)) as context,
        closing(llama.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1)) as batch,
    ):
        for position, token_id in enumerate(prompt):
            batch.add(token_id, position, [0], True)
        context.decode(batch)
        mean = np.mean([context.get_embeddings_ith(index) for index in range(len(prompt))], axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


@pytest.mark.parametrize("architecture", ENCODERS)
def test_the_vector_of_any_encoder_is_the_mean_of_its_tokens(architecture: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", architecture)
    assert read_gguf_facts(path).pooling == "mean"
    config = EngineConfig(
        runtime="llama_cpp",
        artifact_dir=tmp_path,
        context_window=256,
        eos_token_ids=frozenset(),
        num_threads=1,
        precision="f32",
        pooling="mean",
    )
    prompts = [list(range(start, start + length)) for start, length in ((3, 5), (40, 100), (7, 1))]
    with closing(LlamaCppEncoder(config, [])) as runtime:
        found = embed(runtime, prompts)
    expected = np.stack([mean_of_tokens(path, prompt) for prompt in prompts])
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
