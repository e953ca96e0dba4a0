"""Models as /v1/models shows them: each by its id, its aliases and its adapters' names."""

from __future__ import annotations

from collections.abc import Mapping

from frontend.protocol.answers import ModelCard, ModelList
from frontend.triton.models import ModelName


def model_card(name: ModelName) -> ModelCard:
    """Return a model under one of its names."""
    return {
        "id": name.asked,
        "object": "model",
        "created": name.model.created,
        "owned_by": name.model.owned_by,
        "root": name.model.id,
        "parent": name.model.id if name.lora_name else None,
        "max_model_len": name.model.context_window,
    }


def model_list(names: Mapping[str, ModelName]) -> ModelList:
    """Return every name under which something is served."""
    return {"object": "list", "data": [model_card(names[name]) for name in sorted(names)]}
