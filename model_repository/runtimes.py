"""The table of runtimes, for builds, the engine stage and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model_repository.capabilities import Capability

NGRAM = "ngram"  # a way to draft tokens: by repetitions in prompt and completion
PROJECTOR = "mmproj.gguf"  # an artifact's file for llama_cpp: makes tokens of images

# Architectures of GGUF with scores of the last token, which llama.cpp makes probabilities (llama-graph.cpp).
WITH_SOFTMAX = ("qwen3", "qwen3vl")


class UnknownRuntime(ValueError):
    """The configuration names an unknown runtime."""


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """A known runtime: its class, its capabilities, and its own options.

    `lost_with` names the capabilities that an option, NAME=VALUE, removes.

    `max_sending_share` is the share of each core's time for sending tokens (see `Emitter`). It is small if the sending
    cores also compute.

    `max_steps_ahead` is the number of steps that the engine may make while a batch is sent. Then it waits, so that
    clients get few tokens at once. None: it never waits, since its steps take longer than sending in any case.
    """

    target: str
    capabilities: frozenset[Capability]
    encoder: str = ""  # its class for models that embed; empty: it has none
    max_sending_share: float = 0.25
    max_steps_ahead: int | None = 7
    options: frozenset[str] = frozenset()
    lost_with: Mapping[str, frozenset[Capability]] = field(default_factory=dict)
    speculative: frozenset[str] = frozenset()  # ways to draft tokens

    def capabilities_with(self, options: Mapping[str, str]) -> frozenset[Capability]:
        """Return the capabilities of a model with these options."""
        return self.capabilities.difference(
            *(self.lost_with.get(f"{name}={value}", ()) for name, value in options.items())
        )


# Only logits processors enforce these. Some structured outputs need them too; TensorRtLlmRuntime refuses those.
NEED_LOGITS_PROCESSORS = frozenset(
    {
        Capability.ALLOWED_TOKEN_IDS,
        Capability.BAD_WORDS,
        Capability.FREQUENCY_PENALTY,
        Capability.MIN_P,
        Capability.MIN_TOKENS,
        Capability.MIROSTAT,
        Capability.PRESENCE_PENALTY,
        Capability.REPETITION_PENALTY,
        Capability.THINKING_BUDGET,
    }
)

RUNTIMES = {
    "llama_cpp": RuntimeEntry(
        "model_repository.engine.llama_cpp.runtime:LlamaCppRuntime",
        frozenset(Capability),
        encoder="model_repository.engine.llama_cpp.encoder:LlamaCppEncoder",
        options=frozenset({"contexts"}),
        speculative=frozenset({NGRAM}),
        max_sending_share=0.002,  # really 1.5 %: beside computing threads a batch costs seven times the emitter's costs
        max_steps_ahead=None,
    ),
    # Its tokens are fixed, so every way of sampling gives the requested result. Other capabilities would not show.
    "synthetic": RuntimeEntry(
        "model_repository.engine.synthetic:SyntheticRuntime",
        frozenset({Capability.TEMPERATURE, Capability.TOP_P, Capability.TOP_K, Capability.MIN_P, Capability.SEED}),
        options=frozenset({"itl_ms", "num_tokens", "prefill_tokens"}),
    ),
    "tensorrt_llm": RuntimeEntry(
        "model_repository.engine.tensorrt_llm.runtime:TensorRtLlmRuntime",
        frozenset(Capability),
        options=frozenset(
            {
                "aborts",
                "backend",
                "block_reuse",
                "chunked_prefill",
                "cuda_graph_mode",
                "guided_decoding",
                "iteration_stats",
                "kv_cache_dtype",
                "kv_cache_fraction",
                "kv_cache_manager",
                "llm_options",
                "logprobs",
                "lora_max_rank",
                "lora_modules",
                "max_batch_size",
                "max_num_tokens",
                "overlap_scheduler",
                "pp_size",
                "prompt_logprobs",
                "scheduler_policy",
                "stream_interval",
                "tp_size",
                "trust_remote_code",
            }
        ),
        lost_with={
            "backend=engine": frozenset({Capability.IMAGES}),
            "backend=pytorch": frozenset({Capability.SEED}),  # unless the release honours it: see releases.py
            "overlap_scheduler=true": NEED_LOGITS_PROCESSORS,
        },
    ),
}
