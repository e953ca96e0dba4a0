"""The options of a TensorRT-LLM runtime: texts in the manifest, checked values here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import UnionType
from typing import Any, Self, get_args, get_type_hints

from model_repository.capabilities import Capability
from model_repository.engine.tensorrt_llm.llm_options import SPECULATION
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.system.machine import installed_version

# An engine keeps the logits of all requests with log probabilities in pinned memory of the machine.
MAX_LOGITS_BYTES = 8 << 30
LOGIT_BYTES = 4  # float32
# KV cache manager V2 also keeps KV tokens in pinned memory: this share of the container's, divided by its GPUs.
HOST_CACHE_SHARE = 0.5
_MAX_UTILIZATION = "scheduler_policy=max_utilization"
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


class Backend(StrEnum):
    """The executor of the model."""

    ENGINE = "engine"  # a compiled TensorRT engine, for TensorRT-LLM up to 1.2
    PYTORCH = "pytorch"  # a checkpoint in Hugging Face's layout


class SchedulerPolicy(StrEnum):
    """Admission to the batch."""

    GUARANTEED_NO_EVICT = "guaranteed_no_evict"  # sequences that can run to their end
    MAX_UTILIZATION = "max_utilization"  # sequences that fit now; some may have to start again later


class GuidedDecoding(StrEnum):
    """The source of the masks of a structured output."""

    LLGUIDANCE = "llguidance"  # our masks, exact for every kind of structured output
    XGRAMMAR = "xgrammar"  # TensorRT-LLM's masks for the kinds that it knows, ours for the others
    NATIVE_LLGUIDANCE = "native_llguidance"  # TensorRT-LLM's masks from our grammars; ours for the stages' own grammars


class KVCacheManager(StrEnum):
    """TensorRT-LLM's code that keeps the KV cache, from release 1.3 on."""

    V1 = "v1"  # GPU memory alone
    V2 = "v2"  # also pinned memory of the machine; sequences that do not fit are paused


class Aborts(StrEnum):
    """The moment from which TensorRT-LLM is told that a client has left. Until then its request keeps its place."""

    ALWAYS = "always"
    AFTER_PREFILL = "after_prefill"  # with the first token
    NEVER = "never"


class KVCacheDtype(StrEnum):
    """Of the KV cache of the PyTorch backend; an engine has its own."""

    AUTO = "auto"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtLlmOptions:
    """The options of the runtime. None: TensorRT-LLM's own default."""

    backend: Backend = Backend.ENGINE
    tp_size: int = 1  # GPUs that share each layer
    pp_size: int = 1  # groups of GPUs that hold one part of the layers each
    max_batch_size: int | None = None  # None: the engine stage's max_sequences
    max_num_tokens: int | None = None  # tokens of one step
    kv_cache_fraction: float = 0.9  # share of the GPU memory that the weights leave
    kv_cache_dtype: KVCacheDtype = KVCacheDtype.AUTO
    kv_cache_manager: KVCacheManager = KVCacheManager.V1
    scheduler_policy: SchedulerPolicy = SchedulerPolicy.GUARANTEED_NO_EVICT
    overlap_scheduler: bool = False  # a step starts before the tokens of the last one are known; no logits processors
    stream_interval: int = 1  # tokens between two updates of a stream
    cuda_graph_mode: bool = False  # of an engine; the PyTorch backend has CUDA graphs without it
    chunked_prefill: bool = True
    aborts: Aborts | None = None  # None: as the release is trusted
    block_reuse: bool = True  # prompts with the same beginning share KV cache blocks
    logprobs: bool = True  # an engine keeps the logits of drawn tokens only if started with this option
    iteration_stats: bool = True  # the PyTorch backend makes statistics of each step; an engine always does
    prompt_logprobs: bool | None = None  # None: only with the PyTorch backend; an engine must be built for it
    guided_decoding: GuidedDecoding = GuidedDecoding.LLGUIDANCE
    lora_max_rank: int = 64
    lora_modules: tuple[str, ...] = ("attn_q", "attn_k", "attn_v")  # TensorRT-LLM's names
    trust_remote_code: bool = False
    llm_options: Mapping[str, Any] = field(default_factory=dict)  # further keywords of LLM: see llm_options.py

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Read the options of a manifest.

        Raises:
            ValueError: names the option, its value and the rule.
        """
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in OPTIONS:
                raise ValueError(f"option {name}: expected one of {', '.join(OPTIONS)}")
            read, rule = OPTIONS[name]
            try:
                values[name] = read(text)
            except ValueError as exc:
                raise ValueError(f"option {name}={text}: must be {rule}") from exc
        options = cls(**values)
        for name, (backend, neutral, reason) in _OF_ONE_BACKEND.items():
            if options.backend is not backend and getattr(options, name) not in neutral:
                raise ValueError(f"option {name}={texts[name]}: only with backend={backend}{reason}")
        options._check()
        return options

    def _check(self) -> None:
        """Refuse options that would be accepted, and followed wrongly."""
        if self.pausing_option and self.guided_decoding is not GuidedDecoding.LLGUIDANCE:
            raise ValueError(  # TensorRT-LLM issue 18891
                f"option guided_decoding={self.guided_decoding}: not with {self.pausing_option}, "
                "where a sequence that starts again would begin its structured output again"
            )
        if self.pausing_option == _MAX_UTILIZATION and self.pp_size > 1:
            raise ValueError(  # TensorRT-LLM issue 18115
                f"option {_MAX_UTILIZATION}: not with pp_size={self.pp_size}, "
                "where paused sequences would keep their KV cache, so that no sequence could go on"
            )
        if self.pausing_option and self.aborts is Aborts.NEVER:
            raise ValueError(
                f"option aborts=never: not with {self.pausing_option}, where an abort ends completed answers"
            )

    @property
    def pausing_option(self) -> str | None:
        """The option with which the PyTorch backend pauses sequences, and computes them again later; None: it does not.

        Source: KVCacheV2Scheduler in tensorrt_llm/_torch/pyexecutor/scheduler/scheduler_v2.py, which has one policy.
        """
        if self.kv_cache_manager is KVCacheManager.V2:
            return "kv_cache_manager=v2"
        is_pausing = self.backend is Backend.PYTORCH and self.scheduler_policy is SchedulerPolicy.MAX_UTILIZATION
        return _MAX_UTILIZATION if is_pausing else None

    @property
    def has_statistics(self) -> bool:
        """Whether TensorRT-LLM's statistics of steps can be read.

        An engine on one GPU that returns logits runs inside this process, and only a worker process serves them.

        Source: return_logits in 1.2.1/_modules/tensorrt_llm/llmapi/llm.html (branch gh-pages), and `create` in
        tensorrt_llm/executor/executor.py.
        """
        if self.backend is Backend.PYTORCH:
            return self.iteration_stats
        return self.tp_size * self.pp_size > 1 or not (self.logprobs or self.has_prompt_logprobs)

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether the logits of prompt tokens are available."""
        return self.backend is Backend.PYTORCH if self.prompt_logprobs is None else self.prompt_logprobs

    @property
    def without_logits_processors(self) -> str | None:
        """The option with which logits processors do not work; None: they do."""
        if self.overlap_scheduler:
            return "overlap_scheduler=true"
        return SPECULATION if SPECULATION in self.llm_options else None


