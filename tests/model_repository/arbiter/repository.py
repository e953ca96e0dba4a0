"""Repositories of the arbiter's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from model_repository.contract.tensors import ARBITER, LOADERS
from model_repository.model_parameters import PARAMETER, ModelParameters
from tests.model_repository.test_model_parameters import PARAMETERS


def parameters_of(name: str, **facts: Any) -> ModelParameters:
    return replace(PARAMETERS, model_id=name, requires={}, gpus=(), **{"memory_bytes": 6, **facts})


def write_model(repository: Path, parameters: ModelParameters) -> Path:
    """Write the configuration of a replica's public ensemble; return its path."""
    text = parameters.to_config()[PARAMETER].replace("\\", "\\\\").replace('"', '\\"')
    path = repository / parameters.ensemble / "config.pbtxt"
    path.parent.mkdir(parents=True, exist_ok=True)
    value = f'  value {{\n    string_value: "{text}"\n  }}\n'
    path.write_text(f'parameters {{\n  key: "{PARAMETER}"\n{value}}}\n', "utf-8")
    return path


def write_models(repository: Path, *models: ModelParameters) -> Path:
    """Write a repository that looks as if these could be served; return it."""
    for name in (ARBITER, *LOADERS):
        (repository / name).mkdir(parents=True)
    for model in models:
        write_model(repository, model)
    return repository
