"""Smaller precisions, by llama.cpp's own quantizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.quantize import QUANTIZED, quantize
from build_engines.model_source import DEMO


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in f16."""
    path = tmp_path_factory.mktemp("gguf") / "f16.gguf"
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), path, "f16")
    return path


@pytest.mark.parametrize("precision", ["q2_k", "q4_0", "q4_k_m", "iq4_nl"])
def test_a_quantized_file_says_its_precision_and_has_the_same_tensors(
    precision: str, half: Path, tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    quantize(half, path, precision)
    before, after = gguf.GGUFReader(half), gguf.GGUFReader(path)
    field = after.fields["general.file_type"]
    assert field.contents() == QUANTIZED[precision]
    assert {tensor.name for tensor in after.tensors} == {tensor.name for tensor in before.tensors}
    assert path.stat().st_size < 0.5 * half.stat().st_size


def test_a_failure_of_the_quantizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(BuildError, match=r"small.gguf: llama.cpp cannot quantize to q4_0: "):
        quantize(tmp_path / "no.gguf", tmp_path / "small.gguf", "q4_0")
