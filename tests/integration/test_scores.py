"""A cross-encoder on the real Triton, over HTTP and for a gRPC client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import INPUTS
from tests.build_engines.llama_cpp.reference import ScoreReference
from tests.build_engines.tiny_scorers import write_scorer
from tests.integration.api import Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack

MODEL, ENSEMBLE = "tiny/cross-encoder", "tiny--cross-encoder"
EXPECTED = ScoreReference.load("cross_encoder")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("scorer")
    checkpoint = write_scorer(folder / "checkpoint", "cross_encoder", EXPECTED.seed)
    artifact = build(folder, MODEL, "--checkpoint", str(checkpoint), "--precision", "f32")
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


def test_scores_are_those_of_transformers_over_http_and_grpc(scorer: Stack) -> None:
    raw = [score for [score] in EXPECTED.with_f16_gelu]
    first, second = zip(*EXPECTED.pairs, strict=True)
    body = {"model": MODEL, "text_1": first, "text_2": second}
    answer = Api(scorer.url).post("/v1/score", body).body
    assert [each["score"] for each in answer["data"]] == pytest.approx([1 / (1 + math.exp(-x)) for x in raw], abs=1e-3)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, EXPECTED.token_ids))
    for pair, expected in zip(EXPECTED.pairs, raw, strict=True):
        [found] = scorer.infer(ENSEMBLE, {"text_pair": tensor(INPUTS["text_pair"], *pair)})
        assert np.abs(found["embedding"] - expected).max() < 1e-3


def test_the_best_document_comes_first(scorer: Stack) -> None:
    documents = ["a green house", "the house runs", "the the"]
    body = {"model": MODEL, "query": "the red fox", "documents": documents, "return_documents": True}
    results = Api(scorer.url).post("/v1/rerank", body).body["results"]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert [documents[each["index"]] for each in results] == [each["document"]["text"] for each in results]
