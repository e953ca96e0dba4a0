"""Rerank, score and classify over HTTP: their forms, their numbers, and how a request fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from frontend.errors import ContextLengthExceeded, NotFinite
from model_repository.contract.output import Usage, VectorChunk
from model_repository.contract.request import GenerationRequest, PairPrompt, TextPrompt
from tests.fakes import FakeTriton, Script, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import CLASSIFICATION, RERANKING, SCORING
from tests.frontend.conftest import Serve

RERANK, SCORE, CLASSIFY = "/v1/rerank", "/v1/score", "/v1/classify"
RERANKER = served_model(pooling="rank", labels=("LABEL_0",))
JUDGE = served_model(pooling="rank", labels=("yes", "no"))
CLASSIFIER = served_model(pooling="rank", labels=("good", "bad", "none"))
DOCUMENTS = ["abc", "a", "abcde"]


def numbers(*values: float) -> Script:
    """Return the only chunk of a text or pair."""
    usage = Usage(num_input_tokens=7, num_output_tokens=0)
    packed = np.array(values, "<f4").tobytes()
    return [VectorChunk(usage=usage, embedding=packed)]


def by_length(request: GenerationRequest) -> Script:
    """Return the length of a pair's second text as its score."""
    assert isinstance(request.prompt, PairPrompt)
    return numbers(len(request.prompt.texts[1]))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


async def answered(serve: Serve, path: str, body: Mapping[str, Any], script: Any = by_length, **models: Any) -> Any:
    http = await serve(FakeTriton(script, models=[models.get("model", RERANKER)]))
    response = await http.post(path, json=body)
    assert response.status == 200, await response.text()
    return await response.json()


async def test_documents_come_back_with_the_best_one_first(serve: Serve) -> None:
    triton = FakeTriton(by_length, models=[RERANKER])
    http = await serve(triton)
    answer = await (await http.post(RERANK, json=RERANKING | {"documents": DOCUMENTS})).json()
    assert answer.pop("id").startswith("score-")
    assert answer == {
        "model": RERANKER.id,
        "results": [
            {"index": 2, "relevance_score": sigmoid(5)},
            {"index": 0, "relevance_score": sigmoid(3)},
            {"index": 1, "relevance_score": sigmoid(1)},
        ],
        "usage": {"prompt_tokens": 21, "total_tokens": 21},
    }
    assert {each.prompt for each in triton.requests} == {PairPrompt(("hi", text)) for text in DOCUMENTS}


@pytest.mark.parametrize("path", [RERANK, "/v2/rerank", "/rerank"])
async def test_top_n_documents_come_with_their_texts(serve: Serve, path: str) -> None:
    documents = ["abc", {"text": "a"}, {"text": "abcde", "title": "T"}]
    body = RERANKING | {"documents": documents, "top_n": 2, "return_documents": True}
    results = (await answered(serve, path, body))["results"]
    assert [(each["index"], each["document"]) for each in results] == [(2, {"text": "abcde"}), (0, {"text": "abc"})]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("a", "b", [("a", "b")]),
        ("a", ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a"], ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "b"], ["c", "d"], [("a", "c"), ("b", "d")]),
    ],
)
async def test_a_text_is_scored_with_each_other_one_or_one_by_one(
    serve: Serve, first: Any, second: Any, pairs: Sequence[tuple[str, str]]
) -> None:
    def script(request: GenerationRequest) -> Script:
        assert isinstance(request.prompt, PairPrompt) and len(request.prompt.texts) == 2
        first, second = request.prompt.texts
        return numbers(pairs.index((first, second)))

    answer = await answered(serve, SCORE, SCORING | {"text_1": first, "text_2": second}, script)
    expected = [{"index": n, "object": "score", "score": sigmoid(n)} for n in range(len(pairs))]
    assert (answer["object"], answer["data"]) == ("list", expected)


async def test_other_numbers_of_texts_are_refused(serve: Serve) -> None:
    http = await serve(FakeTriton(by_length, models=[RERANKER]))
    body = SCORING | {"text_1": ["a", "b"], "text_2": ["c"]}
    error = await error_of(await http.post(SCORE, json=body))
    assert (error["status"], error["param"]) == (400, "text_1")
    assert "2 texts for 1 of text_2: expected 1 or as many" in error["message"]


