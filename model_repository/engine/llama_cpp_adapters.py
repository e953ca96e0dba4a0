"""The LoRA adapters of a llama.cpp model: by the names that requests have, and their weights by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyllama.llama import llama_cpp as llama

from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import InvalidRequest


class LlamaCppAdapters:
    """Loads adapters. What is loaded stays in memory as long as the model: llama.cpp's binding frees it with that only.

    So weights that come back, under whatever name, are not loaded twice, and how many there can be has a bound.

    Args:
        config: of the model.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.weights: dict[str, Any] = {}  # by the keys of adapters; also those that are offered no more
        self.num_bytes = 0  # of them
        self._by_name: dict[str, Adapter] = {}
        self._config = config

    @property
    def by_name(self) -> Mapping[str, Adapter]:
        """Those that requests may name."""
        return self._by_name

    def key_of(self, name: str) -> str:
        """Return the key of the weights that a name stands for; empty: none, for an empty name."""
        return self._by_name[name].key if name else ""

    def add(self, model: llama.LlamaModel, name: str, adapter: Adapter) -> None:
        """Load an adapter, unless its weights are there, and offer it. No step may be computed meanwhile.

        Raises:
            OSError, RuntimeError, ValueError, MemoryError: llama.cpp does not load it.
        """
        if adapter.key not in self.weights:
            self.weights[adapter.key] = model.lora_adapter_init(str(adapter.path))
            self.num_bytes += adapter.num_bytes
        self._by_name[name] = adapter

    def check_room(self, adapter: Adapter) -> None:
        """Check that there may be one more.

        Raises:
            InvalidRequest: so many were loaded already, one after the other.
        """
        root, num_loaded = self._config.adapter_root, len(self.weights) - len(self._config.adapters)
        if root is not None and adapter.key not in self.weights and num_loaded >= root.max_adapters:
            rule = (
                f"{num_loaded} were loaded since the model was (--max-adapters), which frees them when it is reloaded"
            )
            raise InvalidRequest(f"{adapter.source!r}: {rule}", "source")

    def remove(self, name: str) -> None:
        """Offer an adapter no more."""
        del self._by_name[name]
