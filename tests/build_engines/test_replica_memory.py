"""The memory of a loaded replica."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.render import ServeOptions, render_artifacts
from build_engines.replica_memory import ReplicaMemory
from build_engines.sequence_memory import SequenceMemory
from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.engine.llama_cpp.context_count import MAX_CACHED_WEIGHTS_BYTES
from model_repository.model_facts import Pooling
from model_repository.runtimes import PROJECTOR
from tests.build_engines.test_render import parameters_in
from tests.build_engines.test_render_artifacts import MANIFEST

WEIGHTS_BYTES = MAX_CACHED_WEIGHTS_BYTES + 1  # of a model with one context
MEMORY = SequenceMemory(bytes_per_token=1000, buffer_bytes=5_000_000, buffer_bytes_per_token=100)
GENERATOR = replace(MANIFEST, sequence_memory=MEMORY)
CACHE_BYTES = MEMORY.num_bytes(MANIFEST.context_window)
BUFFER_BYTES = 5_000_000 + 100 * MANIFEST.context_window
VOCABULARY_SIZE, TOKENIZER_BYTES = 10_000, 2_000_000
LOGITS_BYTES = 4 * VOCABULARY_SIZE
PROCESS_BYTES = 28 << 20


@pytest.fixture
def artifact_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    write_sparse(folder / "model.gguf", WEIGHTS_BYTES)
    write_sparse(folder / "tokenizer" / "tokenizer.json", TOKENIZER_BYTES)
    save_byte_table(folder / FILE_NAME, [b"a"] * VOCABULARY_SIZE)
    return folder


def write_sparse(path: Path, num_bytes: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(num_bytes)


def num_bytes(folder: Path, manifest: Manifest = GENERATOR, num_tokenizers: int = 1, max_sequences: int = 4) -> int:
    memory = ReplicaMemory.of(manifest, folder, num_tokenizers)
    assert memory is not None
    return memory.num_bytes(max_sequences, manifest.context_window)


def test_each_sequence_has_a_cache_and_logits(artifact_dir: Path) -> None:
    one, two = (num_bytes(artifact_dir, max_sequences=count) for count in (1, 2))
    assert two - one == CACHE_BYTES + 3 * LOGITS_BYTES


def test_each_context_has_buffers(artifact_dir: Path) -> None:
    one, two = (num_bytes(artifact_dir, replace(GENERATOR, options={"contexts": count})) for count in "12")
    assert two - one == BUFFER_BYTES


def test_an_artifact_of_an_earlier_version_has_estimated_buffers(artifact_dir: Path) -> None:
    known, unknown = num_bytes(artifact_dir), num_bytes(artifact_dir, replace(GENERATOR, sequence_memory=earlier()))
    assert unknown - known == (16 << 20) + WEIGHTS_BYTES // 64 - BUFFER_BYTES


def earlier() -> SequenceMemory:
    return dataclasses.replace(MEMORY, buffer_bytes=0, buffer_bytes_per_token=0)


def test_images_have_a_context_with_as_many_sequences_as_the_fullest(artifact_dir: Path) -> None:
    without = num_bytes(artifact_dir, replace(GENERATOR, options={"contexts": "2"}), max_sequences=3)
    write_sparse(artifact_dir / PROJECTOR, 7)
    found = num_bytes(artifact_dir, replace(GENERATOR, options={"contexts": "2"}), max_sequences=3)
    processes_bytes = found - without - 7 - 3 * (CACHE_BYTES + 3 * LOGITS_BYTES) - BUFFER_BYTES
    assert processes_bytes == 2 * PROCESS_BYTES


def test_weights_are_those_of_the_model_and_its_adapters(artifact_dir: Path) -> None:
    without = num_bytes(artifact_dir)
    write_sparse(artifact_dir / "adapters" / "formal.gguf", 7)
    assert num_bytes(artifact_dir) == without + 7


def test_each_process_of_the_tokenizer_has_a_tokenizer(artifact_dir: Path) -> None:
    one, two = (num_bytes(artifact_dir, num_tokenizers=count) for count in (1, 2))
    assert two - one == 2 * PROCESS_BYTES + 40 * TOKENIZER_BYTES


def test_a_model_that_embeds_has_its_steps(artifact_dir: Path) -> None:
    small, large = (
        num_bytes(
            artifact_dir, replace(MANIFEST, pooling=Pooling.MEAN, sequence_memory=SequenceMemory(step_bytes=size))
        )
        for size in (1, 1_000_001)
    )
    assert large - small == 1_000_000
    assert small < num_bytes(artifact_dir) - 4 * CACHE_BYTES  # it has no detokenizer either


def test_a_model_without_weights_has_its_processes_alone(artifact_dir: Path) -> None:
    generator_bytes = num_bytes(artifact_dir)
    (artifact_dir / "model.gguf").unlink()
    assert 100e6 < num_bytes(artifact_dir, replace(MANIFEST, runtime="synthetic")) < generator_bytes - WEIGHTS_BYTES


def test_the_memory_of_a_model_that_llama_cpp_has_not_loaded_is_unknown(artifact_dir: Path) -> None:
    assert ReplicaMemory.of(MANIFEST, artifact_dir, 1) is None


def test_a_model_on_gpus_has_the_memory_of_its_plan(artifact_dir: Path) -> None:
    artifact.seal(artifact_dir, replace(MANIFEST, runtime="tensorrt_llm", gpu_bytes=80_000_000_000))
    assert (
        parameters_in(render_artifacts({artifact_dir: ServeOptions()})["org--demo/config.pbtxt"]).memory_bytes == 80e9
    )


def test_models_hold_no_more_than_the_given_memory(artifact_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    artifact.seal(artifact_dir, replace(GENERATOR, context_window=100_000))
    given_bytes = 330_000_000
    files = render_artifacts({artifact_dir: ServeOptions()}, model_memory=given_bytes)
    fitted = parameters_in(files["org--demo/config.pbtxt"])
    window, max_sequences = fitted.context_window, fitted.max_sequences
    expected = num_bytes(artifact_dir, replace(GENERATOR, context_window=window), max_sequences=max_sequences)
    assert fitted.memory_bytes == expected
    assert 0.9 * given_bytes < expected <= given_bytes
    assert "windows of 100,000 tokens are reduced for 0.3 GB of --model-memory" in caplog.text
