"""Requests for scores to generation requests, and the model's numbers to the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from frontend.errors import UnsupportedValue, shown
from frontend.json_pieces import lazy_list
from frontend.protocol.answers import (
    Classification,
    Classifications,
    RankedDocument,
    Ranking,
    Score,
    Scores,
)
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest, ScoringBody
from frontend.translate.embeddings import EncoderReply, inputs_to_requests, place_of, prompt_to_request
from frontend.translate.requests import check_prompt_size
from frontend.triton.models import ModelName
from model_repository.contract.output import VectorChunk
from model_repository.contract.request import GenerationRequest, PairPrompt
from model_repository.model_parameters import JUDGEMENTS

type Numbers = npt.NDArray[np.float64]


def pairs_to_requests(
    body: RerankRequest | ScoreRequest, name: ModelName, request_id: str = ""
) -> list[GenerationRequest]:
    """Return a request for each pair.

    Args:
        request_id: for logs.

    Raises:
        UnsupportedValue: the model has several scores for a pair.
        ContextLengthExceeded: a pair is longer than the context window.
    """
    labels = name.model.parameters.labels
    if len(labels) > 1 and labels != JUDGEMENTS:
        rule = f"this model has {len(labels)} labels ({shown(', '.join(labels))}), and a pair needs one score"
        raise UnsupportedValue(f"model={shown(body.model)}: {rule}: use /v1/classify", param="model")
    requests = []
    for index, pair in enumerate(body.pairs()):
        if body.truncate_prompt_tokens is None:
            check_prompt_size("".join(pair), place_of_longer(body, pair, index), name.model)
        requests.append(prompt_to_request(PairPrompt(pair), body.truncate_prompt_tokens, request_id))
    return requests


def texts_to_requests(body: ClassifyRequest, name: ModelName, request_id: str = "") -> list[GenerationRequest]:
    """Return a request for each text to classify.

    Args:
        request_id: for logs.

    Raises:
        UnsupportedValue: the model judges pairs, and a text alone would have numbers without a meaning.
        ContextLengthExceeded: a text is longer than the context window.
    """
    if name.model.parameters.labels == JUDGEMENTS:
        raise UnsupportedValue(f"model={shown(body.model)}: this model judges pairs: use /v1/score", param="model")
    return inputs_to_requests(body, name, request_id)


def place_of_longer(body: RerankRequest | ScoreRequest, pair: tuple[str, str], index: int) -> str:
    """Return the place in the body of a pair's longer text, which makes the pair too long."""
    is_first = len(pair[0]) > len(pair[1])
    if isinstance(body, RerankRequest):
        return "query" if is_first else f"documents[{index}]"
    return place_of("text_1", body.text_1, index) if is_first else place_of("text_2", body.text_2, index)


def place_of_second(body: RerankRequest | ScoreRequest, index: int) -> str:
    """Return the place in the body of a pair's second text, which tells it from most others."""
    return f"documents[{index}]" if isinstance(body, RerankRequest) else place_of("text_2", body.text_2, index)


class _Reply[Request: ScoringBody](EncoderReply[Request]):
    def __init__(self, body: Request, name: ModelName) -> None:
        super().__init__(body, name, "score")

    def _scores(self, chunks: Sequence[VectorChunk]) -> list[float]:
        return [_score(_numbers(chunk), has_activation=self._body.has_activation) for chunk in chunks]


class RerankReply(_Reply[RerankRequest]):
    """Writes the answer to one rerank request."""

    def whole(self, chunks: Sequence[VectorChunk]) -> Ranking:
        """Return the documents, the best one first."""
        scores, documents = self._scores(chunks), self._body.documents
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._body.top_n]

        def ranked(index: int) -> RankedDocument:
            result: RankedDocument = {"index": index, "relevance_score": scores[index]}
            if self._body.return_documents:
                result["document"] = {"text": documents[index].text}
            return result

        return {**self._shared(chunks), "results": lazy_list(lambda: map(ranked, best))}


class ScoreReply(_Reply[ScoreRequest]):
    """Writes the answer to one score request."""

    def whole(self, chunks: Sequence[VectorChunk]) -> Scores:
        """Return the scores in the order of the pairs."""
        data: list[Score] = [
            {"index": index, "object": "score", "score": score} for index, score in enumerate(self._scores(chunks))
        ]
        return {**self._shared(chunks), "object": "list", "created": int(time.time()), "data": data}


class ClassifyReply(_Reply[ClassifyRequest]):
    """Writes the answer to one classify request."""

    def whole(self, chunks: Sequence[VectorChunk]) -> Classifications:
        """Return the labels in the order of the inputs."""
        data = lazy_list(lambda: (self._classification(index, _numbers(chunk)) for index, chunk in enumerate(chunks)))
        return {**self._shared(chunks), "object": "list", "created": int(time.time()), "data": data}

    def _classification(self, index: int, numbers: Numbers) -> Classification:
        label = self._name.model.parameters.labels[numbers.argmax()]
        if self._body.has_activation:
            numbers = np.exp(numbers - np.logaddexp.reduce(numbers)) if len(numbers) > 1 else _sigmoid(numbers)
        return {"index": index, "label": label, "probs": numbers.tolist(), "num_classes": len(numbers)}


def _numbers(chunk: VectorChunk) -> Numbers:
    return np.frombuffer(chunk.embedding, "<f4").astype(np.float64)


def _score(numbers: Numbers, *, has_activation: bool) -> float:
    """Return the score of a pair: the model's only number, or of a judge the logarithm of the odds of yes."""
    score = numbers[:1] - numbers[1:2] if len(numbers) > 1 else numbers
    return float((_sigmoid(score) if has_activation else score)[0])


def _sigmoid(numbers: Numbers) -> Numbers:
    sigmoid: Numbers = np.exp(np.minimum(numbers, 0)) / (1 + np.exp(-np.abs(numbers)))
    return sigmoid
