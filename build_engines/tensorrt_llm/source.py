"""A Hugging Face checkpoint before conversion, checked against the catalog."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from build_engines.checkpoint import Checkpoint
from build_engines.config_architecture import READ_CLASSES, architecture_of
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.json_files import class_of, read_json
from build_engines.model_entry import Family, ModelEntry, Precision
from build_engines.tensorrt_llm.recipe import SourceFormat
from build_engines.weight_files import INDEX_FILE, weight_files

MODELOPT_FILE = "hf_quant_config.json"
_MODELOPT_FORMATS = {"FP8": SourceFormat.MODELOPT_FP8, "NVFP4": SourceFormat.MODELOPT_NVFP4}  # key: quant_algo

_BLOCK = [128, 128]  # values of a scale, of the formats of `fp8` that TensorRT-LLM loads

READY_PRECISIONS = {  # of the formats that the PyTorch backend loads, beside 16 bits
    SourceFormat.MODELOPT_FP8: Precision.FP8,
    SourceFormat.FP8_BLOCKS: Precision.FP8,
    SourceFormat.MODELOPT_NVFP4: Precision.NVFP4,
    SourceFormat.MXFP4: Precision.MXFP4,
}

# Files beside the weights, for our artifact; then those for the converters. Other files are not downloaded.
TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_FURTHER_FILES = (
    *("*.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.py"),
    MODELOPT_FILE,
    "*processor_config.json",  # image models have it
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A complete checkpoint."""

    checkpoint: Checkpoint
    format: SourceFormat
    has_duplicated_kv_heads: bool

    @classmethod
    def load(cls, folder: Path, entry: ModelEntry) -> Source:
        """Check a checkpoint against its catalog entry.

        Raises:
            BuildError: a file is missing or cut short, or the checkpoint is another model's.
        """
        checkpoint = Checkpoint.load(folder)
        if checkpoint.pooling is not None:
            raise UnsupportedCheckpoint(f"{folder}: a model that embeds: the runtime llama_cpp serves it, on CPUs")
        if not (folder / "tokenizer.json").is_file():
            raise BuildError(f"{folder / 'tokenizer.json'}: no such file")
        num_kv_heads = _check_is(checkpoint, entry)
        check_weight_files(folder)
        return cls(
            checkpoint=checkpoint,
            format=source_format(checkpoint.folder, checkpoint.whole_config),
            has_duplicated_kv_heads=num_kv_heads != entry.architecture.num_kv_heads,
        )

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.folder

    def files(self) -> dict[str, Path]:
        """Return every file of the build by its name."""
        paths = [self.folder / name for name in TEXT_FILES]
        paths += [path for pattern in _FURTHER_FILES for path in sorted(self.folder.glob(pattern))]
        paths += [self.folder / INDEX_FILE, *weight_files(self.folder)]
        return {path.name: path for path in paths if path.is_file()}


def download_patterns() -> list[str]:
    """Return patterns of the files to download."""
    return [*TEXT_FILES, *_FURTHER_FILES, INDEX_FILE, "*.safetensors"]


def check_weight_files(folder: Path) -> None:
    """Check every file of weights against its header and the index.

    Raises:
        BuildError: names the file and the mistake.
    """
    found = {path.name: set(_tensor_names(path)) for path in weight_files(folder)}
    if (folder / INDEX_FILE).is_file() and len(found) > 1:
        for tensor, name in json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].items():
            if tensor not in found[name]:
                raise BuildError(f"{folder / name}: tensor {tensor} is missing, which {INDEX_FILE} says is there")


def _tensor_names(path: Path) -> Iterable[str]:
    try:
        with safe_open(path, framework="numpy") as file:  # this checks the length of the file
            return list(file.keys())
    except (OSError, SafetensorError) as exc:
        raise BuildError(f"{path}: cut short, or no safetensors file ({exc}): download it again") from exc


def _check_is(checkpoint: Checkpoint, entry: ModelEntry) -> int:
    """Check the numbers of config.json, and return the number of key-value heads.

    Early copies of Llama 3.1 405B have each of them twice.
    """
    expected = entry.architecture
    if class_of(checkpoint.whole_config) == expected.class_name and expected.class_name not in READ_CLASSES:
        return expected.num_kv_heads
    found = architecture_of(checkpoint.config, checkpoint.whole_config)
    num_kv_heads = found.num_kv_heads
    has_both = entry.family is Family.LLAMA and num_kv_heads == 2 * expected.num_kv_heads < expected.num_heads
    for name, field in _COMPARED.items():
        value = getattr(found, name)
        if value != getattr(expected, name) and not (name == "num_kv_heads" and has_both):
            rule = f"{entry.model_id} has {getattr(expected, name)}: is this another model's checkpoint?"
            raise BuildError(f"{checkpoint.folder / 'config.json'}: {field}={value}: {rule}")
    return num_kv_heads


_COMPARED = {  # of an architecture, with its usual name in config.json
    "class_name": "architectures",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "num_kv_heads": "num_key_value_heads",
}


def source_format(folder: Path, config: Mapping[str, Any]) -> SourceFormat:
    """Return the number format of a checkpoint's matrices.

    Args:
        config: config.json.

    Raises:
        UnsupportedCheckpoint: names the file, the format and the rule.
    """
    modelopt = read_json(folder / MODELOPT_FILE, is_optional=True).get("quantization")
    if modelopt is not None:
        return _modelopt_format(folder / MODELOPT_FILE, modelopt)
    quantization = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if quantization is None:
        return SourceFormat.SIXTEEN_BIT
    fields = quantization if isinstance(quantization, dict) else {"quant_method": quantization}
    method = fields.get("quant_method")
    if method == "modelopt":  # newer exports have no file of ModelOpt's
        return _modelopt_format(folder / "config.json", fields)
    if method == "fp8" and fields.get("weight_block_size") == _BLOCK:
        return SourceFormat.FP8_BLOCKS
    if method not in (SourceFormat.FP8_ROWWISE, SourceFormat.MXFP4):
        others = [f"{SourceFormat.FP8_BLOCKS} ({_BLOCK})", SourceFormat.MODELOPT_NVFP4, SourceFormat.MXFP4]
        rule = f"expected the 16-bit checkpoint, or one in {SourceFormat.FP8_ROWWISE}, {SourceFormat.MODELOPT_FP8}"
        raise UnsupportedCheckpoint(f"{folder}: quantization_config.quant_method={method}: {rule}, {', '.join(others)}")
    return SourceFormat(method)


def _modelopt_format(path: Path, fields: Any) -> SourceFormat:
    algorithm = fields.get("quant_algo") if isinstance(fields, dict) else fields
    if algorithm not in _MODELOPT_FORMATS:
        rule = f"expected {' or '.join(_MODELOPT_FORMATS)}"
        raise UnsupportedCheckpoint(f"{path}: quant_algo={algorithm}: {rule}")
    return _MODELOPT_FORMATS[algorithm]
