from __future__ import annotations

from pathlib import Path

import pytest

from frontend.launcher.triton_server import DEFAULT_FRONTEND
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.fields import QueuedBody
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.reference.pages import filled
from frontend.reference.parameters import Treatment, parameters
from frontend.telemetry.definitions import UNKNOWN
from model_repository.contract import tensors
from model_repository.errors import OutputStreamNotOpen

DOCS = Path(__file__).parents[3] / "docs"
NUM_TABLES = {"parameters.md": 2, "tensors.md": 5, "metrics.md": 2, "settings.md": 1}
MODELS: dict[str, type[QueuedBody]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/v1/classify": ClassifyRequest,
}


@pytest.mark.parametrize("name", NUM_TABLES)
def test_the_tables_of_a_page_are_equal_to_the_code(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == NUM_TABLES[name]
    assert filled(page, DEFAULT_FRONTEND) == page, "run: python -m frontend reference docs"


def test_the_text_of_a_page_has_the_names_of_the_code() -> None:
    text = (DOCS / "tensors.md").read_text(encoding="utf-8") + (DOCS / "metrics.md").read_text(encoding="utf-8")
    stages = (f"MODEL__{tensors.OUTPUTS}", f"MODEL__{tensors.REQUESTS}")
    for name in (*stages, f"[{OutputStreamNotOpen.code}]", UNKNOWN):
        assert f"`{name}`" in text


@pytest.mark.parametrize("endpoint", MODELS)
def test_every_field_is_in_the_table_once(endpoint: str) -> None:
    names, model = [row.name for row in parameters() if row.endpoint == endpoint], MODELS[endpoint]
    assert sorted(names) == sorted([*model.model_fields, *model.refused, *model.hints])


def test_every_served_field_has_a_meaning_and_a_request_that_has_it() -> None:
    for row in parameters():
        if not set(row.treatments.values()) <= {Treatment.REFUSED, Treatment.HINT}:
            assert row.description, row.name
            assert row.name in row.body, f"{row.name} has no example"
