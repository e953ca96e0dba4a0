"""LoRA adapters in TensorRT-LLM: by numbers and paths, and within the limits of its start options."""

from __future__ import annotations

import itertools
import pkgutil
from typing import Any

from tensorrt_llm import __version__
from tensorrt_llm.executor import LoRARequest

from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.options import Backend, TensorRtLlmOptions
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.errors import InvalidRequest, Unsupported


def supports_adapters(config: EngineConfig, options: TensorRtLlmOptions) -> bool:
    """Whether TensorRT-LLM is started for adapters. An engine must have been built with at least one."""
    is_built_for_some = options.backend is Backend.PYTORCH or "lora_modules" in config.options
    return bool(config.adapters) or (config.adapter_root is not None and is_built_for_some)


def lora_config(config: EngineConfig, options: TensorRtLlmOptions) -> Any:
    """Return the PyTorch backend's start options for adapters, TensorRT-LLM's LoraConfig."""
    # Imported here: without adapters it is not needed, so its absence must not stop the model.
    make_config = pkgutil.resolve_name(release_of(__version__).lora_config)
    max_loras = len(config.adapters) + (0 if config.adapter_root is None else config.adapter_root.max_adapters)
    return make_config(
        lora_dir=[str(config.artifact_dir / path) for path in config.adapters.values()],
        max_lora_rank=options.lora_max_rank,
        lora_target_modules=list(options.lora_modules),
        max_loras=max_loras,
        max_cpu_loras=max_loras,
    )


class LoraRequests:
    """The adapters by name. TensorRT-LLM loads an adapter with a request for it.

    TensorRT-LLM keeps weights and KV cache blocks by an adapter's number, so a number is never used for two adapters.
    """

    def __init__(self, config: EngineConfig, options: TensorRtLlmOptions) -> None:
        self._options = options
        self._supports_adapters = supports_adapters(config, options)
        self.adapters: dict[str, Adapter] = {}  # those that requests may name
        self._requests: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}  # adapter key to number
        self._num_bytes: dict[str, int] = {}  # adapter key to the size of its files
        self._next_number = itertools.count(1)
        for name in sorted(config.adapters):
            self.add(name, Adapter.of_artifact(config.artifact_dir / config.adapters[name]))

    def of(self, name: str) -> Any:
        """Return TensorRT-LLM's name of an adapter; None for an empty name."""
        return self._requests[name] if name else None

    def check(self, adapter: Adapter) -> None:
        """Check an adapter against the start options.

        Raises:
            Unsupported: TensorRT-LLM was not started for adapters.
            InvalidRequest: it was started for other adapters.
        """
        if not self._supports_adapters:
            raise Unsupported("the engine was built without adapters: build it with one (--adapter)", "source")
        if adapter.rank > self._options.lora_max_rank:
            rule = f"at most {self._options.lora_max_rank}, for which the model was built"
            raise InvalidRequest(f"{adapter.source!r}: its rank is {adapter.rank}: {rule}", "source")
        foreign = sorted(set(adapter.modules) - set(self._options.lora_modules))
        if foreign:
            rule = f"expected some of {', '.join(self._options.lora_modules)}, for which the model was built"
            raise InvalidRequest(f"{adapter.source!r}: changes {', '.join(foreign)}: {rule}", "source")

    def request(self, name: str, adapter: Adapter) -> Any:
        """Return TensorRT-LLM's name of an adapter, which need not be offered yet."""
        number = self._numbers.setdefault(adapter.key, next(self._next_number))
        self._num_bytes[adapter.key] = adapter.num_bytes
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(adapter.path))

    @property
    def num_kept_bytes(self) -> int:
        """The size of all adapters since the start, if the release never frees one; else 0."""
        return sum(self._num_bytes.values()) if release_of(__version__).keeps_adapters else 0

    def add(self, name: str, adapter: Adapter) -> None:
        """Offer one more adapter."""
        self._requests[name] = self.request(name, adapter)
        self.adapters[name] = adapter

    def remove(self, name: str) -> None:
        del self.adapters[name], self._requests[name]
