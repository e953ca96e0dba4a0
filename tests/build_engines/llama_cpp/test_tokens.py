"""The vocabulary of a GGUF file: other programs tokenize with it as the model's tokenizer does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from cyllama.llama import llama_cpp as llama
from tokenizers import Tokenizer

from build_engines.checkpoint import Checkpoint
from build_engines.errors import UnsupportedCheckpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.tokens import GgufVocabulary
from tests.build_engines.tiny_checkpoint import sentencepiece_description, tokenizer_description, write_checkpoint

TEXTS = ["the thin inn", "in the\nthe", "a  tail  ", "naïve 🙂 at", "<0x41>the", "thethethe"]
# As the checkpoints of Llama 3 and of Qwen2 have it: only the length of numbers differs.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("1", "2"), ("12", "3"), ("123", "4")]


def split_description(numbers: str) -> dict[str, Any]:
    """Return a byte-level tokenizer.json that splits text into words first."""
    description = tokenizer_description(merges=MERGES)
    split = {"type": "Split", "pattern": {"Regex": SPLIT % numbers}, "behavior": "Isolated", "invert": False}
    steps = [split, description["pre_tokenizer"]]
    return description | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


def vocabulary_of(folder: Path, tokenizer: dict[str, Any] | None = None, **config: Any) -> GgufVocabulary:
    return GgufVocabulary.of(Checkpoint.load(write_checkpoint(folder, tokenizer=tokenizer, **config)))


def tokenized_by_llama_cpp(folder: Path, texts: list[str]) -> list[list[int]]:
    """Convert a checkpoint, and tokenize texts with the result."""
    write_gguf(Checkpoint.load(folder), folder / "model.gguf")
    llama.disable_logging()
    llama.ggml_backend_load_all()
    model = llama.LlamaModel(str(folder / "model.gguf"), llama.LlamaModelParams())
    vocab = model.get_vocab()
    token_ids = [vocab.tokenize(text, True, True) for text in texts]
    model.close()
    return token_ids


@pytest.mark.parametrize(
    "description",
    [sentencepiece_description(), split_description("{1,3}"), split_description("")],
    ids=["sentencepiece", "llama 3", "qwen2"],
)
def test_llama_cpp_tokenizes_as_the_models_tokenizer(description: dict[str, Any], tmp_path: Path) -> None:
    config: dict[str, Any] = {"bos_token_id": 1} if description["model"].get("byte_fallback") else {}
    folder = write_checkpoint(tmp_path, tokenizer=description, vocab_size=288, **config)
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [*TEXTS, "12345 the 1234"]
    assert tokenized_by_llama_cpp(folder, texts) == [own.encode(text).ids for text in texts]


def test_rows_without_a_token_are_filled_up(tmp_path: Path) -> None:
    """Qwen2.5 has 152064 rows for 151665 tokens."""
    vocabulary = vocabulary_of(tmp_path, tokenizer_description(), vocab_size=264)
    assert vocabulary.tokens[256:] == ["<|im_start|>", "<|im_end|>", *(f"[PAD{row}]" for row in range(258, 264))]
    assert vocabulary.types[255:259] == [
        gguf.TokenType.NORMAL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.UNUSED,
    ]


def test_a_token_that_was_added_to_the_tokenizer_alone_is_left_out(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(tmp_path, tokenizer_description(), vocab_size=258)
    description = tokenizer_description(["<|im_start|>", "<|im_end|>", "<pad>"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    assert GgufVocabulary.of(Checkpoint.load(tmp_path)).tokens == vocabulary.tokens


def test_sentencepiece_tokens_have_their_types_and_scores(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(tmp_path, sentencepiece_description(), bos_token_id=1)
    kinds = gguf.TokenType
    assert vocabulary.types[:4] == [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, kinds.BYTE]
    assert [vocabulary.scores[vocabulary.tokens.index(token)] for token in ("th", "the", "in")] == [0, -1, -3]
    assert vocabulary.special_ids == {
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    assert (vocabulary.adds_bos, vocabulary.has_space_prefix) == (True, True)


@pytest.mark.parametrize(("scheme", "has_prefix"), [("first", True), ("always", True), ("never", False)])
def test_a_space_before_the_text_is_found_where_newer_tokenizers_say_it(
    scheme: str, has_prefix: bool, tmp_path: Path
) -> None:
    description = sentencepiece_description() | {"normalizer": None}
    description["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme}
    assert vocabulary_of(tmp_path, description).has_space_prefix is has_prefix


def test_all_ends_of_generation_are_ends_for_llama_cpp_too(tmp_path: Path) -> None:
    """Llama 3.1 has three; the one that ends a turn is the tokenizer's own."""
    folder = write_checkpoint(tmp_path, tokenizer=tokenizer_description(["<text>", "<message>", "<turn>"]))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 257, 258]}))
    special_ids = GgufVocabulary.of(Checkpoint.load(folder)).special_ids
    assert [special_ids[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")] == [258, 256, 257]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (tokenizer_description(type="Unigram"), "expected byte-level BPE, BPE with byte fallback, WordPiece, or Uni"),
        (
            tokenizer_description() | {"decoder": None},
            "expected byte-level BPE, BPE with byte fallback, WordPiece, or Uni",
        ),
        (tokenizer_description(merges=[(str(n), str(n)) for n in range(9)] * 4), "has token 291; .* vocab_size=288"),
    ],
    ids=["unigram", "no decoder", "too many tokens"],
)
def test_a_tokenizer_that_is_not_converted_is_refused(
    description: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        vocabulary_of(tmp_path, description)
