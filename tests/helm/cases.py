"""Values that the tests render: those of helm/ci, and of helm/examples."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from tests.helm.chart import CHART, Rendered, Values, render

CI = tuple(sorted((CHART / "ci").glob("*.yaml")))
EXAMPLES = tuple(sorted((CHART / "examples").glob("*.yaml")))
CASES = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (*CI, *EXAMPLES)}
# Of the examples that are written from the catalog, which differ in numbers only, one of each form.
SHAPES = (*(path.stem for path in CI), "mixed", "air-gapped", "llama3-1-405b-h100", "qwen2-5-7b-h200")


def case(name: str) -> Rendered:
    """Return what the values of helm/ci/NAME-values.yaml render to."""
    return render(values_of(name))


def values_of(name: str) -> Values:
    """Return the values of helm/ci/NAME-values.yaml, for the test to change."""
    return copy.deepcopy(CASES[f"{name}-values"])


def with_demo(**settings: Any) -> Values:
    """Return the values of one model, the demo model, with these settings."""
    return {"models": [{"name": "demo", **settings}]}


def with_gpu_model(**settings: Any) -> Values:
    """Return the values of one model with these settings. Its pod builds its engine on one H100."""
    model = {
        "name": "llama",
        "servedName": "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "engine": {"runtime": "tensorrt_llm"},
        "source": {"huggingface": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}},
        "gpus": {"perNode": 1, "profile": "h100"},
        "build": {"enabled": True},
    }
    return {"cache": {"type": "pvc"}, "models": [model | settings]}
