from __future__ import annotations

from pathlib import Path

import pytest

from frontend.launcher.triton_server import DEFAULT_FRONTEND
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.fields import QueuedBody
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.reference.pages import pages
from frontend.reference.parameters import Treatment, parameters

DOCS = Path(__file__).parents[3] / "docs"
PAGES = pages(DEFAULT_FRONTEND)
MODELS: dict[str, type[QueuedBody]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/v1/classify": ClassifyRequest,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_equal_to_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name], "run: python -m frontend reference docs"


@pytest.mark.parametrize("endpoint", MODELS)
def test_every_field_is_in_the_table_once(endpoint: str) -> None:
    names, model = [row.name for row in parameters() if row.endpoint == endpoint], MODELS[endpoint]
    assert sorted(names) == sorted([*model.model_fields, *model.refused, *model.hints])


def test_every_served_field_has_a_meaning_and_a_request_that_has_it() -> None:
    for row in parameters():
        if not set(row.treatments.values()) <= {Treatment.REFUSED, Treatment.HINT}:
            assert row.description, row.name
            assert row.name in row.body, f"{row.name} has no example"
