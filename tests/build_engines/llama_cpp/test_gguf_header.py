"""What ready GGUF files say of themselves."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import GgufFacts, read_gguf_base, read_gguf_facts


@pytest.fixture
def whole_file(checkpoint: Path, tmp_path: Path) -> Path:
    """A GGUF file."""
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_gguf_file_says_what_it_is(whole_file: Path) -> None:
    assert read_gguf_facts(whole_file) == GgufFacts(context_length=1024, vocab_size=288, eos_token_ids=(261,))


@pytest.mark.parametrize("length", [0, 3, 10, 100, 1000, 4000, 20_000, -1])
def test_a_cut_gguf_file_is_refused(length: int, whole_file: Path) -> None:
    """Some cuts ended in an IndexError of the reader."""
    whole_file.write_bytes(whole_file.read_bytes()[:length])
    with pytest.raises(BuildError, match=r"model\.gguf: not a GGUF file of a language model"):
        read_gguf_facts(whole_file)


def test_another_file_is_no_gguf_file(checkpoint: Path) -> None:
    with pytest.raises(BuildError, match="not a GGUF file"):
        read_gguf_facts(checkpoint / "tokenizer.json")


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"missing\.gguf"):
        read_gguf_facts(tmp_path / "missing.gguf")


# --- as the base of adapters -----------------------------------------------------------------------------------------


def test_a_gguf_file_says_what_an_adapter_must_fit(whole_file: Path) -> None:
    base = read_gguf_base(whole_file)
    assert (base.architecture, base.num_layers, base.num_heads, base.num_kv_heads) == ("llama", 2, 4, 2)
    assert base.shapes["blk.1.attn_k.weight"] == (32, 48)
    assert base.shapes["blk.0.ffn_down.weight"] == (48, 80)
    assert base.shapes["output_norm.weight"] == (48,)


@pytest.fixture
def writer(tmp_path: Path) -> gguf.GGUFWriter:
    """Of a file that says little."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(2)
    return writer


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_without_grouped_queries_every_head_has_its_own_keys(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    writer.add_head_count(8)
    close(writer)
    assert read_gguf_base(tmp_path / "model.gguf").num_kv_heads == 8


def test_a_base_that_does_not_count_its_heads_is_refused(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    close(writer)
    with pytest.raises(BuildError, match=r"model\.gguf: llama\.attention\.head_count is None, which no adapter"):
        read_gguf_base(tmp_path / "model.gguf")


def test_a_base_with_other_heads_in_each_layer_is_refused(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    writer.add_head_count([8, 4])
    close(writer)
    with pytest.raises(BuildError, match=r"llama\.attention\.head_count is \[8, 4\], which no adapter"):
        read_gguf_base(tmp_path / "model.gguf")
