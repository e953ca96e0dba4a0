"""How a checkpoint pools, by the files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.sentence_transformers import read_pooling
from model_repository.model_facts import Pooling
from tests.build_engines.tiny_embedders import BERT, QWEN3, write_embedder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, Pooling.MEAN),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
        ({"pooling_mode": ["cls"]}, Pooling.CLS),
    ],
    ids=str,
)
def test_both_forms_of_the_file_name_the_pooling(config: dict[str, Any], pooling: Pooling, tmp_path: Path) -> None:
    assert read_pooling(write_embedder(tmp_path / "model", "qwen3", **config), QWEN3) is pooling


@pytest.mark.parametrize("modes", [["max_tokens"], ["mean_tokens", "cls_token"], []], ids=str)
def test_another_pooling_is_refused(modes: list[str], tmp_path: Path) -> None:
    folder = write_embedder(
        tmp_path / "model", "bert", include_prompt=True, **{f"pooling_mode_{m}": True for m in modes}
    )
    with pytest.raises(BuildError, match=r"^1_Pooling/config\.json: pooling .*: expected one of mean, cls, lasttoken"):
        read_pooling(folder, BERT)


def test_without_the_files_an_encoder_embeds_and_a_decoder_generates(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, BERT) is Pooling.MEAN
    assert read_pooling(tmp_path, QWEN3) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "modules.json: expected a JSON list"),
        ("[", "modules.json: not JSON"),
        ("[1]", "modules.json: 1: expected a type of Transformer, Pooling, Normalize"),
        (json.dumps([{"type": "sentence_transformers.models.Dense"}]), "models.Dense.*expected a type of Transformer"),
        ("[]", "1_Pooling/config.json: no such file"),
    ],
)
def test_a_file_that_cannot_be_honoured_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(BuildError, match=message):
        read_pooling(tmp_path, BERT)
