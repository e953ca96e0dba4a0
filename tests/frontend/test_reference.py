from __future__ import annotations

from pathlib import Path

import pytest

from frontend.openapi import openapi_document
from frontend.parameters import Treatment, parameters
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.fields import GenerationBody
from frontend.reference import pages
from model_repository.contract.tensors import PUBLIC_INPUTS, PUBLIC_OUTPUTS
from model_repository.engine.runtime import RUNTIMES

DOCS = Path(__file__).parents[2] / "docs"
MODELS: dict[str, type[GenerationBody]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}


@pytest.mark.parametrize("name", pages())
def test_a_page_is_equal_to_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run: python -m frontend reference docs"


@pytest.mark.parametrize("endpoint", MODELS)
def test_every_field_is_in_the_table_once(endpoint: str) -> None:
    names, model = [row.name for row in parameters() if row.endpoint == endpoint], MODELS[endpoint]
    assert sorted(names) == sorted([*model.model_fields, *model.refused, *model.hints])


def test_every_row_has_the_treatment_by_each_runtime() -> None:
    for row in parameters():
        assert row.treatments.keys() == RUNTIMES.keys()
        refused = {name for name, treatment in row.treatments.items() if treatment is Treatment.REFUSED}
        assert refused >= {name for name in RUNTIMES if row.needed - RUNTIMES[name].capabilities}


def test_every_served_field_has_a_meaning_and_a_request_that_has_it() -> None:
    for row in parameters():
        if not set(row.treatments.values()) <= {Treatment.REFUSED, Treatment.HINT}:
            assert row.description, row.name
            assert row.name in row.body, f"{row.name} has no example"


def test_the_description_for_machines_has_the_same_table() -> None:
    schemas = openapi_document()["components"]["schemas"]
    for row in parameters():
        properties = schemas[MODELS[row.endpoint].__name__]["properties"]
        if row.name in properties:
            assert properties[row.name]["x-runtimes"] == row.treatments


def test_every_tensor_is_on_its_page() -> None:
    page = pages()["tensors.md"]
    for spec in (*PUBLIC_INPUTS, *PUBLIC_OUTPUTS):
        assert f"| `{spec.name}` | {spec.datatype} |" in page
        assert spec.doc or spec.neutral, spec.name
