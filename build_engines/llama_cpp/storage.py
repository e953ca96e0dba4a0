"""Number formats of a GGUF file, and the conversion of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quant_shape_to_byte_shape, quantize

from build_engines.errors import UnsupportedCheckpoint
from build_engines.llama_cpp.layout import Placement, interleave_heads

type Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """The number format of a file's matrices."""

    type: gguf.GGMLQuantizationType
    file_type: gguf.LlamaFileType

    def of_tensor(self, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
        """Return the type of a tensor: F32 for vectors, F16 for matrices whose rows do not fill whole blocks."""
        if len(shape) == 1:
            return gguf.GGMLQuantizationType.F32
        block_size, _ = gguf.GGML_QUANT_SIZES[self.type]
        return gguf.GGMLQuantizationType.F16 if shape[-1] % block_size else self.type


# With f16 here and in the KV cache, logits of the demo model differ by up to 1e-1 between a batch and single tokens;
# with f32, at twice the size, by less than 1e-3. q8_0 is a little over half of f16's size.
PRECISIONS = {
    "f16": MatrixFormat(gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": MatrixFormat(gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "q8_0": MatrixFormat(gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}


def num_bytes(shape: tuple[int, ...], stored_type: gguf.GGMLQuantizationType) -> int:
    """Return the size of a tensor in the file, without padding."""
    return int(np.prod(quant_shape_to_byte_shape(shape, stored_type), dtype=np.int64))


def convert(placement: Placement, stored_type: gguf.GGMLQuantizationType) -> Bytes:
    """Read and convert a tensor: uint8 [rows, bytes of a row], for a vector [numbers, 4].

    Raises:
        UnsupportedCheckpoint: a number is too large for the type.
        BuildError: its file cannot be read.
    """
    source = placement.source
    num_rows = source.shape[0]
    stored = np.empty((num_rows, num_bytes(source.shape, stored_type) // num_rows), dtype=np.uint8)
    start = 0
    for piece in source.read_pieces():
        end = start + len(piece)
        stored[start:end] = _packed(piece.reshape(len(piece), -1), stored_type, source.name)
        start = end
    heads = placement.num_interleaved_heads
    return stored if heads is None else interleave_heads(stored, heads)


def _packed(piece: npt.NDArray[Any], stored_type: gguf.GGMLQuantizationType, name: str) -> Bytes:
    try:
        with np.errstate(over="raise", invalid="raise"):
            packed: Bytes = quantize(piece, stored_type).view(np.uint8)
    except FloatingPointError as exc:
        rule = f"has NaN, or a number that is too large for {stored_type.name}: try precision f32"
        raise UnsupportedCheckpoint(f"tensor {name}: {rule}") from exc
    return packed
