"""From the command line to the runtime: a built checkpoint generates the reference's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from build_engines import artifact
from build_engines.__main__ import main
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig
from tests.build_engines.llama_cpp.reference import Reference


def build(checkpoint: Path, state_dir: Path, precision: str) -> Path:
    arguments = ["build", "tiny", "--checkpoint", str(checkpoint), "--precision", precision]
    assert main([*arguments, "--home", str(state_dir)]) == 0
    (folder,) = (path for path in (state_dir / "artifacts").iterdir() if (path / "manifest.json").is_file())
    return folder


def greedy_tokens(folder: Path, prompt: Sequence[int], num_tokens: int) -> list[int]:
    manifest = artifact.verify(folder)
    config = EngineConfig(
        runtime=manifest.runtime,
        artifact_dir=folder,
        context_window=manifest.context_window,
        eos_token_ids=frozenset(manifest.eos_token_ids),
        max_sequences=1,
        num_threads=1,
        precision=manifest.precision,
    )
    runtime = LlamaCppRuntime(config, load_byte_table(folder / FILE_NAME))
    greedy = Params(sampling=SamplingParams(temperature=0.0))
    runtime.submit(1, EngineRequest(prompt_token_ids=tuple(prompt), max_tokens=num_tokens, params=greedy))
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += [output.token_id for output in runtime.step() if output.token_id is not None]
    runtime.close()
    return tokens


# In q8_0 the first token is the only one of the first whose margin is beyond the bound that test_reference.py states.
# The context window of `mistral`, whose sliding window is smaller, is full with the last token.
@pytest.mark.parametrize(
    ("name", "precision", "num_certain"),
    [
        ("llama_sentencepiece", "f32", 24),
        ("llama_sentencepiece", "q8_0", 1),
        ("mistral", "f32", 24),
        ("qwen3", "f32", 24),
    ],
)
def test_a_built_checkpoint_generates_the_reference_tokens(
    name: str, precision: str, num_certain: int, tmp_path: Path
) -> None:
    reference = Reference.load(name)
    folder = build(reference.write_checkpoint(tmp_path / "checkpoint", num_shards=2), tmp_path / "state", precision)
    assert artifact.verify(folder).precision == precision
    tokens = greedy_tokens(folder, reference.prompt, len(reference.greedy))
    assert tokens[:num_certain] == reference.greedy[:num_certain]
    assert len(tokens) == len(reference.greedy)
