"""A Hugging Face checkpoint before conversion, checked against the catalog."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from build_engines.checkpoint import Checkpoint, read_json
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.model_entry import Family, ModelEntry
from build_engines.tensorrt_llm.recipe import SourceFormat
from build_engines.weight_files import INDEX_FILE, weight_files

MODELOPT_FILE = "hf_quant_config.json"
_MODELOPT_FORMATS = {"FP8": SourceFormat.MODELOPT_FP8, "NVFP4": SourceFormat.MODELOPT_NVFP4}  # key: quant_algo

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
        if not (folder / "tokenizer.json").is_file():
            raise BuildError(f"{folder / 'tokenizer.json'}: no such file")
        num_kv_heads = _check_is(checkpoint, entry)
        check_weight_files(folder)
        return cls(
            checkpoint=checkpoint,
            format=_format(checkpoint),
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
    architecture, config = entry.architecture, checkpoint.config
    num_kv_heads: Any = config.get("num_key_value_heads", config.get("num_attention_heads"))
    expected_kv_heads = architecture.num_kv_heads
    if entry.family is Family.LLAMA and num_kv_heads == 2 * expected_kv_heads < architecture.num_heads:
        expected_kv_heads *= 2
    expected: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "num_hidden_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "num_attention_heads": architecture.num_heads,
        "intermediate_size": architecture.intermediate_size,
        "vocab_size": architecture.vocab_size,
        "num_key_value_heads": expected_kv_heads,
    }
    whole = checkpoint.image_config or config
    found = config | {"num_key_value_heads": num_kv_heads, "architectures": whole.get("architectures")}
    for name, value in expected.items():
        if found.get(name) != value:
            rule = f"{entry.model_id} has {json.dumps(value)}: is this another model's checkpoint?"
            raise BuildError(f"{checkpoint.folder / 'config.json'}: {name}={json.dumps(found.get(name))}: {rule}")
    return expected_kv_heads


def _format(checkpoint: Checkpoint) -> SourceFormat:
    quantization = checkpoint.config.get("quantization_config")
    modelopt = read_json(checkpoint.folder / MODELOPT_FILE, is_optional=True).get("quantization")
    if modelopt is not None:
        algorithm = modelopt.get("quant_algo") if isinstance(modelopt, dict) else modelopt
        if algorithm not in _MODELOPT_FORMATS:
            rule = f"expected {' or '.join(_MODELOPT_FORMATS)}"
            raise UnsupportedCheckpoint(f"{checkpoint.folder / MODELOPT_FILE}: quant_algo={algorithm}: {rule}")
        return _MODELOPT_FORMATS[algorithm]
    if quantization is None:
        return SourceFormat.SIXTEEN_BIT
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != SourceFormat.FP8_ROWWISE:
        rule = f"expected the 16-bit checkpoint, or one in {SourceFormat.FP8_ROWWISE} or {SourceFormat.MODELOPT_FP8}"
        raise UnsupportedCheckpoint(f"{checkpoint.folder}: quantization_config.quant_method={method}: {rule}")
    return SourceFormat.FP8_ROWWISE
