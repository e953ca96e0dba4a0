"""The LoRA adapters of a llama.cpp model: by the names in requests, and their weights by key."""

from __future__ import annotations

from typing import Any

from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.llama_cpp.library import llama
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import InvalidRequest


class LlamaCppAdapters:
    """Loads adapters. Loaded weights stay in memory with the model: llama.cpp's binding cannot free them alone.

    So the same weights are never loaded twice, under any name, and their number is limited.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.weights: dict[str, Any] = {}  # adapter key to weights, including removed adapters
        self.num_bytes = 0  # size of these weights
        self.by_name: dict[str, Adapter] = {}  # those that requests may name
        self._config = config

    def key_of(self, name: str) -> str:
        """Return the key of an adapter's weights; empty for an empty name."""
        return self.by_name[name].key if name else ""

    def add(self, model: llama.LlamaModel, name: str, adapter: Adapter) -> None:
        """Load an adapter, unless its weights are in memory, and offer it. No step may be computed at the same time.

        Raises:
            OSError, RuntimeError, ValueError, MemoryError: llama.cpp cannot load it.
        """
        if adapter.key not in self.weights:
            self.weights[adapter.key] = model.lora_adapter_init(str(adapter.path))
            self.num_bytes += adapter.num_bytes
        self.by_name[name] = adapter

    def check_room(self, adapter: Adapter) -> None:
        """Check that one more adapter may be loaded.

        Raises:
            InvalidRequest: the maximum was loaded since the model was loaded.
        """
        root, num_loaded = self._config.adapter_root, len(self.weights) - len(self._config.adapters)
        if root is not None and adapter.key not in self.weights and num_loaded >= root.max_adapters:
            rule = f"{num_loaded} were loaded since the model was (--max-adapters): reload the model to free them"
            raise InvalidRequest(f"{adapter.source!r}: {rule}", "source")

    def remove(self, name: str) -> None:
        """Offer an adapter no more; its weights stay."""
        del self.by_name[name]
