"""The parameters that the tensorrt_llm runtime must honour are a committed list: to refuse one is a failure."""

from __future__ import annotations

import json
from pathlib import Path

from frontend.reference.parameters import Treatment, parameters
from model_repository.capabilities import Capability

MUST_MAP = Path(__file__).parents[3] / "data" / "tensorrt_llm_must_map.json"


def test_no_listed_parameter_is_refused() -> None:
    treatments = {(row.endpoint, row.name): row.treatments["tensorrt_llm"] for row in parameters()}
    listed = json.loads(MUST_MAP.read_text(encoding="utf-8"))
    refused = [
        (endpoint, name)
        for endpoint, names in listed.items()
        for name in names
        if treatments[endpoint, name] is Treatment.REFUSED
    ]
    assert refused == []


def test_everything_that_any_runtime_honours_is_listed_but_images_and_kept_prompts() -> None:
    listed = json.loads(MUST_MAP.read_text(encoding="utf-8"))
    served = {
        endpoint: sorted(
            row.name
            for row in parameters()
            if row.endpoint == endpoint
            and (not set(row.treatments.values()) <= {Treatment.REFUSED, Treatment.HINT} or row.needed)
            if row.name != "images" and Capability.PROMPT_CACHE not in row.needed
        )
        for endpoint in listed
    }
    assert listed == served
