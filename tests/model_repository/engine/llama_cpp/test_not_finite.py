"""Models with damaged weights, on the real llama.cpp: a prompt that meets NaN fails, and no other one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp.encoder import LlamaCppEncoder
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig, StepOutput
from model_repository.errors import NotFinite
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.llama_cpp.embedding import embed
from tests.model_repository.engine.tiny_models import write_model

VOCAB_SIZE: int = CONFIG["vocab_size"]
BAD_TOKEN = 250
CLEAN, BAD = range(10, 30), (*range(40, 60), BAD_TOKEN, *range(60, 100))
NUM_TOKENS = 3


def config_of(model: Path, precision: str, pooling: str = "") -> EngineConfig:
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=model.parent,
        context_window=256,
        eos_token_ids=frozenset(),
        max_sequences=3,  # no divisor of a step: llama.cpp aborted at the encoder
        num_threads=1,
        precision=precision,
        pooling=pooling,
        options={} if pooling else {"contexts": "1"},
    )


def started(model: Path, precision: str = "f32") -> LlamaCppRuntime:
    return LlamaCppRuntime(config_of(model, precision), [b"a"] * VOCAB_SIZE)


def complete(
    runtime: LlamaCppRuntime,
    *prompts: Sequence[int],
    sampling: SamplingParams | None = None,
    num_scored: int | None = None,
) -> list[list[int | None]]:
    """Run prompts together as the engine does; return the tokens of each, which end with None after NotFinite."""
    params = Params(sampling=sampling or SamplingParams(temperature=0.0), num_prompt_logprobs=num_scored)
    tokens: list[list[int | None]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        request = EngineRequest(prompt_token_ids=tuple(prompt), max_tokens=NUM_TOKENS, params=params)
        runtime.submit(number, request)
    while runtime.has_work:
        for output in runtime.step():
            error = output.checked()
            assert error is None or isinstance(error, NotFinite)
            tokens[output.sequence].append(output.token_id if error is None else None)
            if error or len(tokens[output.sequence]) == NUM_TOKENS:
                runtime.free(output.sequence, is_reusable=error is None)
    return tokens


@pytest.mark.parametrize("precision", ["f16", "f32"])
@pytest.mark.parametrize("architecture", ["qwen3moe", "deepseek2", "mamba", "granitehybrid"])
def test_others_go_on_and_later_prompts_are_right(architecture: str, precision: str, tmp_path: Path) -> None:
    """The next prompt in the slot was computed from NaN: attention and states multiply freed numbers by 0."""
    model = write_model(tmp_path / "model.gguf", architecture, nan_rows={"token_embd.weight": BAD_TOKEN})
    with closing(started(model, precision)) as runtime:
        [alone] = complete(runtime, CLEAN)
        assert None not in alone
        assert complete(runtime, BAD, CLEAN, BAD[1:]) == [[None], alone, [None]]
        assert complete(runtime, CLEAN, CLEAN, CLEAN) == [alone] * 3
        assert complete(runtime, BAD) == [[None]]


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=4, min_p=0.1)],
)
def test_one_logit_that_is_nan_fails_a_draw(sampling: SamplingParams, tmp_path: Path) -> None:
    """llama.cpp drew the last token of the vocabulary, again and again."""
    model = write_model(tmp_path / "model.gguf", "qwen3moe", nan_rows={"output.weight": BAD_TOKEN})
    with closing(started(model)) as runtime:
        assert complete(runtime, CLEAN, sampling=sampling) == [[None]]


def test_a_scored_prompt_fails(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", "qwen3moe", nan_rows={"token_embd.weight": BAD_TOKEN})
    with closing(started(model)) as runtime:
        assert complete(runtime, BAD, CLEAN, num_scored=2)[0] == [None]


@pytest.mark.parametrize("precision", ["f16", "f32"])
@pytest.mark.parametrize(("architecture", "pooling"), [("bert", "mean"), ("qwen3moe", "last")])
def test_a_vector_fails_alone(architecture: str, pooling: str, precision: str, tmp_path: Path) -> None:
    """All vectors of a step were NaN, and with a KV cache in f32 those of the next steps too."""
    model = write_model(tmp_path / "model.gguf", architecture, nan_rows={"token_embd.weight": BAD_TOKEN})
    with closing(LlamaCppEncoder(config_of(model, precision, pooling), [])) as runtime:
        [alone] = embed(runtime, [CLEAN])
        vectors = embed(runtime, [CLEAN, BAD, CLEAN])
        np.testing.assert_allclose(vectors[[0, 2]], [alone, alone], atol=1e-2)
        assert isinstance(StepOutput(1, embedding=vectors[1].tobytes()).checked(), NotFinite)
        np.testing.assert_allclose(embed(runtime, [CLEAN])[0], alone, atol=1e-2)
