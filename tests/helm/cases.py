"""Values that the tests render: those of helm/ci, of helm/examples, and of each model of the catalog."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from helm.generate import examples as generated
from tests.helm.chart import CHART, Rendered, Values, render

CI = tuple(sorted((CHART / "ci").glob("*.yaml")))
EXAMPLE_FILES = tuple(sorted((CHART / "examples").glob("*.yaml")))
_TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (*CI, *EXAMPLE_FILES)}
CASES = {Path(name).stem: yaml.safe_load(text) for name, text in {**_TEXTS, **generated.examples()}.items()}
# Without most examples of the catalog: these differ only in numbers, so one of each form is enough.
SHAPES = (*(path.stem for path in CI), "mixed", "air-gapped", "retrieval", "llama3-1-405b-h100", "qwen2-5-7b-h200")


def case(name: str) -> Rendered:
    """Return what the values of helm/ci/NAME-values.yaml render to."""
    return render(values_of(name))


def models_of(name: str) -> list[dict[str, Any]]:
    """Return the models of a case, each with its name."""
    models = CASES[name].get("models", [{"name": "demo"}])
    return [{"name": key, **model} for key, model in models.items()] if isinstance(models, dict) else models


def values_of(name: str) -> Values:
    """Return the values of helm/ci/NAME-values.yaml, for the test to change."""
    return copy.deepcopy(CASES[f"{name}-values"])


def with_named_secrets(values: Values) -> Values:
    """Return the values with names for the Secrets that the chart would make with random keys."""
    frontend = {"auth": {"existingSecret": "api-keys"}} | values.get("frontend", {})
    return values | {"tritonKey": {"existingSecret": "triton-key"}, "frontend": frontend}


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