async def test_without_activation_the_scores_are_the_models_own(serve: Serve) -> None:
    body = SCORING | {"use_activation": False}
    [score] = (await answered(serve, SCORE, body, numbers(-3.5)))["data"]
    assert score["score"] == -3.5


@pytest.mark.parametrize("value", [-200.0, 200.0])
async def test_a_score_of_any_size_has_a_sigmoid(serve: Serve, value: float) -> None:
    [score] = (await answered(serve, SCORE, SCORING, numbers(value)))["data"]
    assert score["score"] == pytest.approx(math.exp(min(value, 0)), rel=1e-6)


async def test_the_score_of_a_judge_is_the_share_of_yes(serve: Serve) -> None:
    log_probabilities = math.log(0.3), math.log(0.1)
    [score] = (await answered(serve, SCORE, SCORING, numbers(*log_probabilities), model=JUDGE))["data"]
    assert score["score"] == pytest.approx(0.75, abs=1e-6)
    raw = SCORING | {"use_activation": False}
    [score] = (await answered(serve, SCORE, raw, numbers(*log_probabilities), model=JUDGE))["data"]
    assert score["score"] == pytest.approx(math.log(3), abs=1e-6)


async def test_a_text_gets_its_likeliest_label(serve: Serve) -> None:
    triton = FakeTriton(numbers(0.0, math.log(2), 0.0), models=[CLASSIFIER])
    http = await serve(triton)
    answer = await (await http.post(CLASSIFY, json=CLASSIFICATION)).json()
    [label] = answer["data"]
    assert label.pop("probs") == pytest.approx([0.25, 0.5, 0.25], abs=1e-6)
    assert label == {"index": 0, "label": "bad", "num_classes": 3}
    assert [each.prompt for each in triton.requests] == [TextPrompt("hi")]


@pytest.mark.parametrize(("use_activation", "expected"), [(None, sigmoid(2)), (False, 2.0)])
async def test_an_only_label_has_a_sigmoid(serve: Serve, use_activation: bool | None, expected: float) -> None:
    body = CLASSIFICATION | {"use_activation": use_activation}
    [label] = (await answered(serve, CLASSIFY, body, numbers(2)))["data"]
    assert label["probs"] == pytest.approx([expected])


@pytest.mark.parametrize(("path", "body"), [(RERANK, RERANKING), (SCORE, SCORING)])
async def test_a_pair_needs_a_model_with_one_score(serve: Serve, path: str, body: Mapping[str, Any]) -> None:
    http = await serve(FakeTriton(by_length, models=[CLASSIFIER]))
    error = await error_of(await http.post(path, json=body))
    assert (error["status"], error["param"]) == (400, "model")
    assert "this model has 3 labels" in error["message"]


async def test_a_judge_classifies_no_single_texts(serve: Serve) -> None:
    triton = FakeTriton(numbers(-1, -2), models=[JUDGE])
    http = await serve(triton)
    error = await error_of(await http.post(CLASSIFY, json=CLASSIFICATION))
    assert (error["status"], error["param"], triton.requests) == (400, "model", [])
    assert "this model judges pairs: use /v1/score" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (RERANK, RERANKING | {"documents": ["a", "long"]}, "documents[1]"),
        (RERANK, RERANKING | {"query": "long"}, "query"),
        (SCORE, SCORING | {"text_2": ["a", "long"]}, "text_2[1]"),
        (SCORE, SCORING | {"text_2": "long"}, "text_2"),
        (SCORE, SCORING | {"text_1": "long"}, "text_1"),
        (SCORE, SCORING | {"text_1": ["a", "long"], "text_2": ["a", "b"]}, "text_1[1]"),
        (CLASSIFY, CLASSIFICATION | {"input": ["a", "long"]}, "input[1]"),
    ],
)
async def test_the_error_of_one_text_names_the_longer_text_of_its_pair(
    serve: Serve, path: str, body: Mapping[str, Any], place: str
) -> None:
    def script(request: GenerationRequest) -> Script:
        prompt = request.prompt
        is_long = "long" in prompt.texts if isinstance(prompt, PairPrompt) else prompt == TextPrompt("long")
        return [ContextLengthExceeded("prompt: 9 tokens", param="prompt")] if is_long else numbers(1)

    http = await serve(FakeTriton(script, models=[RERANKER]))
    error = await error_of(await http.post(path, json=body))
    assert (error["status"], error["param"], error["message"]) == (400, place, f"{place}: 9 tokens")


