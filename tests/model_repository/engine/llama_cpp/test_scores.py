"""Models that score pairs, from checkpoint to scores: tokenizer stage and the real llama.cpp, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from build_engines.artifact import Manifest
from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.llama_cpp.gguf_header import read_gguf_facts
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import PairPrompt
from model_repository.engine.llama_cpp import context, encoder
from model_repository.tokenizer.prompt import PromptEncoder
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from tests.build_engines.llama_cpp.reference import ScoreReference, digest_of
from tests.build_engines.tiny_checkpoint import write_weights
from tests.build_engines.tiny_embedders import weights_of
from tests.build_engines.tiny_scorers import LABELS, classifier_weights, write_judge, write_scorer
from tests.model_repository.engine.llama_cpp.embedding import Vectors, config_of, embed, loaded


def built(checkpoint: Path, folder: Path) -> tuple[Path, Manifest]:
    artifact = build(CpuSpec(model_id="scorer", checkpoint=checkpoint, precision="f32"), folder)
    return artifact, Manifest.load(artifact)


def scores(artifact: Path, prompts: Sequence[Sequence[int]]) -> Vectors:
    """Score prompts that are submitted together."""
    with loaded(config_of(artifact)) as runtime:
        return embed(runtime, prompts)


@pytest.mark.parametrize("name", LABELS)
def test_scores_of_a_cross_encoder_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """llama.cpp itself has neither the second token type nor, in its own conversions, the pooler."""
    expected = ScoreReference.load(name)
    assert digest_of(classifier_weights(expected.seed, len(LABELS[name]))) == expected.weights_sha256
    artifact, manifest = built(write_scorer(tmp_path / "checkpoint", name, expected.seed), tmp_path)
    assert (manifest.pooling, manifest.labels) == ("rank", LABELS[name])

    table = load_byte_table(artifact / FILE_NAME)
    files = TokenizerFiles.load(artifact / "tokenizer")
    prompt_encoder = PromptEncoder(files, table, "plain", has_token_types=manifest.has_token_types)
    prompts = [prompt_encoder.encode(PairPrompt(tuple(pair))).token_ids for pair in expected.pairs]
    num_tokens = len(table) // 2
    assert [[token_id % num_tokens for token_id in prompt] for prompt in prompts] == expected.token_ids
    assert [[token_id // num_tokens for token_id in prompt] for prompt in prompts] == expected.types

    found = scores(artifact, prompts)
    assert np.abs(found - expected.with_f16_gelu).max() < 1e-3
    assert np.abs(found - expected.scores).max() < 5e-3  # GELU in f16, enlarged by weights larger than trained ones
    first_types = scores(artifact, expected.token_ids)
    assert np.abs(first_types - expected.scores).max() > 1  # without the second type


def test_a_judge_has_the_log_probabilities_of_its_two_tokens(tmp_path: Path) -> None:
    expected = ScoreReference.load("judge")
    assert digest_of(weights_of("qwen3", expected.seed)) == expected.weights_sha256
    artifact, manifest = built(write_scorer(tmp_path / "checkpoint", "judge", expected.seed), tmp_path)
    assert (manifest.labels, manifest.reasoning_format) == (("yes", "no"), "")
    log_probabilities = np.array(expected.scores)
    of_both = log_probabilities - np.logaddexp.reduce(log_probabilities, axis=1, keepdims=True)
    assert np.abs(scores(artifact, expected.token_ids) - of_both).max() < 1e-4


def test_a_long_pair_has_the_score_of_one_that_is_computed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flash attention, which sums in f16, is not necessary: the last token's scores are computed in pieces."""
    artifact, prompt = built(write_judge(tmp_path / "checkpoint"), tmp_path)[0], [[40 + i % 9 for i in range(200)]]
    at_once = scores(artifact, prompt)
    for module in (context, encoder):
        monkeypatch.setattr(module, "MAX_STEP_TOKENS", 32)
    assert np.abs(scores(artifact, prompt) - at_once).max() < 1e-5


def test_a_judge_with_an_output_matrix_of_its_own_judges_by_that(tmp_path: Path) -> None:
    folder = write_judge(tmp_path / "tied")
    expected = scores(built(folder, tmp_path)[0], [[40, 41]])
    tied = weights_of("qwen3", 0)
    other = write_judge(tmp_path / "untied", is_tied=False)
    weights = {f"model.{name}": each for name, each in tied.items()}
    write_weights(other, weights | {"lm_head.weight": -tied["embed_tokens.weight"]})
    assert scores(built(other, tmp_path)[0], [[40, 41]]) == pytest.approx(expected[:, ::-1], abs=1e-5)


def test_the_built_file_says_what_it_scores(tmp_path: Path) -> None:
    artifact, _ = built(write_scorer(tmp_path / "checkpoint", "classifier"), tmp_path)
    facts = read_gguf_facts(artifact / "model.gguf")
    assert (facts.pooling, facts.labels) == ("rank", LABELS["classifier"])
