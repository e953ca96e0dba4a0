"""Writes GGUF files from checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.bert import BertConfig
from build_engines.llama_cpp.layout import Placement, place_judgements, place_tensors
from build_engines.llama_cpp.model_config import read_model
from build_engines.llama_cpp.projector import text_tensors
from build_engines.llama_cpp.storage import PRECISIONS, MatrixFormat, convert, num_bytes
from build_engines.llama_cpp.tokens import GgufVocabulary
from build_engines.llama_cpp.weights import find_tensors

_ROPE_FACTORS = "rope_freqs.weight"
_ADDED = ("position_embd.weight", "token_types.weight")  # llama.cpp adds them to other tensors in F32

type Progress = Callable[[int, int], None]
type Factors = npt.NDArray[np.float32] | None
type Typed = Sequence[tuple[Placement, gguf.GGMLQuantizationType]]  # tensors and their types in the file


def write_gguf(
    checkpoint: Checkpoint, path: Path, precision: str = "f16", on_progress: Progress = lambda done, total: None
) -> None:
    """Convert a checkpoint, one tensor in memory at a time: matrices in one of PRECISIONS, vectors in F32.

    All checks of headers and configuration come before the writing.

    Args:
        checkpoint: the source.
        path: the new file.
        precision: a key of PRECISIONS.
        on_progress: called after each tensor with the written and the total bytes of tensors.

    Raises:
        UnsupportedCheckpoint: the checkpoint is incomplete, or has an unsupported feature.
        BuildError: a file cannot be read or written, or the disk is full.
    """
    model = read_model(checkpoint.config)
    stored, tensors = PRECISIONS[precision], find_tensors(checkpoint.folder)
    placements = place_tensors(model, text_tensors(tensors), has_head=checkpoint.pooling is None)
    if checkpoint.scores is not None and checkpoint.scores.token_ids:
        placements.append(place_judgements(model, tensors, checkpoint.scores.token_ids))
    vocabulary = GgufVocabulary.of(checkpoint)
    typed = [(placement, _type_of(placement, stored)) for placement in placements]
    factors = None if isinstance(model, BertConfig) else model.rope.frequency_factors(model.head_dim)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[model.arch])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(stored.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    model.write(writer)
    if checkpoint.pooling is not None:
        writer.add_pooling_type(gguf.PoolingType[checkpoint.pooling.name])
    if checkpoint.scores is not None:
        writer.add_classifier_output_labels(checkpoint.scores.labels)
    vocabulary.write(writer)
    check_room(path, _declare(writer, factors, typed))
    try:
        with closing(writer):
            _write_tensors(writer, factors, typed, on_progress)
    except OSError as exc:
        raise BuildError(f"{path}: cannot be written ({exc})") from exc


def _type_of(placement: Placement, stored: MatrixFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType.F32 if placement.name in _ADDED else stored.of_tensor(placement.source.shape)


def _declare(writer: gguf.GGUFWriter, factors: Factors, typed: Typed) -> int:
    """Declare the tensors to the writer, and return their size."""
    total = 0
    if factors is not None:
        writer.add_tensor_info(_ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for placement, stored_type in typed:
        shape, size = placement.source.shape, num_bytes(placement.source.shape, stored_type)
        writer.add_tensor_info(placement.name, shape, np.dtype(np.float32), size, raw_dtype=stored_type)
        total += size
    return total


def _write_tensors(writer: gguf.GGUFWriter, factors: Factors, typed: Typed, on_progress: Progress) -> None:
    """Write the file, its tensors in the declared order."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    total = sum(num_bytes(placement.source.shape, stored_type) for placement, stored_type in typed)
    done = 0
    for placement, stored_type in typed:
        tensor = convert(placement, stored_type)
        writer.write_tensor_data(tensor)
        done += tensor.nbytes
        on_progress(done, total)


def check_room(path: Path, size_bytes: int) -> None:
    """Check that the disk has room for a file.

    Raises:
        BuildError: it has less.
    """
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < size_bytes:
        raise BuildError(f"{path}: needs {size_bytes:,} bytes, and {free_bytes:,} are free there")
