"""A model of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import resources
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from build_engines.architecture import CHECKED, Architecture, Count, Flag
from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu
from build_engines.listed_classes import releases_with
from build_engines.parallelism import Parallelism, broken_rule
from build_engines.serving import Serving, check_id
from model_repository.engine.tensorrt_llm.options import Backend, TensorRtLlmOptions
from model_repository.model_facts import Pooling, Task
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tokenizer.fill_in_middle import FAMILIES
from model_repository.tool_formats import TOOL_FORMATS

CHECKPOINT_TEMPLATE = "checkpoint"
CHAT_TEMPLATES = resources.files("build_engines").joinpath("chat_templates")

TokenId = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(min_length=1)]
GgufReference = Annotated[str, Field(pattern=r"^[^/:@\s]+/[^/:@\s]+:[^/:@\s]+$")]  # OWNER/NAME:VARIANT of the hub
HubId = Annotated[str, Field(pattern=r"^[^/:@\s]+/[^/:@\s]+$")]  # OWNER/NAME of the hub


class Family(StrEnum):
    """The recipe that turns a checkpoint into an engine."""

    LLAMA = "llama"
    GEMMA = "gemma"
    QWEN = "qwen"
    DEEPSEEK_V2 = "deepseek_v2"


class Precision(StrEnum):
    """Number format of an engine's matrices."""

    BF16 = "bf16"
    F16 = "f16"
    FP8 = "fp8"  # embeddings, head and norms stay at 16 bit
    NVFP4 = "nvfp4"  # the same parts stay; the others have 4 bits, and a scale in FP8 for each 16 values
    MXFP4 = "mxfp4"  # experts alone: 4 bits, and a scale of a byte for each 32 values

    @property
    def num_bytes(self) -> float:
        """Bytes of one value."""
        return {Precision.FP8: 1, Precision.NVFP4: 0.5 + 1 / 16, Precision.MXFP4: 0.5 + 1 / 32}.get(self, 2)

    @property
    def is_quantized(self) -> bool:
        """Whether it has fewer than 16 bits."""
        return self in (Precision.FP8, Precision.NVFP4, Precision.MXFP4)

    def runs_on(self, gpu: Gpu) -> bool:
        """Whether TensorRT-LLM has kernels for it: FP8 from Ada, MXFP4 from Hopper, NVFP4 from Blackwell."""
        return gpu.compute_capability >= {Precision.FP8: 89, Precision.MXFP4: 90, Precision.NVFP4: 100}.get(self, 0)


class Fp8Method(StrEnum):
    """The origin of FP8 matrices."""

    CALIBRATED = "calibrated"  # scales are measured on sample texts, while the GPUs of a node hold the 16-bit model
    ROWWISE = "rowwise"  # the converter computes a scale for each row, one matrix at a time on a GPU
    READY = "ready"  # the checkpoint has them


