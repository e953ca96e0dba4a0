"""Files that llama.cpp does not load."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.trial_load import check_loads
from build_engines.model_source import DEMO
from model_repository.engine.runtime import PROJECTOR


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """A GGUF file that llama.cpp loads."""
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    check_loads("tiny", tmp_path / "model.gguf", None)
    return tmp_path / "model.gguf"


def test_a_missing_tensor_is_named(model: Path) -> None:
    model.write_bytes(model.read_bytes().replace(b"blk.1.attn_q", b"blk.1.attn_x"))
    with pytest.raises(BuildError, match=r"^tiny: llama\.cpp does not load it: .*'blk\.1\.attn_q\.weight' not found$"):
        check_loads("tiny", model, None)


@pytest.mark.parametrize("num_layers", [0, 10**6, 2**31])
def test_a_file_at_which_llama_cpp_aborts_is_refused(model: Path, num_layers: int) -> None:
    """It was built, and ended the engine's process at each load."""
    gguf.GGUFReader(model, "r+").fields["llama.block_count"].parts[-1][0] = num_layers
    with pytest.raises(BuildError, match=r"^tiny: llama\.cpp does not load it: .*n_layer"):
        check_loads("tiny", model, None)


def test_a_projector_of_another_model_is_refused(model: Path) -> None:
    with pytest.raises(BuildError, match=r"mismatch between text model \(n_embd = 48\) and mmproj \(n_embd = 192\)"):
        check_loads("tiny", model, DEMO / PROJECTOR)
