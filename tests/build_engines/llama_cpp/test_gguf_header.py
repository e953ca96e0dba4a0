"""Headers of GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_header import GgufFacts, gguf_parts, part_names, read_gguf_base, read_gguf_facts
from build_engines.llama_cpp.gguf_tokenizer import write_tokenizer
from tests.build_engines.llama_cpp_logits import PROMPT, llama_cpp_logits
from tests.gguf_writing import write_and_close
from tests.model_repository.engine.tiny_models import write_model


@pytest.fixture
def whole_file(checkpoint: Path, tmp_path: Path) -> Path:
    """A GGUF file."""
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_header_has_the_facts_for_serving(whole_file: Path) -> None:
    assert read_gguf_facts(whole_file) == GgufFacts(
        context_length=1024, vocab_size=288, eos_token_ids=(261,), sampling={}, pooling=""
    )


@pytest.mark.parametrize("length", [4, 10, 100, 1000, 4000, 20_000, -100])
def test_a_gguf_file_that_was_cut_off_is_refused_as_that(length: int, whole_file: Path) -> None:
    """Some cuts ended in an IndexError of the reader, others were called "not a GGUF file"."""
    whole = whole_file.read_bytes()
    whole_file.write_bytes(whole[:length])
    with pytest.raises(BuildError, match=r"model\.gguf: a GGUF file that is cut off or damaged: download it"):
        read_gguf_facts(whole_file)


@pytest.mark.parametrize("content", [b"", b"GG", b"{}", b"version https://git-lfs"])
def test_another_kind_of_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BuildError, match=r"model\.gguf: not a GGUF file: begins with b'"):
        read_gguf_facts(tmp_path / "model.gguf")


def add_embedding(writer: gguf.GGUFWriter, num_rows: int) -> None:
    writer.add_context_length(64)
    writer.add_tensor("token_embd.weight", np.zeros((num_rows, 64), dtype=np.float32))


def add_tokens(writer: gguf.GGUFWriter, *tokens: str) -> None:
    add_embedding(writer, 4)
    writer.add_token_list(tokens)


def add_end(writer: gguf.GGUFWriter, kind: str) -> None:
    add_embedding(writer, 32)
    getattr(writer, f"add_{kind}_token_id")(32)


# Most were built, and llama.cpp did not load them. An end token beyond the vocabulary would never come. A file without
# token embedding is one of LoRA adapters, or of what turns images into embeddings.
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (partial(add_end, kind="eos"), "ends with token 32: the model has tokens 0 to 31"),
        (partial(add_end, kind="eot"), "ends with token 32: the model has tokens 0 to 31"),
        (partial(add_end, kind="eom"), "ends with token 32: the model has tokens 0 to 31"),
        (lambda writer: writer.add_context_length(64), r"not a GGUF file of a language model: no token_embd"),
        (
            lambda writer: setattr(writer, "endianess", gguf.GGUFEndian.BIG),
            "the byte order of other machines: .*endian",
        ),
        (lambda writer: writer.add_context_length(1), r"llama\.context_length is 1: expected at least 2 tokens"),
        (lambda writer: writer.add_context_length(2**31), r"llama\.context_length is 2147483648: expected at least 2"),
        (lambda writer: add_tokens(writer, *"abc"), r"3 tokens, and token_embd\.weight has 4 rows: llama\.cpp does"),
        (lambda writer: add_tokens(writer, *"abcde"), r"5 tokens, and token_embd\.weight has 4 rows: llama\.cpp does"),
        (lambda writer: add_tokens(writer, "a", "", "", "a"), "tokens 0 and 3 have the same text, 'a': llama.cpp does"),
    ],
)
def test_a_model_that_llama_cpp_does_not_serve_is_refused(
    write: Callable[[gguf.GGUFWriter], None], message: str, writer: gguf.GGUFWriter, tmp_path: Path
) -> None:
    write(writer)
    write_and_close(writer)
    with pytest.raises(BuildError, match=rf"model\.gguf: {message}"):
        read_gguf_facts(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llada", "makes all tokens of a text together, by diffusion"),
        ("t5", "has an encoder and a decoder"),
        ("t5encoder", "is the encoder of a model with a decoder"),
    ],
)
def test_a_model_that_does_not_generate_token_after_token_is_refused_by_its_kind(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    """One by diffusion was built as a model that embeds, and llama.cpp ended the process at the encoder."""
    write_and_close(gguf.GGUFWriter(tmp_path / "model.gguf", architecture))
    with pytest.raises(BuildError, match=rf"the architecture {architecture} {kind}: such models are not served"):
        read_gguf_facts(tmp_path / "model.gguf")


def test_a_quantization_that_is_not_known_is_refused_as_that(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    """A second download would not have helped."""
    add_embedding(writer, 32)
    write_and_close(writer)
    path = tmp_path / "model.gguf"
    tensor = gguf.GGUFReader(path).tensors[0].field
    offset = tensor.offset + sum(part.nbytes for part in tensor.parts[:4])
    content = bytearray(path.read_bytes())
    content[offset : offset + 4] = (137).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(BuildError, match=r"a tensor is quantized as type 137: this llama.cpp does not know the type"):
        read_gguf_facts(path)


def reranker(folder: Path, architecture: str, labels: Sequence[str], *heads: str) -> Path:
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    add_embedding(writer, 4)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    if labels:
        writer.add_classifier_output_labels(labels)
    for head in heads:
        writer.add_tensor(head, np.zeros((max(1, len(labels)), 64), dtype=np.float32))
    write_and_close(writer)
    return folder / "model.gguf"


@pytest.mark.parametrize(
    ("architecture", "labels", "head", "expected"),
    [
        ("bert", (), "cls.weight", ("LABEL_0",)),
        ("bert", ("good", "bad"), "cls.output.weight", ("good", "bad")),
        ("qwen3", ("yes", "no"), "cls.output.weight", ("yes", "no")),
    ],
)
def test_a_reranker_has_labels(
    architecture: str, labels: Sequence[str], head: str, expected: Sequence[str], tmp_path: Path
) -> None:
    facts = read_gguf_facts(reranker(tmp_path, architecture, labels, head))
    assert (facts.pooling, facts.labels) == ("rank", expected)


def test_a_reranker_without_its_head_is_refused(tmp_path: Path) -> None:
    """llama.cpp's scores were noise: many conversions of Qwen3-Reranker are such files."""
    with pytest.raises(BuildError, match=r"a reranker without its head \(cls\.weight or cls\.output\.weight\)"):
        read_gguf_facts(reranker(tmp_path, "qwen3", ("yes", "no")))