_NO_NATIVE_MASKS = (GuidedDecoding.LLGUIDANCE, GuidedDecoding.XGRAMMAR)
_QUANTIZED = "; the KV cache of an engine is decided when its checkpoint is quantized"
# Options that one backend alone follows: the backend, the values that change nothing with the other one, and a reason.
_OF_ONE_BACKEND: Mapping[str, tuple[Backend, tuple[object, ...], str]] = {
    "cuda_graph_mode": (Backend.ENGINE, (False,), ""),
    "guided_decoding": (Backend.PYTORCH, _NO_NATIVE_MASKS, ""),
    "iteration_stats": (Backend.PYTORCH, (True,), "; an engine always makes statistics"),
    "kv_cache_dtype": (Backend.PYTORCH, (KVCacheDtype.AUTO,), _QUANTIZED),
    "kv_cache_manager": (Backend.PYTORCH, (KVCacheManager.V1,), ""),
    "overlap_scheduler": (Backend.PYTORCH, (False,), ""),
    "stream_interval": (Backend.PYTORCH, (1,), ""),
}


def lost_capabilities(options: Mapping[str, str]) -> frozenset[Capability]:
    """Return the capabilities that a model with these options lacks, with the installed release."""
    own = TensorRtLlmOptions.of(options)
    lost = NEED_LOGITS_PROCESSORS if own.without_logits_processors else frozenset()
    if own.backend is Backend.ENGINE:
        return lost | {Capability.IMAGES}
    return lost if release_of(installed_version("tensorrt_llm")).honours_seed else lost | {Capability.SEED}


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(re.fullmatch(r"\w+", name) for name in names):
        raise ValueError(text)
    return names


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


# By an option's type: its reader, which raises ValueError, and the rule.
_READERS: Mapping[object, tuple[Callable[[str], object], str]] = {
    int: (_positive, "a whole number above 0"),
    float: (_fraction, "a number above 0 and up to 1"),
    bool: (_switch, "true or false"),
    tuple[str, ...]: (_names, "TensorRT-LLM's names of modules, with commas between them"),
    Mapping[str, Any]: (_object, "a JSON object"),
}


def _reader(kind: Any) -> tuple[Callable[[str], object], str]:
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind  # T | None
    return _READERS[kind] if kind in _READERS else (kind, " or ".join(kind))


OPTIONS = {name: _reader(kind) for name, kind in get_type_hints(TensorRtLlmOptions).items()}
