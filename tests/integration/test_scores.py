"""A cross-encoder on the real Triton, over HTTP and for a gRPC client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frontend.reference.parameters import Treatment, parameters
from model_repository.contract.codec import tensor
from model_repository.contract.tensors import INPUTS
from tests.build_engines.llama_cpp.reference import ScoreReference
from tests.build_engines.tiny_scorers import write_scorer
from tests.integration.api import CLASSIFY, QUEUE_FIELDS, RERANK, SCORE, Answer, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack

MODEL, ENSEMBLE, ALIAS = "tiny/cross-encoder", "tiny--cross-encoder", "my-scorer"
EXPECTED = ScoreReference.load("cross_encoder")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("scorer")
    checkpoint = write_scorer(folder / "checkpoint", "cross_encoder", EXPECTED.seed)
    artifact = build(folder, MODEL, "--checkpoint", str(checkpoint), "--precision", "f32", "--alias", ALIAS)
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


def test_scores_are_those_of_transformers_over_http_and_grpc(scorer: Stack) -> None:
    raw = [score for [score] in EXPECTED.with_f16_gelu]
    first, second = zip(*EXPECTED.pairs, strict=True)
    body = {"model": MODEL, "text_1": first, "text_2": second}
    answer = Api(scorer.url).post(SCORE, body).body
    assert [each["score"] for each in answer["data"]] == pytest.approx([1 / (1 + math.exp(-x)) for x in raw], abs=1e-3)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, EXPECTED.token_ids))
    for pair, expected in zip(EXPECTED.pairs, raw, strict=True):
        [found] = scorer.infer(ENSEMBLE, {"text_pair": tensor(INPUTS["text_pair"], *pair)})
        assert np.abs(found["embedding"] - expected).max() < 1e-3


def test_the_best_document_comes_first(scorer: Stack) -> None:
    documents = ["a green house", "the house runs", "the the"]
    body = {"model": MODEL, "query": "the red fox", "documents": documents, "return_documents": True}
    results = Api(scorer.url).post(RERANK, body).body["results"]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert [documents[each["index"]] for each in results] == [each["document"]["text"] for each in results]


# --- the table of fields ---------------------------------------------------------------------------------------------
QUERY, DOCUMENTS = "the red fox", ["a green house", "the house runs"]
BODIES: dict[str, dict[str, Any]] = {
    RERANK: {"query": QUERY, "documents": DOCUMENTS},
    SCORE: {"text_1": QUERY, "text_2": DOCUMENTS},
    CLASSIFY: {"input": DOCUMENTS},
}


def fields(treatment: Treatment) -> list[tuple[str, str]]:
    """Return the endpoint and the name of each field that is treated so."""
    rows = [row for row in parameters() if row.endpoint in BODIES and row.treatments["llama_cpp"] is treatment]
    return [(row.endpoint, row.name) for row in rows if row.name not in QUEUE_FIELDS]


def post(scorer: Stack, path: str, **fields: Any) -> Answer:
    return Api(scorer.url).post(path, {"model": MODEL} | BODIES[path] | fields)


def numbers(answer: Answer) -> list[float]:
    """Return the score of each pair or text, in the order of the body."""
    assert answer.status == 200, answer.body
    if "results" in answer.body:
        return [each["relevance_score"] for each in sorted(answer.body["results"], key=lambda each: each["index"])]
    return [each["score"] if "score" in each else each["probs"][0] for each in answer.body["data"]]


def _names_the_model(scorer: Stack, path: str) -> None:
    assert post(scorer, path, model=ALIAS).body["model"] == ALIAS


def _leaves_out_the_sigmoid(scorer: Stack, path: str) -> None:
    raw = numbers(post(scorer, path, use_activation=False))
    assert numbers(post(scorer, path)) == pytest.approx([1 / (1 + math.exp(-x)) for x in raw])


def _cuts_the_end(scorer: Stack, path: str) -> None:
    name = {RERANK: "documents", SCORE: "text_2", CLASSIFY: "input"}[path]
    short = post(scorer, path, **{name: ["a green"]})
    num_tokens = short.body["usage"]["prompt_tokens"]
    cut = post(scorer, path, **{name: ["a green house"]}, truncate_prompt_tokens=num_tokens)
    assert numbers(cut) == pytest.approx(numbers(short), abs=1e-6)
    assert cut.body["usage"]["prompt_tokens"] == num_tokens
    refused = post(scorer, path, **{name: ["a green house"]}, truncate_prompt_tokens=0)
    assert (refused.status, refused.error["param"]) == (400, "truncate_prompt_tokens")


def _is_scored(scorer: Stack, path: str) -> None:
    """Both endpoints have the score of each pair alone, and another one for the texts in the other order."""
    found = numbers(post(scorer, path))
    for document, score in zip(DOCUMENTS, found, strict=True):
        reranked = numbers(post(scorer, RERANK, query=QUERY, documents=[{"text": document}]))
        [turned] = numbers(post(scorer, SCORE, text_1=[document], text_2=QUERY))
        assert reranked == pytest.approx([score], abs=1e-6)
        assert abs(turned - score) > 1e-3


def _is_labelled(scorer: Stack, path: str) -> None:
    tokens = Api(scorer.url).post("/tokenize", {"model": MODEL, "prompt": DOCUMENTS[0]}).body["tokens"]
    first, second = numbers(post(scorer, path))
    assert abs(first - second) > 1e-3
    for form in (DOCUMENTS[0], tokens, [tokens]):
        assert numbers(post(scorer, path, input=form)) == pytest.approx([first], abs=1e-6)


def _keeps_the_best(scorer: Stack, path: str) -> None:
    [best, _] = post(scorer, path).body["results"]
    assert post(scorer, path, top_n=1).body["results"] == [best]


def _adds_the_texts(scorer: Stack, path: str) -> None:
    for each in post(scorer, path, return_documents=True).body["results"]:
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    assert all("document" not in each for each in post(scorer, path).body["results"])


PROOFS: dict[str, Callable[[Stack, str], None]] = {
    "model": _names_the_model,
    "use_activation": _leaves_out_the_sigmoid,
    "truncate_prompt_tokens": _cuts_the_end,
    "query": _is_scored,
    "documents": _is_scored,
    "text_1": _is_scored,
    "text_2": _is_scored,
    "input": _is_labelled,
    "top_n": _keeps_the_best,
    "return_documents": _adds_the_texts,
}


@pytest.mark.parametrize(("path", "name"), fields(Treatment.ENFORCED))
def test_an_enforced_field_has_an_effect(scorer: Stack, path: str, name: str) -> None:
    PROOFS[name](scorer, path)


@pytest.mark.parametrize("path", BODIES)
def test_fields_without_effect_are_logged_or_listed(scorer: Stack, path: str) -> None:
    assert (path, "user") in fields(Treatment.LOGGED) and (path, "cache_salt") in fields(Treatment.HINT)
    assert len(fields(Treatment.LOGGED) + fields(Treatment.HINT)) == 2 * len(BODIES)
    answer = post(scorer, path, user="u-1", cache_salt="a")
    assert answer.headers["x-ignored-params"] == "cache_salt"
    assert numbers(answer) == numbers(post(scorer, path))
