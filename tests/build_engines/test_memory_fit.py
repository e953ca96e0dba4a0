"""Sequences and context windows that fit in the memory of a CPU machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from build_engines import artifact
from build_engines.memory_fit import ModelDemand, fit, fit_loaded
from build_engines.render import ServeOptions, render_artifacts
from build_engines.replica_memory import ReplicaMemory
from build_engines.sequence_memory import SequenceMemory
from tests.build_engines.test_render import parameters_in
from tests.build_engines.test_render_artifacts import MANIFEST

GB = 10**9


def demand(weights_gb: int, context_window: int, **sizes: int) -> ModelDemand:
    """A model with 16 sequences."""
    memory = SequenceMemory(**sizes)
    return ModelDemand(weight_bytes=weights_gb * GB, sequence_memory=memory, num_sequences=16, window=context_window)


SMALL = demand(1, 32_768, bytes_per_token=12_288)  # 0.4 GB a sequence
LARGE = demand(5, 131_072, bytes_per_token=131_072)  # 17 GB a sequence
# 4.4 GB a sequence. Without the sliding window of three quarters of its layers it would be 17 GB, too.
SLIDING = demand(5, 131_072, bytes_per_token=32_768, window=1024, bytes_per_window_token=98_304)
RECURRENT = demand(1, 131_072, state_bytes=100_000_000)
EMBEDDER = demand(1, 8192, step_bytes=2 * GB)


@pytest.mark.parametrize(
    ("model", "memory_gb", "fitted"),
    [
        (SMALL, 32, (16, 32_768)),
        (SMALL, 16, (9, 32_768)),
        (SMALL, 4, (4, 20_224)),
        (LARGE, 1200, (16, 131_072)),
        (LARGE, 16, (4, 7424)),
        (LARGE, 7, (2, 2048)),
        (LARGE, 1, (1, 2048)),  # it may run slowly
        (SLIDING, 32, (4, 57_856)),
        (SLIDING, 7, (3, 2048)),
        (RECURRENT, 2, (5, 131_072)),
        (RECURRENT, 4, (10, 131_072)),
        (dataclasses.replace(LARGE, sequence_memory=None), 1, (16, 131_072)),
        (dataclasses.replace(LARGE, is_fixed=True), 1, (16, 131_072)),
        (EMBEDDER, 1, (16, 8192)),
        (dataclasses.replace(LARGE, window=512), 7, (8, 512)),
    ],
)
def test_sequences_and_then_the_window_shrink(model: ModelDemand, memory_gb: int, fitted: tuple[int, int]) -> None:
    assert fit([model], memory_gb * GB, 64) == [fitted]
    num_sequences, window = fitted
    if window > 2048 and model.can_shrink:
        assert model.sequence_memory is not None
        cache_bytes = num_sequences * model.sequence_memory.num_bytes(window)
        assert model.weight_bytes + cache_bytes <= 0.8 * memory_gb * GB
        assert cache_bytes <= 0.25 * memory_gb * GB


@pytest.mark.parametrize(
    ("model", "num_cores", "num_sequences"),
    [
        (SMALL, 64, 16),
        (SMALL, 8, 8),
        (SMALL, 2, 4),
        (dataclasses.replace(SMALL, window=8192), 2, 10),  # their KV caches have 1 GB
        (dataclasses.replace(SMALL, window=2048), 2, 16),
        (dataclasses.replace(SMALL, is_fixed=True), 2, 16),
    ],
)
def test_more_sequences_than_cores_have_quickly_made_caches(
    model: ModelDemand, num_cores: int, num_sequences: int
) -> None:
    assert fit([model], 32 * GB, num_cores) == [(num_sequences, model.window)]


@pytest.mark.parametrize(("memory_gb", "num_sequences"), [(32, 1), (80, 2), (1200, 3)])
def test_spare_sequences_are_given_up_before_the_window_shrinks(memory_gb: int, num_sequences: int) -> None:
    model = dataclasses.replace(LARGE, num_sequences=1, is_fixed=True, num_spare=2)
    assert fit([model], memory_gb * GB, 2) == [(num_sequences, LARGE.window)]


def test_models_share_the_memory() -> None:
    assert fit([SMALL, LARGE], 32 * GB, 64) == [(9, 32_768), (4, 7424)]
    fixed = dataclasses.replace(SMALL, is_fixed=True)  # 6.4 GB of KV cache, and the weights have 6 GB
    assert fit([fixed, LARGE], 32 * GB, 64) == [(16, 32_768), (4, 15_104)]
    assert fit([fixed, LARGE], 20 * GB, 64) == [(16, 32_768), (4, 6656)]


ON_DEMAND = {"is_on_demand": True}
PINNED = {"is_pinned": True}


@pytest.mark.parametrize(
    ("of_small", "of_large", "memory_gb", "fits"),
    [
        # Both at the start: they share the memory.
        ({}, {}, 32, [(9, 32_768), (4, 7424)]),
        (PINNED, PINNED, 32, [(9, 32_768), (4, 7424)]),
        (PINNED, PINNED | ON_DEMAND, 32, [(9, 32_768), (4, 7424)]),
        # One of them alone at a time: each has the memory that it has without the other one.
        (ON_DEMAND, ON_DEMAND, 32, [(16, 32_768), (4, 15_104)]),
        ({}, ON_DEMAND, 32, [(16, 32_768), (4, 15_104)]),
        # They do not fit together: the weights have 6 GB, and the least KV caches 0.3 GB.
        ({}, {}, 6, [(4, 30_464), (1, 2048)]),
        # One beside the other one, which stays.
        (PINNED, ON_DEMAND, 16, [(9, 32_768), (4, 5888)]),
    ],
)
def test_models_that_are_not_loaded_together_share_no_memory(
    of_small: dict[str, Any], of_large: dict[str, Any], memory_gb: int, fits: list[tuple[int, int]]
) -> None:
    models = {"small": dataclasses.replace(SMALL, **of_small), "large": dataclasses.replace(LARGE, **of_large)}
    assert [*fit_loaded(models, memory_gb * GB, 64).values()] == fits


def test_the_replicas_of_a_model_share_the_memory_on_demand_too() -> None:
    pair = dataclasses.replace(SMALL, is_on_demand=True, num_replicas=2)
    assert fit_loaded({"pair": pair}, 16 * GB, 64) == {"pair": (4, 32_768)}


def test_processes_and_buffers_count_too() -> None:
    """Without them the KV caches of two models of 1 GB of weights have 0.4 GB each."""
    assert SMALL.sequence_memory is not None
    replica = ReplicaMemory(
        weight_bytes=SMALL.weight_bytes,
        process_bytes=GB // 2,
        sequence_memory=SMALL.sequence_memory,
        vocabulary_size=0,
        num_contexts=1,
        num_threads=1,
        has_images=False,
    )
    model = dataclasses.replace(SMALL, replica=replica)
    each, _ = fit([model, model], 4 * GB, 64)
    assert 1.7e9 < model.replica_bytes(*each) <= 1.8e9
    assert each < fit([SMALL, SMALL], 4 * GB, 64)[0]


def test_the_step_of_a_model_that_embeds_is_not_shared() -> None:
    assert fit([EMBEDDER, RECURRENT], 6 * GB, 64) == [(16, 8192), (8, 131_072)]
    assert EMBEDDER.text(16, 8192) == "prompts of 8,192 tokens, 3.0 GB with the weights"


def test_a_repository_is_rendered_for_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("model_repository.system.model_memory.memory_bytes", lambda: GB)
    folder = tmp_path / "large"
    folder.mkdir()
    manifest = replace(MANIFEST, context_window=131_072, sequence_memory=SequenceMemory(bytes_per_token=32_768))
    artifact.seal(folder, manifest)
    files = render_artifacts({folder: ServeOptions()})
    fitted = parameters_in(files["org--demo/config.pbtxt"])
    assert (fitted.context_window, fitted.max_sequences) == (2048, 3)
    assert "windows of 131,072 tokens are reduced for 1.0 GB of memory; --max-sequences" in caplog.text
    assert "3 x 2,048 tokens" in caplog.text
    pair = render_artifacts({folder: ServeOptions(replicas=2)})  # which shares the memory
    assert parameters_in(pair["org--demo@2/config.pbtxt"]).max_sequences == 1
    assert "each of 2 replicas: 1 x 2,048 tokens" in caplog.text
    chosen = parameters_in(render_artifacts({folder: ServeOptions(max_sequences=8)})["org--demo/config.pbtxt"])
    assert (chosen.context_window, chosen.max_sequences) == (131_072, 8)
    monkeypatch.setattr("model_repository.system.model_memory.memory_bytes", lambda: 100 * GB)
    options = ServeOptions(max_sequences=1, spare_sequences=1)
    assert parameters_in(render_artifacts({folder: options})["org--demo/config.pbtxt"]).max_sequences == 2
