"""A test double of PeftModel, for the double of transformers. Like peft, it changes the model that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self


class PeftModel:
    """A model of transformers under an adapter."""

    def __init__(self, base: Any) -> None:
        self._base = base

    @classmethod
    def from_pretrained(cls, model: Any, folder: str) -> Self:
        """Add the adapter of a folder to a model."""
        assert model.adapter is None, "the model has an adapter already"
        model.adapter = Path(folder)
        return cls(model)

    def eval(self) -> Self:
        """Return it, without dropout."""
        return self

    def __call__(self, input_ids: Any) -> Any:
        return self._base(input_ids)

    def unload(self) -> Any:
        """Return the model without the adapter."""
        self._base.adapter = None
        return self._base
