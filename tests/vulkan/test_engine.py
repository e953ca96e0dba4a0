"""The real llama.cpp with all layers on a device: answers beside others are those that the cores compute alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig
from model_repository.runtimes import NGRAM, PROJECTOR
from model_repository.system.devices import DeviceUse
from tests.build_engines.llama_cpp.reference import ImageReference
from tests.build_engines.tiny_embedders import write_embedder
from tests.exactness.mix import SYSTEMS, Cases, build_demo
from tests.model_repository.engine.llama_cpp import embedding
from tests.model_repository.engine.llama_cpp.test_image_prompts import NUM_TOKENS
from tests.model_repository.engine.llama_cpp.test_kv_caches import (
    VOCAB_SIZE,
    Sent,
    check,
    complete,
    config_of,
)
from tests.model_repository.engine.tiny_models import FULL_ATTENTION, RECURRENT, SLIDING_WINDOW, write_model
from tests.vulkan.mixed_answers.__main__ import MAX_ERROR
from tests.waiting import DEADLINE_S

# Mesa 22.3.6 reads memory that it has freed as it made a pipeline (valgrind shows it for a few products of matrices in
# ggml alone), and a process with many pipelines may end by a signal. The variables move its memory.
_TRIES: tuple[dict[str, str], ...] = (
    {},
    {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_TOP_PAD_": str(64 << 20)},
) * 2
PROMPT = range(40)  # longer than the window of SLIDING_WINDOW


@pytest.mark.parametrize("speculative", [None, NGRAM])
@pytest.mark.parametrize("architecture", ["gpt-oss", "mamba"])
def test_answers_with_kept_tokens_are_those_of_the_cores(
    architecture: str, speculative: str | None, placement: Mapping[str, Any], tmp_path: Path
) -> None:
    """One is for a sliding window, and one is recurrent: it has no drafts, and forgets nothing."""
    model = write_model(tmp_path / "model.gguf", architecture)
    with closing(
        LlamaCppRuntime(replace(config_of(tmp_path, speculative), **placement), [b"a"] * VOCAB_SIZE)
    ) as runtime:
        first = [Sent(PROMPT, 12) for _ in range(3)]  # two of them get copies of the slot
        complete(runtime, *first)
        turn, beginning = Sent([*first[0].text, 7], 4), Sent([*PROMPT[:36], 7], 4)
        complete(runtime, turn)
        complete(runtime, beginning)
        has_drafts = runtime.stats().num_accepted_tokens > 0
    assert (first[0].num_cached, first[1].num_cached, turn.num_cached >= 51) == (0, 39, True)
    assert beginning.num_cached == (0 if architecture in RECURRENT else 36)
    assert has_drafts == (speculative is not None and architecture not in RECURRENT)
    check(model, [*first, turn, beginning], MAX_ERROR)


def test_a_model_on_two_devices_answers_as_on_the_cores(uses: Mapping[str, DeviceUse], tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", "gpt-oss")
    config = replace(config_of(tmp_path), gpu_layers=99, devices=uses)
    with closing(LlamaCppRuntime(config, [b"a"] * VOCAB_SIZE)) as runtime:
        sent = Sent(PROMPT, 12)
        complete(runtime, sent)
    check(model, [sent], MAX_ERROR)


@pytest.mark.wide
@pytest.mark.parametrize("architecture", [*FULL_ATTENTION, *SLIDING_WINDOW, *RECURRENT])
def test_answers_in_a_mix_are_those_of_the_cores(architecture: str) -> None:
    """In a process of its own, and again if the driver ends it. A wrong answer ends the test at once."""
    command = [sys.executable, "-m", "tests.vulkan.mixed_answers", architecture]
    for variables in _TRIES:
        environment = os.environ | variables
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=2 * DEADLINE_S
        )
        if done.returncode not in (-signal.SIGSEGV, -signal.SIGABRT) or "GGML_ASSERT" in done.stderr:
            break
    assert done.returncode == 0, done.stderr


# --- embedders and images ---------------------------------------------------------------------------------------------


def test_vectors_are_those_of_the_cores(placement: Mapping[str, Any], tmp_path: Path) -> None:
    checkpoint = write_embedder(tmp_path / "checkpoint", "bert", 0)
    artifact = build(CpuSpec(model_id="bert", checkpoint=checkpoint, precision="f32"), tmp_path)
    config = embedding.config_of(artifact)
    prompts = [[40 + number % 9 for number in range(length)] for length in (3, 20, 1)]
    found = []
    for placed in (config, replace(config, **placement)):
        with embedding.loaded(placed) as runtime:
            found.append(embedding.embed(runtime, prompts))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_the_answer_to_an_image_is_that_of_transformers() -> None:
    """In a process of its own: a fork of one that has computed on a device is wrong or hangs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.vulkan.image_answer"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, json.loads(done.stdout or "0")) == (0, ImageReference.load().greedy[:NUM_TOKENS]), (
        done.stderr
    )


# --- many texts -------------------------------------------------------------------------------------------------------
NUM_PROMPTS = 200


@pytest.mark.wide
def test_greedy_texts_beside_others_are_those_that_the_cores_make_alone(
    placement: Mapping[str, Any], tmp_path: Path
) -> None:
    """The demo model, in some minutes. A text differs where rounding decides between two tokens."""
    artifact = build_demo(tmp_path)
    (artifact / PROJECTOR).unlink()
    config = EngineConfig(
        runtime="llama_cpp",
        artifact_dir=artifact,
        context_window=128,
        eos_token_ids=frozenset(),
        max_sequences=4,
        num_threads=1,
        precision="f32",
        options={"contexts": "1"},
    )
    cases = Cases(artifact)
    prompts = [
        cases.encode(SYSTEMS[number % 3], f"What is {number} and {cases.random.randrange(100)}?")
        for number in range(NUM_PROMPTS)
    ]
    alone = [greedy(config, [prompt])[0] for prompt in prompts]
    together = greedy(replace(config, **placement), prompts)
    num_equal = sum(found == expected for found, expected in zip(together, alone, strict=True))
    assert num_equal >= 0.99 * NUM_PROMPTS


def greedy(config: EngineConfig, prompts: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """Return eight tokens behind each prompt, from an empty KV cache."""
    tokens: list[list[int | None]] = [[] for _ in prompts]
    with closing(LlamaCppRuntime(config, load_byte_table(config.artifact_dir / FILE_NAME))) as runtime:
        for number, prompt in enumerate(prompts):
            params = Params(sampling=SamplingParams(temperature=0.0))
            runtime.submit(number, EngineRequest(prompt_token_ids=tuple(prompt), max_tokens=8, params=params))
        while runtime.has_work:
            for output in runtime.step():
                tokens[output.sequence].append(output.token_id)
                if len(tokens[output.sequence]) == 8:
                    runtime.free(output.sequence)
    return tokens