def test_a_reranker_whose_only_score_is_always_1_is_refused(tmp_path: Path) -> None:
    """llama.cpp makes probabilities of the scores of a Qwen3."""
    with pytest.raises(BuildError, match=r"an architecture qwen3 with one score: llama\.cpp makes it 1 for every pair"):
        read_gguf_facts(reranker(tmp_path, "qwen3", (), "cls.output.weight"))


@pytest.mark.parametrize(
    ("architecture", "kind", "message"),
    [
        ("clip", "mmproj", "a projector of images: give the model's own file, and this one with --mmproj"),
        ("llama", "adapter", "a LoRA adapter: give the model's own file, and the adapter as a folder in PEFT's format"),
    ],
)
def test_a_file_that_goes_with_a_model_is_refused_as_one(
    architecture: str, kind: str, message: str, tmp_path: Path
) -> None:
    """The error told to give a tokenizer."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_type(kind)
    write_and_close(writer)
    for read in (gguf_parts, read_gguf_facts, partial(write_tokenizer, folder=tmp_path)):
        with pytest.raises(BuildError, match=rf"model\.gguf: {message}"):
            read(tmp_path / "model.gguf")


# --- in several files -------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The same model in three files, as llama.cpp's own tool splits it."""
    (tmp_path / "parts").mkdir()
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=8))
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "parts" / "model.gguf")
    return sorted((tmp_path / "parts").iterdir())


def test_a_model_in_several_files_is_read_as_one(whole_file: Path, parts: list[Path]) -> None:
    assert [path.name for path in parts] == list(part_names("model", 3))
    assert gguf_parts(parts[0]) == tuple(parts)
    assert read_gguf_facts(parts[0]) == read_gguf_facts(whole_file)
    assert read_gguf_base(parts[0]) == read_gguf_base(whole_file)


