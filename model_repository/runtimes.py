"""The table of runtimes, for builds, the engine stage and the reference."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from model_repository.capabilities import Capability

DEFAULT_RUNTIME = "llama_cpp"
NGRAM = "ngram"  # a way to draft tokens: by repetitions in prompt and completion
ADAPTER_FILE = "adapter.gguf"  # of llama_cpp
PROJECTOR = "mmproj.gguf"  # an artifact's file for llama_cpp: makes tokens of images

# Architectures of GGUF with scores of the last token, which llama.cpp makes probabilities (llama-graph.cpp).
WITH_SOFTMAX = ("qwen3", "qwen3vl")

_WHOLE = (r"\d+", "a whole number")


class UnknownRuntime(ValueError):
    """The configuration names an unknown runtime."""


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """A known runtime: its capabilities, its own options, and code by its name, MODULE:OBJECT, imported when used.

    `lost` returns the capabilities that a model lacks, by its options of the runtime.
    """

    target: str  # its class
    capabilities: frozenset[Capability]
    encoder: str = ""  # its class for models that embed; empty: it has none
    computes_on_cores: bool = False  # its threads take the cores that also send tokens
    takes_devices: bool = False  # those of --device, for the layers of --gpu-layers
    # Name to pattern and rule. Empty for tensorrt_llm: its builder checks its options.
    options: Mapping[str, tuple[str, str]] = MappingProxyType({})
    takes_llm_options: bool = False  # those of --llm-option
    lost: str = ""  # empty: no model lacks one
    unsure: frozenset[Capability] = frozenset()  # capabilities that some models lack: requests for them are hints
    speculative: frozenset[str] = frozenset()  # ways to draft tokens
    library: str = ""  # the Python package that computes; llama_cpp has several (system/llama_build.py)
    has_weights: bool = True  # a step takes time
    prepare: str = ""  # sets variables of the environment before the library is imported
    needs_gpus: bool = False  # each model has its own; builds choose the runtime if its library is installed
    reads_gguf: bool = False  # the weights are GGUF files; a build converts a checkpoint to one
    adapter_file: str = ""  # the file that it loads, in an adapter's folder; empty: it loads the folder
    builder: str = "build_engines.commands.build_cpu:CpuBuild"  # a builder's class, for `conch build`
    adapter_writer: str = ""  # a function that converts an adapter, for `conch adapter`; empty: it takes no adapters

    def capabilities_with(self, options: Mapping[str, str]) -> frozenset[Capability]:
        """Return the capabilities of a model with these options."""
        lost: frozenset[Capability] = pkgutil.resolve_name(self.lost)(options) if self.lost else frozenset()
        return self.capabilities - lost


RUNTIMES = {
    "llama_cpp": RuntimeEntry(
        "model_repository.engine.llama_cpp.runtime:LlamaCppRuntime",
        frozenset(Capability),
        encoder="model_repository.engine.llama_cpp.encoder:LlamaCppEncoder",
        options={"contexts": (r"0*[1-9]\d*", "a whole number from 1")},
        speculative=frozenset({NGRAM}),
        reads_gguf=True,
        adapter_file=ADAPTER_FILE,
        adapter_writer="build_engines.llama_cpp.lora:write_served",
        computes_on_cores=True,
        takes_devices=True,
    ),
    # Its tokens are fixed, so every way of sampling gives the requested result. Other capabilities would not show.
    "synthetic": RuntimeEntry(
        "model_repository.engine.synthetic:SyntheticRuntime",
        frozenset(
            {
                Capability.TEMPERATURE,
                Capability.TOP_P,
                Capability.TOP_K,
                Capability.MIN_P,
                Capability.SEED,
                Capability.RESUME,
            }
        ),
        has_weights=False,
        options={"itl_ms": (r"\d+(\.\d+)?", "a number"), "num_tokens": _WHOLE, "prefill_tokens": _WHOLE},
    ),
    "tensorrt_llm": RuntimeEntry(
        "model_repository.engine.tensorrt_llm.runtime:TensorRtLlmRuntime",
        frozenset(Capability) - {Capability.PROMPT_CACHE},
        takes_llm_options=True,
        unsure=frozenset({Capability.SEED}),
        lost="model_repository.engine.tensorrt_llm.options:lost_capabilities",
        library="tensorrt_llm",
        prepare="model_repository.engine.tensorrt_llm.mpi:prepare",
        needs_gpus=True,
        builder="build_engines.commands.build_tensorrt_llm:TensorRtLlmBuild",
        adapter_writer="build_engines.tensorrt_llm.lora:write_served",
    ),
}
