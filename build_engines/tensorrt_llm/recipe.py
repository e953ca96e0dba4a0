"""The commands from a checkpoint to an engine: the family's converter or quantization, then trtllm-build.

Flags and their values are those of TensorRT-LLM 1.2.1. Other flags keep the tools' defaults: the paged KV cache, paged
context attention and packed input, which block reuse and chunked prefill need.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.model_entry import Family, Fp8Method, Precision
from build_engines.planner.sizing import Plan

QUANTIZE = "examples/quantization/quantize.py"
CONVERTERS = {
    Family.LLAMA: "examples/models/core/llama/convert_checkpoint.py",
    Family.QWEN: "examples/models/core/qwen/convert_checkpoint.py",
    Family.GEMMA: "examples/models/core/gemma/convert_checkpoint.py",
    Family.DEEPSEEK_V2: "examples/models/contrib/deepseek_v2/convert_checkpoint.py",
}
BUILD = "trtllm-build"
NUM_CALIBRATION_SAMPLES = 512

_DTYPES = {Precision.BF16: "bfloat16", Precision.F16: "float16"}
_LOADED_BY_SHARD_PARAMETERS = 40e9  # larger checkpoints are read one file at a time


class SourceFormat(StrEnum):
    """Number format of a checkpoint's matrices."""

    SIXTEEN_BIT = "16-bit"
    FP8_ROWWISE = "fbgemm_fp8"  # Meta's FP8, which the llama converter recognizes
    MODELOPT_FP8 = "ModelOpt's FP8"  # NVIDIA's, which the PyTorch backend loads
    MODELOPT_NVFP4 = "ModelOpt's NVFP4"
    FP8_BLOCKS = "fp8 with a scale for each block"  # DeepSeek's
    MXFP4 = "mxfp4"  # OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLimits:
    """Limits of an engine for adapters."""

    max_rank: int
    modules: tuple[str, ...]  # TensorRT-LLM's names


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Folders of the commands."""

    checkpoint: Path
    examples: Path  # a clone of TensorRT-LLM
    converted: Path
    engine: Path


# For commands that are compared or shown.
PLACEHOLDERS = Folders(
    checkpoint=Path("CHECKPOINT"),
    examples=Path("TENSORRT_LLM"),
    converted=Path("WORK/checkpoint"),
    engine=Path("WORK/engine"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The decisions behind the commands. All but `num_workers` change the engine."""

    plan: Plan
    source_format: SourceFormat = SourceFormat.SIXTEEN_BIT
    has_duplicated_kv_heads: bool = False  # early copies of Llama 3.1 405B
    has_context_logits: bool = False  # log probabilities of prompts need them
    lora: LoraLimits | None = None
    calibration_dataset: str | None = None  # None: the tool's, which it downloads
    num_workers: int | None = None  # ranks at the same time; None: the GPUs of a node

    def __post_init__(self) -> None:
        entry = self.plan.entry
        if self.source_format is SourceFormat.FP8_ROWWISE and not (
            entry.family is Family.LLAMA and self.plan.precision is Precision.FP8
        ):
            rule = "goes with --precision fp8 and models of the llama family: use the 16-bit checkpoint"
            raise BuildError(f"checkpoint: quantization_config.quant_method={self.source_format}: {rule}")

    @property
    def kv_precision(self) -> Precision:
        """Precision of the engine's KV cache. Meta's FP8 has no scales for it, so its cache has 16 bits."""
        if self.source_format is SourceFormat.FP8_ROWWISE:
            return next(precision for precision in self.plan.entry.precisions if precision in _DTYPES)
        return self.plan.kv_precision

    @property
    def is_quantized(self) -> bool:
        """Whether the build measures FP8 scales on sample texts."""
        return self.plan.fp8_method is Fp8Method.CALIBRATED and self.source_format is SourceFormat.SIXTEEN_BIT

    @property
    def ram_bytes(self) -> int:
        """Memory of the conversion on the CPU: of the ranks that are converted at the same time."""
        if self.is_quantized or self.plan.entry.family is Family.GEMMA:  # one process makes the files of all ranks
            return self.plan.build_ram_bytes
        return self.plan.build_ram_bytes * _num_workers(self) // self.plan.parallelism.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, and its output files."""

    name: str
    program: str  # its name in the recorded contract
    command: tuple[str, ...]
    output: Path
    files: tuple[str, ...]
    num_bytes: int  # estimate

    @property
    def text(self) -> str:
        """The command for a shell."""
        return shlex.join(self.command)


def checkpoint_step(recipe: Recipe, folders: Folders) -> Step:
    """Return the command that converts a checkpoint to TensorRT-LLM's form."""
    program, options = _quantize(recipe) if recipe.is_quantized else _convert(recipe)
    return Step(
        name="checkpoint",
        program=program,
        command=("python3", str(folders.examples / program), *_words(options, folders)),
        output=folders.converted,
        files=("config.json", *(f"rank{rank}.safetensors" for rank in _ranks(recipe))),
        num_bytes=recipe.plan.engine_bytes,
    )