def test_llama_cpp_finds_the_other_parts_by_the_first(whole_file: Path, parts: list[Path]) -> None:
    assert np.array_equal(llama_cpp_logits(parts[0], PROMPT), llama_cpp_logits(whole_file, PROMPT))


def test_another_part_than_the_first_is_refused(parts: list[Path]) -> None:
    rule = r"one of 3 files of a model: give the first, model-00001-of-00003\.gguf, with the others beside it"
    for read in (read_gguf_facts, partial(write_tokenizer, folder=parts[1].parent)):
        with pytest.raises(BuildError, match=rf"model-00002-of-00003\.gguf: {rule}"):
            read(parts[1])


def test_a_first_part_by_another_name_is_refused(parts: list[Path]) -> None:
    """llama.cpp could not find the others."""
    renamed = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(BuildError, match=r"first\.gguf: one of 3 files of a model"):
        gguf_parts(renamed)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(BuildError, match=r"model-00003-of-00003\.gguf: missing; .* says that the model is in 3 files"):
        gguf_parts(parts[0])


def test_parts_in_another_order_are_refused(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(BuildError, match=r"model-00002-of-00003\.gguf: its header has number 3 of 3"):
        gguf_parts(parts[0])


# --- as the base of adapters ------------------------------------------------------------------------------------------


def test_a_header_has_the_facts_for_adapters(whole_file: Path) -> None:
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


def test_a_base_that_does_not_count_its_heads_is_refused(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    write_and_close(writer)
    with pytest.raises(BuildError, match=r"model\.gguf: llama\.attention\.head_count is None: expected one whole"):
        read_gguf_base(tmp_path / "model.gguf")


def pooled_file(path: Path, pooling: int | None, *, is_causal: bool | None, **heads: int) -> Path:
    """Write the header of a BERT, with the rows of layers of a classification head."""
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_context_length(64)
    if pooling is not None:
        writer.add_uint32("bert.pooling_type", pooling)
    if is_causal is not None:
        writer.add_causal_attention(is_causal)
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), np.float32))
    for name, num_rows in heads.items():
        writer.add_tensor(f"{name}.weight", np.zeros((num_rows, 4), np.float32))
    write_and_close(writer)
    return path


@pytest.mark.parametrize(
    ("pooling", "is_causal", "found"),
    [(1, False, "mean"), (2, None, "cls"), (3, True, "last"), (4, False, "rank"), (0, None, ""), (None, False, "mean")],
)
def test_a_header_names_the_pooling(pooling: int | None, is_causal: bool | None, found: str, tmp_path: Path) -> None:
    path = pooled_file(tmp_path / "model.gguf", pooling, is_causal=is_causal, **({"cls": 4} if found == "rank" else {}))
    assert read_gguf_facts(path).pooling == found


@pytest.mark.parametrize(
    ("heads", "found"), [({"cls": 4, "cls.output": 1}, "rank"), ({"cls": 1}, "rank"), ({"cls": 4}, "mean")]
)
def test_a_cross_encoder_is_found_by_its_head(heads: dict[str, int], found: str, tmp_path: Path) -> None:
    """Files of bge-reranker and Jina's rerankers name no pooling: they were served as embedders."""
    path = pooled_file(tmp_path / "model.gguf", None, is_causal=False, **heads)
    assert read_gguf_facts(path).pooling == found


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    path = pooled_file(tmp_path / "model.gguf", 9, is_causal=None)
    with pytest.raises(BuildError, match=r"bert\.pooling_type is 9: expected one of mean, cls, last, rank"):
        read_gguf_facts(path)


def test_embeddinggemma_without_its_last_layers_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "model.gguf", "gemma-embedding")
    read_gguf_facts(path)
    assert caplog.text == ""
    path.write_bytes(path.read_bytes().replace(b"dense_2.weight", b"dense_x.weight"))
    read_gguf_facts(path)
    assert "model.gguf: no layers behind the pooling (dense_2.weight): its vectors are not those of" in caplog.text