class TokenizerKind(StrEnum):
    """The kind of the vocabulary."""

    BYTE_LEVEL_BPE = "byte-level BPE"
    SENTENCEPIECE = "SentencePiece"
    SENTENCEPIECE_BPE = "SentencePiece BPE"


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class FillInMiddleTokens:
    """The tokens before the prefix, before the suffix and before the middle."""

    prefix: Text
    suffix: Text
    middle: Text

    def __post_init__(self) -> None:
        if not any((self.prefix, self.suffix, self.middle) == (it.prefix, it.suffix, it.middle) for it in FAMILIES):
            known = "; ".join(f"{family.prefix} {family.suffix} {family.middle}" for family in FAMILIES)
            raise ValueError(f"prefix: {self.prefix}: the tokenizer stage knows these families: {known}")


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class ModelEntry:
    """A model that can be planned and built."""

    model_id: Text  # the repository on the Hugging Face hub
    aliases: tuple[Text, ...] = ()
    is_older: Flag = False  # listed after the models of today
    family: Family | None = None  # None: it has no engine
    architecture: Architecture
    gguf: GgufReference | None = None  # for a CPU; None: the checkpoint is converted
    context_window: Count
    pooling: Pooling | None = None  # None: the model generates
    max_seq_len: Count | None = None  # limit of the engine, if it is below the context window
    default_max_seq_len: Count | None = None  # planned by default; None: the limit
    default_max_batch_size: Count | None = None  # planned by default; None: the planner's default
    tokenizer_kind: TokenizerKind | None = None
    bos_token_id: TokenId | None = None  # None: the tokenizer adds no BOS
    eos_token_ids: tuple[TokenId, ...] = ()  # the first is that of the tokenizer
    chat_template: Text = CHECKPOINT_TEMPLATE  # or the name of a shipped one
    has_system_role: Flag = True
    tool_call_format: str = ""  # empty: unknown
    reasoning_format: str = ""  # of thinking; empty: it does not think
    sampling: Mapping[str, int | float] = Field(default_factory=dict)  # the author's
    min_dimensions: Count | None = None  # of a model that embeds
    fill_in_middle: FillInMiddleTokens | None = None
    license: Text
    is_gated: Flag = False
    precisions: Annotated[tuple[Precision, ...], Field(min_length=1)]  # the first is the default
    # Public checkpoints of fewer bits than the model's own, which TensorRT-LLM's PyTorch backend loads.
    ready_checkpoints: Mapping[Precision, HubId] = Field(default_factory=dict)
    has_fp8_kv_cache: Flag = True  # FP8 engines have one
    gpu_architectures: tuple[Text, ...] = ()  # those with kernels for it; empty: any
    has_pipeline_parallelism: Flag = True
    # By the key of the GPU: the layout that is planned without --gpus and --nodes.
    presets: Mapping[str, Mapping[Precision, Parallelism]] = Field(default_factory=dict)
    needs_trust_remote_code: Flag = False
    runtime_options: Mapping[str, str] = Field(default_factory=dict)  # of tensorrt_llm, unless --option says otherwise
    notes: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        try:
            check_id(self.model_id)
            Serving.of(self.aliases, self.sampling)
        except BuildError as exc:
            raise ValueError(f"model_id, aliases, sampling: {exc}") from exc
        self._check_names()
        self._check_limits()
        self._check_presets()
        self._check_options()

    @property
    def terms(self) -> str:
        """The license, and whether the hub asks for its acceptance."""
        return f"{self.license}{', gated' if self.is_gated else ''}"

    @property
    def short_name(self) -> str:
        """The id without its owner."""
        return self.model_id.rpartition("/")[2]

    @property
    def tag(self) -> str:
        """The alias of the form name:size, as people type it; without one the id."""
        return next((alias for alias in self.aliases if ":" in alias), self.model_id)

    @property
    def named_facts(self) -> dict[str, Any]:
        """The facts that hold for files that do not state them: fields of Contents by name."""
        return {name: value for name in ("sampling", "min_dimensions") if (value := getattr(self, name))}

    @property
    def task(self) -> Task:
        """The work of the model."""
        return Task.of(self.pooling or "")

    def check_generates(self) -> None:
        """Check that the model can run on GPUs.

        Raises:
            BuildError: it has another task.
        """
        if self.task != Task.GENERATE:
            cpu = f"`conch build {self.model_id} --runtime llama_cpp` serves it on a CPU"
            raise BuildError(f"{self.model_id}: the model's task is {self.task}, and models on GPUs generate: {cpu}")

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Those of TensorRT-LLM that have it, the default first."""
        generates = self.task == Task.GENERATE
        has = {
            # That of a model that reads images would need a second engine for the vision transformer.
            Backend.ENGINE: generates and self.family is not None and self.architecture.vision is None,
            Backend.PYTORCH: generates and bool(releases_with(self.architecture.class_name)),
        }
        return tuple(backend for backend in Backend if has[backend])

    @property
    def seq_len_limit(self) -> int:
        """Limit of an engine, tokens of prompt and completion together."""
        return self.max_seq_len or self.context_window

    @property
    def base_precision(self) -> Precision:
        """The 16-bit type of the parts that quantization does not change."""
        return next((precision for precision in self.precisions if not precision.is_quantized), Precision.BF16)

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the 16-bit weights."""
        return 2 * self.architecture.num_parameters

    def kv_precision(self, precision: Precision, fp8_method: Fp8Method | None) -> Precision:
        """Return the type of the KV cache of an engine. Only a calibration measures scales for one in FP8."""
        if not precision.is_quantized:
            return precision
        is_measured = fp8_method is Fp8Method.CALIBRATED and self.has_fp8_kv_cache
        return precision if is_measured else self.base_precision

    def layout_rule(self, tp_size: int, pp_size: int) -> str | None:
        """Return the rule that a layout breaks; None: it is legal."""
        if pp_size > 1 and not self.has_pipeline_parallelism:
            return "the model is built without pipeline parallelism"
        return broken_rule(self.architecture, tp_size, pp_size)

    def _check_names(self) -> None:
        if self.tool_call_format not in ("", *TOOL_FORMATS):
            raise ValueError(f"tool_call_format: {self.tool_call_format}: expected one of {', '.join(TOOL_FORMATS)}")
        if self.reasoning_format not in ("", *REASONING_FORMATS):
            expected = ", ".join(REASONING_FORMATS)
            raise ValueError(f"reasoning_format: {self.reasoning_format}: expected one of {expected}")
        if self.family is not None and not (self.tokenizer_kind and self.eos_token_ids and self.tool_call_format):
            raise ValueError(f"family: {self.family}: needs tokenizer_kind, eos_token_ids and tool_call_format")
        if self.chat_template != CHECKPOINT_TEMPLATE and self.chat_template not in shipped_templates():
            expected = ", ".join((CHECKPOINT_TEMPLATE, *shipped_templates()))
            raise ValueError(f"chat_template: {self.chat_template}: expected one of {expected}")
        if len(set(self.precisions)) < len(self.precisions):
            raise ValueError(f"precisions: {', '.join(self.precisions)}: each may be named once")
        for precision in self.ready_checkpoints:
            if precision not in self.precisions or not precision.is_quantized:
                raise ValueError(f"ready_checkpoints.{precision}: expected a precision of the model below 16 bits")

    def _check_options(self) -> None:
        for backend in self.backends:
            try:
                TensorRtLlmOptions.of({"backend": backend, **self.runtime_options})
            except ValueError as exc:
                raise ValueError(f"runtime_options: {exc}") from exc

    def _check_limits(self) -> None:
        for name, limit in (("max_seq_len", self.context_window), ("default_max_seq_len", self.seq_len_limit)):
            value = getattr(self, name)
            if value is not None and value > limit:
                raise ValueError(f"{name}: {value}: must be at most {limit}")
        vocab_size = self.architecture.vocab_size
        for token_id in (*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])):
            if token_id >= vocab_size:
                raise ValueError(f"bos_token_id, eos_token_ids: {token_id}: must be below vocab_size ({vocab_size})")

    def _check_presets(self) -> None:
        for key, by_precision in self.presets.items():
            if key not in GPUS:
                raise ValueError(f"presets.{key}: expected one of {', '.join(GPUS)}")
            for precision, parallelism in by_precision.items():
                rule = self._preset_rule(GPUS[key], precision, parallelism)
                if rule:
                    raise ValueError(f"presets.{key}.{precision}: {rule}")

    def _preset_rule(self, gpu: Gpu, precision: Precision, parallelism: Parallelism) -> str | None:
        """Return the rule that a preset breaks."""
        if precision not in self.precisions:
            return "not among the model's precisions"
        if not precision.runs_on(gpu):
            return f"{gpu.name} has no {precision.name}"
        if self.gpu_architectures and gpu.architecture not in self.gpu_architectures:
            return f"{gpu.name} is {gpu.architecture}, which is not among gpu_architectures"
        if parallelism.num_gpus_per_node > gpu.num_per_node:
            return f"{parallelism.num_gpus_per_node} GPUs in a node, which holds {gpu.num_per_node}"
        return self.layout_rule(parallelism.tp_size, parallelism.pp_size)


def shipped_templates() -> tuple[str, ...]:
    """Return the names of the chat templates in this package."""
    return tuple(sorted(path.name.removesuffix(".jinja") for path in CHAT_TEMPLATES.iterdir()))


def chat_template_text(entry: ModelEntry) -> str | None:
    """Return the shipped chat template of a model; None: its checkpoint has one."""
    if entry.chat_template == CHECKPOINT_TEMPLATE:
        return None
    return CHAT_TEMPLATES.joinpath(f"{entry.chat_template}.jinja").read_text(encoding="utf-8")