def engine_step(recipe: Recipe, folders: Folders) -> Step:
    """Return the command that compiles the engine."""
    return Step(
        name="engine",
        program=BUILD,
        command=(BUILD, *_words(_build(recipe), folders)),
        output=folders.engine,
        files=("config.json", *(f"rank{rank}.engine" for rank in _ranks(recipe))),
        num_bytes=recipe.plan.engine_bytes,
    )


type Options = Mapping[str, object]  # flag to value; True: a flag without one; a folder by its name in Folders


def _convert(recipe: Recipe) -> tuple[str, Options]:
    plan = recipe.plan
    family, parallelism = plan.entry.family, plan.parallelism
    assert family is not None  # the command refuses a model without one
    if family is Family.GEMMA:
        options: dict[str, object] = {
            "--ckpt-type": "hf",
            "--model-dir": _CHECKPOINT,
            "--output-model-dir": _CONVERTED,
            "--dtype": _dtype(plan),
            "--world-size": parallelism.tp_size,
        }
        return CONVERTERS[family], options
    options = {
        "--model_dir": _CHECKPOINT,
        "--output_dir": _CONVERTED,
        "--dtype": _dtype(plan),
        "--tp_size": parallelism.tp_size,
        "--pp_size": parallelism.pp_size,
    }
    options["--workers"] = _num_workers(recipe)
    if family is Family.LLAMA:
        is_rowwise = plan.fp8_method is Fp8Method.ROWWISE and recipe.source_format is SourceFormat.SIXTEEN_BIT
        options["--use_fp8_rowwise"] = is_rowwise
        options["--load_by_shard"] = plan.entry.architecture.num_parameters > _LOADED_BY_SHARD_PARAMETERS
        options["--remove_duplicated_kv_heads"] = recipe.has_duplicated_kv_heads
    return CONVERTERS[family], options


def _quantize(recipe: Recipe) -> tuple[str, Options]:
    plan = recipe.plan
    return QUANTIZE, {
        "--model_dir": _CHECKPOINT,
        "--output_dir": _CONVERTED,
        "--dtype": _dtype(plan),
        "--qformat": "fp8",
        "--kv_cache_dtype": "fp8" if recipe.kv_precision is Precision.FP8 else None,
        "--tp_size": plan.parallelism.tp_size,
        "--pp_size": plan.parallelism.pp_size,
        "--calib_dataset": recipe.calibration_dataset,
        "--calib_size": NUM_CALIBRATION_SAMPLES,
    }


def _build(recipe: Recipe) -> Options:
    plan, lora = recipe.plan, recipe.lora
    options: dict[str, object] = {
        "--checkpoint_dir": _CONVERTED,
        "--output_dir": _ENGINE,
        "--max_batch_size": plan.max_batch_size,
        "--max_input_len": plan.max_input_len,
        "--max_seq_len": plan.max_seq_len,
        "--max_num_tokens": plan.max_num_tokens,
        "--gather_context_logits": recipe.has_context_logits,
    }
    if plan.entry.family is Family.DEEPSEEK_V2:
        options |= {"--gpt_attention_plugin": _dtype(plan), "--gemm_plugin": _dtype(plan)}
    elif plan.precision is not Precision.FP8:  # FP8 matrices use TensorRT's kernels
        options["--gemm_plugin"] = "auto"
    if lora is not None:
        options["--lora_plugin"] = "auto"
        options["--lora_target_modules"] = lora.modules
        options["--max_lora_rank"] = lora.max_rank
    return options | {"--workers": _num_workers(recipe)}


def _ranks(recipe: Recipe) -> range:
    return range(recipe.plan.parallelism.num_gpus)


def _num_workers(recipe: Recipe) -> int:
    num_gpus_per_node = recipe.plan.parallelism.num_gpus_per_node
    return min(recipe.num_workers or num_gpus_per_node, num_gpus_per_node)


def _dtype(plan: Plan) -> str:
    """Return TensorRT-LLM's name of the model's 16-bit type."""
    return _DTYPES[next(precision for precision in (plan.precision, *plan.entry.precisions) if precision in _DTYPES)]


_CHECKPOINT, _CONVERTED, _ENGINE = object(), object(), object()


def _words(options: Options, folders: Folders) -> list[str]:
    places = {_CHECKPOINT: folders.checkpoint, _CONVERTED: folders.converted, _ENGINE: folders.engine}
    words: list[str] = []
    for flag, value in options.items():
        if value is True:
            words.append(flag)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [flag, *value]
        elif value is not None and value is not False:
            words += [flag, str(places.get(value, value))]
    return words