async def test_a_score_that_is_not_finite_names_its_document(serve: Serve) -> None:
    """The order of all results was undefined."""

    def script(request: GenerationRequest) -> Script:
        assert isinstance(request.prompt, PairPrompt)
        return [NotFinite()] if "b" in request.prompt.texts else numbers(1)

    http = await serve(FakeTriton(script, models=[RERANKER]))
    error = await error_of(await http.post(RERANK, json=RERANKING | {"query": "long", "documents": ["a", "b"]}))
    assert (error["status"], error["code"], error["param"]) == (500, "not_finite", "documents[1]")


@pytest.mark.parametrize(
    ("texts", "place"),
    [({"documents": ["a", "a" * 2**12]}, "documents[1]"), ({"query": "a" * 2**12, "documents": ["a", "b"]}, "query")],
    ids=["document", "query"],
)
async def test_a_pair_that_is_too_long_for_any_tokenizer_is_not_sent(
    serve: Serve, texts: Mapping[str, Any], place: str
) -> None:
    triton = FakeTriton(by_length, models=[served_model(pooling="rank", labels=("a",), context_window=8)])
    http = await serve(triton)
    body = {**RERANKING, **texts}
    error = await error_of(await http.post(RERANK, json=body))
    assert (error["status"], error["param"], triton.requests) == (400, place, [])
    assert (await http.post(RERANK, json=body | {"truncate_prompt_tokens": -1})).status == 200
    assert {each.params.truncate_prompt_tokens for each in triton.requests} == {-1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RERANK, RERANKING | {"documents": []}, "documents"),
        (RERANK, RERANKING | {"documents": ["a"] * 2049}, "documents"),
        (RERANK, RERANKING | {"documents": ["a", ""]}, "documents[1].text"),
        (RERANK, RERANKING | {"query": "a" * 2**11, "documents": ["a"] * 2**11}, "documents"),
        (RERANK, RERANKING | {"top_n": 0}, "top_n"),
        (RERANK, RERANKING | {"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        (SCORE, SCORING | {"activation": False}, "activation"),
        (CLASSIFY, CLASSIFICATION | {"input": ""}, "input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_field_that_breaks_a_rule_is_named(
    serve: Serve, path: str, body: Mapping[str, Any], param: str
) -> None:
    triton = FakeTriton(by_length, models=[RERANKER])
    http = await serve(triton)
    error = await error_of(await http.post(path, json=body))
    assert (error["status"], error["param"], triton.requests) == (400, param, [])


async def test_a_document_of_another_type_is_refused_in_words_of_the_api(serve: Serve) -> None:
    http = await serve(FakeTriton(by_length, models=[RERANKER]))
    error = await error_of(await http.post(RERANK, json=RERANKING | {"documents": ["a", 5]}))
    assert error["param"] == "documents[1]"
    assert 'Input should be a text or {"text": ...}' in error["message"]


@pytest.mark.parametrize(
    ("fields", "tier", "at_the_engine"),
    [({}, None, 0), ({"priority": 1}, "flex", 1), ({"service_tier": "priority"}, "priority", -1)],
    ids=str,
)
@pytest.mark.parametrize(("path", "body"), [(RERANK, RERANKING), (SCORE, SCORING), (CLASSIFY, CLASSIFICATION)])
async def test_the_engine_gets_the_priority(
    serve: Serve, path: str, body: Mapping[str, Any], fields: Mapping[str, Any], tier: str | None, at_the_engine: int
) -> None:
    triton = FakeTriton(numbers(1), models=[RERANKER])
    http = await serve(triton)
    answer = await (await http.post(path, json={**body, **fields})).json()
    assert answer.get("service_tier") == tier
    assert [each.params.priority for each in triton.requests] == [at_the_engine]
