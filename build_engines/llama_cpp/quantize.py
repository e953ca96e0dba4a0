"""Smaller precisions, by llama.cpp's own quantizer."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import gguf

from build_engines.errors import BuildError
from build_engines.progress import Progress, following
from model_repository.system.cores import num_physical_cores
from model_repository.system.llama_build import usable_build

_TYPES = (  # those that need no statistics of activations
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_M"),
    *("Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"),
)
QUANTIZED = {name.lower(): gguf.LlamaFileType[f"MOSTLY_{name}"] for name in _TYPES}
FILE_TYPES = {"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, **QUANTIZED}  # `build` converts to q8_0 itself


def quantize(source: Path, target: Path, precision: str) -> None:
    """Write a GGUF file in another precision. llama.cpp gives some tensors more bits.

    Args:
        source: a GGUF file without quantized tensors.
        target: the new file.
        precision: a key of FILE_TYPES.

    Raises:
        BuildError: llama.cpp is not installed, or refuses.
        UnusableBuild: see usable_build.
    """
    if usable_build() is None:
        raise BuildError(f"{precision}: llama.cpp quantizes, and is not installed")
    from model_repository.engine.llama_cpp.library import llama, load_backends

    params = llama.LlamaModelQuantizeParams()
    params.ftype = int(FILE_TYPES[precision])
    params.nthread = num_physical_cores()
    load_backends()
    failures: list[Exception] = []

    def run() -> None:
        try:
            llama.model_quantize(str(source), str(target), params)
        except Exception as exc:
            failures.append(exc)

    with Progress(f"quantizing to {precision}", 0) as progress, following(target, progress):
        # Signals are handled in Python, to which the call returns after a minute: so it is not in the main thread.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
    if failures:
        raise BuildError(f"{target}: llama.cpp cannot quantize to {precision}: {failures[0]}") from failures[0]


def least_bytes(num_weights: int, precision: str) -> int:
    """Return the size of a model's matrices if all of them are stored in a key of FILE_TYPES, without more bits."""
    [kind] = re.findall(r"I?Q\d_(?:\d|K|NL|XS)", precision.upper())
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return num_weights // block_size * block_bytes
