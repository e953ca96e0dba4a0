"""Outputs of Hugging Face's transformers for random checkpoints: the fixtures of make_reference.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tests.build_engines.tiny_checkpoint import Weights, random_weights, sentencepiece_description, write_checkpoint

FOLDER = Path(__file__).parents[2] / "data" / "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A model with its greedy tokens and some logits, all in F32."""

    config: Mapping[str, Any]  # config.json
    seed: int  # of the weights
    weights_sha256: str
    tokenizer: str  # byte_level or sentencepiece
    prompt: list[int]
    greedy: list[int]
    margins: list[float]  # of each greedy token's logit over the second best
    positions: list[int]  # in prompt and greedy tokens together
    logits: list[list[float]]  # after each of these positions, [num_positions, vocab_size]
    made_with: Mapping[str, str]  # versions

    @classmethod
    def load(cls, name: str) -> Reference:
        """Read a fixture."""
        return cls(**json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))

    def expected_logits(self) -> npt.NDArray[np.float64]:
        """Return the logits as an array."""
        return np.array(self.logits)

    def write_checkpoint(self, folder: Path, *, num_shards: int = 1) -> Path:
        """Write the model as a checkpoint folder, of the very weights that the fixture was made of."""
        weights = random_weights(self.config, self.seed)
        assert digest_of(weights) == self.weights_sha256, "other random numbers: make the fixtures anew"
        return write_reference_checkpoint(folder, self.config, weights, self.tokenizer, num_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """The tiny SmolVLM's answer to a picture, all in F32."""

    PATH: ClassVar[Path] = FOLDER.parent / "smolvlm_reference.json"

    picture: int  # its seed
    weights_sha256: str  # of vision tower and projection
    features: list[list[float]]  # of a tile, behind the projection, [num_tile_tokens, hidden_size]
    before: list[int]  # tokens of the prompt
    after: list[int]
    greedy: list[int]
    margin: float  # least one of a greedy token's logit over the second best
    made_with: Mapping[str, str]  # versions

    @classmethod
    def load(cls) -> ImageReference:
        """Read the fixture."""
        return cls(**json.loads(cls.PATH.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingReference:
    """The embeddings of a tiny model that embeds, of length 1, all in F32."""

    PATH: ClassVar[Path] = FOLDER.parent / "embedding_reference.json"

    seed: int  # of the weights
    weights_sha256: str
    prompts: list[list[int]]
    embeddings: list[list[float]]  # [num_prompts, hidden_size]
    with_f16_gelu: list[list[float]]  # the same with llama.cpp's GELU in place of the exact one
    made_with: Mapping[str, str]  # versions

    @classmethod
    def load(cls, name: str) -> EmbeddingReference:
        """Read the fixture of a model of tiny_embedders.py."""
        return cls(**json.loads(cls.PATH.read_text(encoding="utf-8"))[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReference:
    """The scores of a tiny model that scores pairs, before sigmoid or softmax, all in F32."""

    PATH: ClassVar[Path] = FOLDER.parent / "score_reference.json"

    seed: int  # of the weights
    weights_sha256: str
    pairs: list[tuple[str, str]]
    token_ids: list[list[int]]
    types: list[list[int]]  # of each token
    scores: list[list[float]]  # [num_pairs, num_labels]; of a judge log probabilities
    with_f16_gelu: list[list[float]]  # the same with llama.cpp's GELU in place of the exact one
    made_with: Mapping[str, str]  # versions

    @classmethod
    def load(cls, name: str) -> ScoreReference:
        """Read the fixture of a model of tiny_scorers.py."""
        return cls(**json.loads(cls.PATH.read_text(encoding="utf-8"))[name])


def write_reference_checkpoint(
    folder: Path, config: Mapping[str, Any], weights: Weights, tokenizer: str, num_shards: int = 1
) -> Path:
    """Write a checkpoint folder and return it."""
    description = sentencepiece_description() if tokenizer == "sentencepiece" else None
    return write_checkpoint(folder, weights=weights, tokenizer=description, num_shards=num_shards, **config)


def digest_of(weights: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return one sha256 of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    return digest.hexdigest()
