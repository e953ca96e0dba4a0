"""The embeddings of an artifact, from the runtime alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from build_engines.artifact import Manifest
from model_repository.contract.request import EngineRequest, Params
from model_repository.engine.llama_cpp.encoder import LlamaCppEncoder
from model_repository.engine.runtime import EngineConfig, load_runtime

type Vectors = npt.NDArray[np.float32]


def config_of(artifact: Path) -> EngineConfig:
    manifest = Manifest.load(artifact)
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=artifact,
        context_window=manifest.context_window,
        eos_token_ids=frozenset(),
        num_threads=1,
        precision="f32",
        pooling=manifest.pooling,
    )


@contextmanager
def loaded(config: EngineConfig) -> Iterator[LlamaCppEncoder]:
    with closing(load_runtime(config, [])) as runtime:
        assert isinstance(runtime, LlamaCppEncoder)
        yield runtime


def submit(runtime: LlamaCppEncoder, sequence: int, prompt: Sequence[int], priority: int = 0) -> None:
    params = Params(max_tokens=0, priority=priority)
    runtime.submit(sequence, EngineRequest(prompt_token_ids=tuple(prompt), max_tokens=0, params=params))


def step(runtime: LlamaCppEncoder) -> dict[int, Vectors]:
    """Return the vectors of the next step to end; empty if there is no further one."""
    while runtime.has_work:
        if outputs := runtime.step():
            return {output.sequence: np.frombuffer(output.embedding or b"", "<f4") for output in outputs}
    return {}


def embed(runtime: LlamaCppEncoder, prompts: Sequence[Sequence[int]]) -> Vectors:
    """Embed prompts that are submitted together."""
    for sequence, prompt in enumerate(prompts):
        submit(runtime, sequence, prompt)
    found: dict[int, Vectors] = {}
    while runtime.has_work:
        found |= step(runtime)
    return np.stack([found[sequence] for sequence in range(len(prompts))])
