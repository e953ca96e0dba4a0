"""Tokenizers of GGUF files: the model's own after a conversion, and llama.cpp's for every kind."""

from __future__ import annotations

import json
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from cyllama.llama import llama_cpp as llama
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from build_engines.__main__ import main
from build_engines.artifact import Manifest
from build_engines.checkpoint import Checkpoint, read_chat_templates
from build_engines.errors import BuildError
from build_engines.json_files import read_json
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.gguf_tokenizer import write_tokenizer
from build_engines.llama_cpp.pre_tokenizers import PRE_TOKENIZERS
from build_engines.vocabulary import token_bytes
from model_repository.tokenizer.chat_prompt import writes_pairs
from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.build_engines.tiny_embedders import CONFIGS, added_around, write_embedder
from tests.gguf_writing import write_and_close
from tests.model_repository.engine.tiny_models import write_model

DEMO = Path("build_engines/demo/checkpoint")
KIND = gguf.TokenType
SPACE = "\u2581"

DECOMPOSED = "e\u0301 cafe\u0301 A\u030a"
MARKS = "हिन्दी में คำไทย עברית العَرَبِيَّة"
CAPITALS_INSIDE = "naïveÀÉñ éÉé ЖЖжЖ"
WIDE_SPACES = "a\u00a0b\u3000c\u2009d"
NOT_MERGED = "my zebra"  # `byte_level` has the word as a token, and no merges to it
TEXTS = [
    "",
    "Hello, world! It's I'LL WE'RE don't He'S",
    "def f(x):\n\treturn  x**2  # comment\n\n\n    pass\r\n\r\n",
    "12345 67 8 1,000.50 ½ ²³ ٣٤٥",
    "  leading",
    "trailing   ",
    " ",
    "naïve café Ünïcödé ÀÉ ñ",
    "Привет, мир! ΑΒΓ αβγ",
    "你好\uff0c世界。日本語テスト カタカナ 한국어 문장",
    "🙂👩\u200d👩\u200d👧 ✨!!! ??",
    "<html><a href='x'>$5 + 3 = 8 ^~|`</a>",
    "camelCase PascalCaseXML HTTPServer snake_case",
    "//// ---- ==== ....\n\n /x/\n",
    "\n\n \n  \n\t\n x",
    "a\r\nb\rc",
    "§ ¶ € £ ™ © ° µ ª º \u01c5 \u02b0 \u2177",
    "<|im_start|>user\n hi <|im_end|>\n<|im_end|><|im_start|>",
    DECOMPOSED,
    MARKS,
    CAPITALS_INSIDE,
    WIDE_SPACES,
    NOT_MERGED,
]


# --- what Conch itself has converted ----------------------------------------------------------------------------------


def test_the_demos_tokenizer_survives_its_conversion(tmp_path: Path) -> None:
    write_gguf(Checkpoint.load(DEMO), tmp_path / "demo.gguf")
    write_tokenizer(tmp_path / "demo.gguf", tmp_path)
    ours, theirs = TokenizerFiles.load(tmp_path).tokenizer, TokenizerFiles.load(DEMO).tokenizer
    texts = [text for text in TEXTS if unicodedata.is_normalized("NFC", text)]
    texts += ["<|im_start|>user\nHi<|im_end|>\n", "<tool_call>\n{}</tool_call>", "<|fim_prefix|>a<|fim_suffix|>"]
    for text in texts:
        token_ids = theirs.encode(text).ids
        assert ours.encode(text).ids == token_ids
        for skip in (True, False):
            assert ours.decode(token_ids, skip_special_tokens=skip) == theirs.decode(
                token_ids, skip_special_tokens=skip
            )
    vocabularies = [Vocabulary(tokenizer) for tokenizer in (ours, theirs)]
    assert len({vocabulary.first_ids for vocabulary in vocabularies}) == 1
    assert len({str(vocabulary.control_tokens) for vocabulary in vocabularies}) == 1
    table, own_table = (
        token_bytes(read_json(folder / "tokenizer.json"), vocabularies[1].size) for folder in (tmp_path, DEMO)
    )
    assert table == own_table
    written, own = (read_json(folder / "tokenizer_config.json") for folder in (tmp_path, DEMO))
    assert {name: own[name] for name in written} == written
    assert written.keys() >= {"bos_token", "eos_token", "pad_token", "chat_template"}
    named = read_json(DEMO / "generation_config.json")["eos_token_id"]
    assert read_json(tmp_path / "generation_config.json")["eos_token_id"][: len(named)] == named


@pytest.mark.parametrize("capital", [[], ["Fox"]], ids=["lowercase", "cased"])
def test_word_pieces_survive_their_conversion(capital: list[str], tmp_path: Path) -> None:
    checkpoint = write_embedder(tmp_path / "checkpoint", "bert")
    description = read_json(checkpoint / "tokenizer.json")
    for token in capital:
        description["model"]["vocab"][token] = description["model"]["vocab"].pop("fox")
        description["normalizer"]["lowercase"] = False
    (checkpoint / "tokenizer.json").write_text(json.dumps(description))
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    ours, theirs = TokenizerFiles.load(tmp_path).tokenizer, TokenizerFiles.load(checkpoint).tokenizer
    assert ours.get_vocab() == theirs.get_vocab()
    for text in [*TEXTS, "The red foxs running, [MASK] green house"]:
        assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode("Fox").tokens[1:-1] == (capital or ["fox"])
    assert ours.encode("").tokens == ["[CLS]", "[SEP]"]


def test_the_likeliest_tokens_survive_their_conversion(unigram: Vocab, tmp_path: Path) -> None:
    """With the steps of XLM-RoBERTa's tokenizer.json, as multilingual BERT models of today have it."""
    checkpoint, metaspace = write_embedder(tmp_path / "checkpoint", "bert"), {"type": "Metaspace", "replacement": SPACE}
    scored = list(zip(unigram.tokens, unigram.scores, strict=True))
    scored[5] = ("\u2581zebra", -20.0)  # a checkpoint has no unused row before the last
    description = read_json(checkpoint / "tokenizer.json") | {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap(CHARACTERS)).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": scored[: CONFIGS["bert"]["vocab_size"] - 2]},
    }
    added = description["added_tokens"]
    description["added_tokens"] = [added[0] | {"id": row, "content": unigram.tokens[row]} for row in (0, 1, 2, 4)]
    description["post_processor"] = added_around({"<s>": 0}, {"</s>": 2})
    (checkpoint / "tokenizer.json").write_text(json.dumps(description))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"cls_token": "<s>", "eos_token": "</s>"}))
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf")
    texts = [text for text in (*TEXTS, *NORMALIZED) if not text.startswith(SPACE)]  # which would get no other one
    assert differing_texts(tmp_path / "model.gguf", texts) == []
    theirs = TokenizerFiles.load(checkpoint).tokenizer
    ours = TokenizerFiles.load(tmp_path / "model").tokenizer
    for text in texts:
        assert ours.encode(text).ids == theirs.encode(text).ids


# --- against llama.cpp ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Vocab:
    """A vocabulary for a GGUF file."""

    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path, model: str, **keys: Any) -> Path:
        """Write a model of zeros: llama.cpp loads nothing smaller."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_head_count(1)
        writer.add_feed_forward_length(32)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model(model)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.scores:
            writer.add_token_scores(self.scores)
        for key, value in {**self.keys, **keys}.items():
            if key == "name":
                writer.add_name(value)
            elif isinstance(value, str):
                writer.add_string(f"tokenizer.ggml.{key}", value)
            elif isinstance(value, bool):
                writer.add_bool(f"tokenizer.ggml.{key}", value)
            elif isinstance(value, bytes):
                writer.add_array(f"tokenizer.ggml.{key}", value)
            else:
                writer.add_uint32(f"tokenizer.ggml.{key}", value)
        matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(self.tokens), 32), "output_norm": (32,)}
        shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.0.{name}": (32, 32) for name in matrices}
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
        write_and_close(writer)
        return path


def trained_model(normalizer: Any, pre_tokenizer: Any, **settings: Any) -> dict[str, Any]:
    """Train BPE on TEXTS without splitting them, so that each missing split shows."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=3000, min_frequency=2, show_progress=False, **settings)
    tokenizer.train_from_iterator([text.replace("|", "") for text in TEXTS[:-1] * 3], trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


@pytest.fixture(scope="module")
def byte_level() -> Vocab:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = trained_model(
        None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), initial_alphabet=alphabet
    )
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return Vocab(
        tokens=[*tokens, "<|im_start|>", "<|im_end|>", "\u0120zebra"],
        types=[*[KIND.NORMAL] * len(tokens), KIND.CONTROL, KIND.CONTROL, KIND.NORMAL],
        merges=[" ".join(merge) for merge in model["merges"]],
        keys={"bos_token_id": len(tokens), "eos_token_id": len(tokens) + 1},
    )


@pytest.fixture(scope="module")
def scored() -> Vocab:
    """Of SentencePiece's kind, with runs of spaces as a GGUF file of Gemma has them."""
    model = trained_model(normalizers.Replace(" ", SPACE), None)
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(model["merges"])))}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types: list[int] = [KIND.UNKNOWN, KIND.CONTROL, KIND.CONTROL, *[KIND.BYTE] * 256]
    scores = [0.0] * len(tokens)
    spaces = {SPACE * length: " " * length for length in range(2, 9)}
    for token in dict.fromkeys([*(token for token in learned if token.strip("\n")), *spaces, "\n", "\n\n"]):
        tokens.append(spaces.get(token, token))
        is_own = token in spaces or not token.strip("\n")
        types.append(KIND.USER_DEFINED if is_own else KIND.NORMAL)
        scores.append(-1000.0 if is_own else -float(ranks.get(token, len(ranks))))
    merges = [f"{left} {right}" for left, right in model["merges"] if {left, right, left + right}.issubset(tokens)]
    return Vocab(
        tokens=[*tokens, "<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        types=[*types, *[KIND.CONTROL] * 3],
        merges=merges,
        scores=[*scores, *[0.0] * 3],
        keys={"bos_token_id": 1, "eos_token_id": 2},
    )


CHARACTERS = {  # of a text, by what the normalizer makes of them
    **dict.fromkeys(("\t", "\n", "\r", "\u00a0", "\u3000", "\u2009"), " "),
    "\ufb01": "fi",
    "\uff21": "A",
    "\u2460": "1",
    "e\u0301": "é",
    "\u200b": "",
}
NORMALIZED = [
    *("\ufb01ne \ufb01 \uff21\u2460", "\u200b\u200ba", "e\u0301e \u3000 \n b"),
    *("[PAD5]", "<s>a</s> <mask> b", "\u2581a"),
]


def charsmap(replacements: Mapping[str, str]) -> bytes:
    """Return SentencePiece's form of replacements: a trie in a double array, and the texts, each with a zero behind."""
    units, bases, texts = {0: 0}, {0}, bytearray()

    def place(keys: Mapping[bytes, str], node: int) -> None:
        labels = {key[0] if key else 0: None for key in keys}
        free = (base for base in range(2**16) if base not in bases)
        base = next(base for base in free if not any(base ^ label in units for label in labels))
        bases.add(base)
        units.update({base ^ label: label for label in labels})
        units[node] |= (node ^ base) << 10 | (b"" in keys) << 8
        for label in labels:
            below = {key[1:]: text for key, text in keys.items() if key[:1] == bytes([label])}
            if below:
                place(below, base ^ label)
        if b"" in keys:
            units[base] = 1 << 31 | len(texts)
            texts.extend(keys[b""].encode() + b"\0")

    place({key.encode(): text for key, text in replacements.items()}, 0)
    array = np.zeros(max(units) | 255 + 1, "<u4")
    array[list(units)] = list(units.values())
    return len(array.tobytes()).to_bytes(4, "little") + array.tobytes() + bytes(texts)


@pytest.fixture(scope="module")
def unigram() -> Vocab:
    """Of XLM-RoBERTa's form, as a GGUF file of bge-m3 has it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, show_progress=False, unk_token="<unk>")
    tokenizer.train_from_iterator([text.replace("|", "") for text in (*TEXTS, *CHARACTERS.values())] * 3, trainer)
    learned = [(text, score) for text, score in json.loads(tokenizer.to_str())["model"]["vocab"] if text != "<unk>"]
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "[PAD5]")
    return Vocab(
        tokens=[*special, *(text for text, _ in learned)],
        types=[*[KIND.CONTROL] * 3, KIND.UNKNOWN, KIND.CONTROL, KIND.UNUSED, *[KIND.NORMAL] * len(learned)],
        scores=[*[0.0] * 5, -10000.0, *(score for _, score in learned)],
        keys={
            "bos_token_id": 0,
            "eos_token_id": 2,
            "unknown_token_id": 3,
            "add_bos_token": True,
        },
    )


def llama_cpp_model(path: Path) -> llama.LlamaModel:
    llama.disable_logging()
    llama.ggml_backend_load_all()
    return llama.LlamaModel(str(path), llama.LlamaModelParams())


def differing_texts(path: Path, texts: Sequence[str] = TEXTS) -> list[str]:
    """Return the texts that llama.cpp and the written tokenizer turn into different tokens."""
    folder = path.with_suffix("")
    folder.mkdir()
    write_tokenizer(path, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = llama_cpp_model(path)
    vocab = model.get_vocab()
    differing = [text for text in texts if list(vocab.tokenize(text, True, True)) != tokenizer.encode(text).ids]
    model.close()
    return differing


# The tokenizers of Qwen and ModernBERT compose characters (NFC), and llama.cpp does not.
NFC = [DECOMPOSED]
# llama.cpp counts letters outside of ASCII as both cases, and marks as no part of a word.
CASES = [DECOMPOSED, MARKS, CAPITALS_INSIDE]
# llama.cpp counts other spaces as ASCII ones, which the expression for CJK does not have.
SPACES = [WIDE_SPACES]
KNOWN_DIFFERENCES = {
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "f2llmv2", "qwen35", "modern-bert"), NFC),
    **dict.fromkeys(("tekken", "gpt-4o", "llama4", "kanana2", "minimax-m2"), CASES),
    **dict.fromkeys(("deepseek-llm", "deepseek-coder"), SPACES),
    "granite-embed-multi-97m": [CAPITALS_INSIDE],
}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_text_is_split_as_llama_cpp_splits_it(name: str, byte_level: Vocab, tmp_path: Path) -> None:
    """BOS is added as llama.cpp adds it: the file does not say."""
    path = byte_level.write(tmp_path / "model.gguf", "gpt2", pre=name)
    assert differing_texts(path) == KNOWN_DIFFERENCES.get(name, [])


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("llama", {}),
        ("llama", {"add_space_prefix": False}),
        ("llama", {"add_bos_token": False, "add_eos_token": True}),
        ("gemma4", {}),
    ],
)
def test_tokens_with_scores_are_those_of_llama_cpp(
    model: str, keys: dict[str, Any], scored: Vocab, tmp_path: Path
) -> None:
    assert differing_texts(scored.write(tmp_path / "model.gguf", model, **keys)) == []


# `tokenizers` normalizes both characters of a line's end as one, which shows where spaces are kept.
LINE_ENDS = [text for text in TEXTS if "\r\n" in text]


@pytest.mark.parametrize(
    ("keys", "differing"),
    [
        ({"add_space_prefix": True, "remove_extra_whitespaces": True}, []),
        ({"remove_extra_whitespaces": True, "add_bos_token": False, "add_eos_token": False}, []),
        ({"remove_extra_whitespaces": True, "precompiled_charsmap": b""}, []),
        ({}, LINE_ENDS),
    ],
)
def test_the_likeliest_tokens_are_those_of_llama_cpp(
    keys: dict[str, Any], differing: list[str], unigram: Vocab, tmp_path: Path
) -> None:
    keys = {"precompiled_charsmap": charsmap(CHARACTERS)} | keys
    path = unigram.write(tmp_path / "model.gguf", "t5", **{name: value for name, value in keys.items() if value != b""})
    assert differing_texts(path, [*TEXTS, *NORMALIZED]) == differing


def test_a_gguf_file_with_a_unigram_model_is_built(unigram: Vocab, tmp_path: Path) -> None:
    keys = {"remove_extra_whitespaces": True, "precompiled_charsmap": charsmap(CHARACTERS)}
    path = write_model(tmp_path / "model.gguf", "bert", unigram.write(tmp_path / "vocab.gguf", "t5", **keys))
    assert main(["build", "tiny", "--gguf", str(path), "--home", str(tmp_path)]) == 0
    [artifact] = tmp_path.glob("artifacts/tiny-*/")
    assert Manifest.load(artifact).pooling == "mean"
    vocabulary, model = Vocabulary(TokenizerFiles.load(artifact / "tokenizer").tokenizer), llama_cpp_model(path)
    assert vocabulary.encode("Hello, world!") == list(model.get_vocab().tokenize("Hello, world!", True, True))
    model.close()


@pytest.mark.parametrize(("adds_bos", "adds_eos"), [(True, True), (False, True)])
def test_bos_and_eos_are_added_as_the_file_says(
    adds_bos: bool, adds_eos: bool, byte_level: Vocab, tmp_path: Path
) -> None:
    keys = {"pre": "llama-bpe", "add_bos_token": adds_bos, "add_eos_token": adds_eos}
    assert differing_texts(byte_level.write(tmp_path / "model.gguf", "gpt2", **keys)) == []


def test_the_tokens_of_phi_3_include_the_spaces_behind_them(scored: Vocab, tmp_path: Path) -> None:
    texts = ["<|im_start|>\n hello<|im_end|>  x", "<s> a", "</s>\n\nb", "<unk>  c", "<|endoftext|> d"]
    types = [KIND.NORMAL if kind == KIND.USER_DEFINED else kind for kind in scored.types]  # Phi-3 has no runs of spaces
    vocab = replace(scored, types=types)
    path = vocab.write(tmp_path / "model.gguf", "llama", name="Phi-3.5 mini instruct")
    assert differing_texts(path, texts) == []
    assert differing_texts(vocab.write(tmp_path / "other.gguf", "llama", name="Phi"), texts) == []
    encoded = [
        Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")).encode(texts[0]).ids for name in ("model", "other")
    ]
    assert encoded[0] != encoded[1]


VISIBLE_END = "<|tool_response>"  # Gemma 4's, which its GGUF files mark as text
ENDS = [
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|flush|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "[e~["),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
]


@pytest.mark.parametrize(
    "controls",
    [
        ENDS,
        [VISIBLE_END],
        ["<|end|>", "<|return|>", "<|call|>", "<|start|>"],
        ["<|end|>", "<|flush|>", "<|calls|>"],
        ["<|end|>", "<|call|>", "<|flush|>"],
        ["</s>", "<|tool_response>"],
        ["</s>", "<pad>"],
        ["<|fim_pad|>"],
        ["<|file_sep|>"],
    ],
    ids=lambda controls: controls[-1],
)
def test_generation_ends_where_it_ends_for_llama_cpp(controls: list[str], byte_level: Vocab, tmp_path: Path) -> None:
    normal = [token for token in byte_level.tokens if not token.startswith("<|im_")]
    first = len(normal)
    vocab = Vocab(
        tokens=[*normal, "<stop>", *controls],
        types=[
            *[KIND.NORMAL] * first,
            KIND.CONTROL,
            *(KIND.USER_DEFINED if token == VISIBLE_END else KIND.CONTROL for token in controls),
        ],
        merges=byte_level.merges,
        keys={"pre": "gpt-2", "bos_token_id": first, "eos_token_id": first},
    )
    path = vocab.write(tmp_path / "model.gguf", "gpt2")
    write_tokenizer(path, tmp_path)
    model = llama_cpp_model(path)
    expected = {token_id for token_id in range(len(vocab.tokens)) if model.get_vocab().is_eog(token_id)}
    model.close()
    ends = read_json(tmp_path / "generation_config.json")["eos_token_id"]
    assert ends[0] == first
    assert set(ends) == expected
    assert len(ends) == len(expected)


# --- parts of a file --------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(tmp_path: Path) -> gguf.GGUFWriter:
    """Of a file with a vocabulary of bytes alone."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_token_list([*alphabet, "ab", "unused", "<own>", "[PAD259]", "<stop>", ""])
    normal, control = KIND.NORMAL, KIND.CONTROL
    writer.add_token_types([*[normal] * 257, KIND.UNUSED, KIND.USER_DEFINED, normal, control, control])
    writer.add_token_merges(["a b", "un used"])
    return writer


def test_unused_rows_have_no_token_and_the_others_keep_their_ids(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_eos_token_id(260)
    write_and_close(writer)
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer.id_to_token(row) for row in range(256, 262)] == ["ab", None, "<own>", None, "<stop>", None]
    assert tokenizer.encode("ab<own><stop>").ids == [256, 258, 260]
    assert tokenizer.decode([256, 258, 260]) == "ab<own>"
    assert tokenizer.get_added_tokens_decoder() == {
        258: AddedToken("<own>", normalized=False, special=False),
        260: AddedToken("<stop>", normalized=False, special=True),
    }
    assert read_json(tmp_path / "tokenizer_config.json") == {"eos_token": "<stop>"}
    assert read_json(tmp_path / "generation_config.json") == {"eos_token_id": [260]}


@pytest.mark.parametrize("token_id", [262, 2**32 - 1])
def test_a_padding_token_that_does_not_exist_is_not_read(
    token_id: int, writer: gguf.GGUFWriter, tmp_path: Path
) -> None:
    """Many files have -1, and llama.cpp serves them."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_eos_token_id(260)
    writer.add_eot_token_id(2**32 - 1)
    writer.add_pad_token_id(token_id)
    write_and_close(writer)
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    configured = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert "pad_token" not in configured
    ends = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert ends["eos_token_id"] == [260]


def test_a_file_says_whether_word_pieces_have_capitals(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    writer.add_tokenizer_model("bert")
    for key in ("bos_token_id", "seperator_token_id", "unknown_token_id"):
        writer.add_uint32(f"tokenizer.ggml.{key}", 260)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", True)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", False)
    write_and_close(writer)
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    normalizer = read_json(tmp_path / "tokenizer.json")["normalizer"]
    assert normalizer.items() >= {"lowercase": True, "strip_accents": False}.items()


def test_named_chat_templates_are_read(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_chat_template([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    write_and_close(writer)
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    assert read_chat_templates(tmp_path) == {"default": "D", "tool_use": "T"}


@pytest.mark.parametrize(("flags", "between"), [({}, "<|im_end|>"), ({"add_sep_token": True}, "<|im_end|><sep>")])
def test_a_pair_has_the_tokens_that_llama_cpps_server_adds(
    flags: dict[str, bool], between: str, byte_level: Vocab, tmp_path: Path
) -> None:
    vocab = replace(byte_level, tokens=[*byte_level.tokens, "<sep>"], types=[*byte_level.types, KIND.CONTROL])
    keys = {"pre": "llama-bpe", "add_bos_token": True, "add_eos_token": True, **flags}
    separator = {"seperator_token_id": len(byte_level.tokens)}  # spelled as in llama.cpp
    write_tokenizer(vocab.write(tmp_path / "model.gguf", "gpt2", **separator, **keys), tmp_path)
    tokens = TokenizerFiles.load(tmp_path).tokenizer.encode("a", "b").tokens
    assert "".join(tokens) == f"<|im_start|>a{between}b<|im_end|>"


def test_two_end_tokens_are_between_the_texts_of_xlm_roberta(unigram: Vocab, tmp_path: Path) -> None:
    """Most files do not say it, and llama.cpp's server puts one there."""
    write_tokenizer(unigram.write(tmp_path / "model.gguf", "t5", add_bos_token=True), tmp_path)
    tokens = TokenizerFiles.load(tmp_path).tokenizer.encode("a", "b").tokens
    assert [token for token in tokens if token.startswith("<")] == ["<s>", "</s>", "</s>", "</s>"]


def test_a_pair_of_word_pieces_begins_once(tmp_path: Path) -> None:
    write_gguf(Checkpoint.load(write_embedder(tmp_path / "checkpoint", "bert")), tmp_path / "model.gguf")
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    pair = TokenizerFiles.load(tmp_path).tokenizer.encode("red", "fox")
    assert (pair.tokens, pair.type_ids) == (["[CLS]", "red", "[SEP]", "fox", "[SEP]"], [0, 0, 0, 1, 1])


def test_the_form_of_a_reranker_becomes_its_template(writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    """A query with the other word of the form stays as it is."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    forms = {"default": "chat", "rerank": 'Is "{document}"\n an answer to {query}? {{ %}\n\n'}
    writer.add_chat_template([{"name": name, "template": form} for name, form in forms.items()])
    write_and_close(writer)
    write_tokenizer(tmp_path / "model.gguf", tmp_path)
    template = ChatTemplate(read_chat_templates(tmp_path)["default"], {})
    pair = [{"role": "query", "content": "{document}"}, {"role": "document", "content": "D"}]
    assert writes_pairs(template)
    assert template.render({"messages": pair}) == 'Is "D"\n an answer to {document}? {{ %}\n\n'


@pytest.mark.parametrize("length", [100, 3000])
def test_a_file_that_was_cut_off_is_refused_as_that(length: int, writer: gguf.GGUFWriter, tmp_path: Path) -> None:
    write_and_close(writer)
    path = tmp_path / "model.gguf"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BuildError, match=r"model\.gguf: a GGUF file that is cut off or damaged: download it again"):
        write_tokenizer(path, tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "tokenizer.ggml.model None: expected gpt2, llama, gemma4, bert or t5"),
        ({"model": "whitespace"}, "tokenizer.ggml.model 'whitespace': expected gpt2, llama, gemma4, bert or t5"),
        ({"model": "t5"}, "tokenizer.ggml.scores with 0 values: expected 262, one for each token"),
        ({"model": "gpt2"}, "tokenizer.ggml.pre None: the expression that splits text into words is not known"),
        ({"model": "gpt2", "pre": "kimi-k2"}, "tokenizer.ggml.pre 'kimi-k2': the expression that splits"),
        ({"model": "gpt2", "pre": "llama-bpe"}, "tokenizer.ggml.bos_token_id missing: texts begin or end with"),
        ({"model": "gpt2", "pre": "gpt-2", "eot_token_id": 262}, "tokenizer.ggml.eot_token_id 262: expected 0 to 261"),
        ({"model": "gpt2", "pre": "gpt-2", "add_bos_token": "yes"}, "add_bos_token 'yes': expected bool"),
        ({"model": "llama"}, "tokenizer.ggml.scores with 0 values: expected 262, one for each token"),
        ({"model": "llama", "scores": [-1.0, -2.0]}, "scores with 2 values: expected 262, one for each token"),
        ({"model": "llama", "scores": [-1000.0] * 262}, "scores with one value for all tokens: expected the order"),
    ],
)
def test_a_kind_that_is_not_supported_is_refused(
    keys: dict[str, Any], message: str, writer: gguf.GGUFWriter, tmp_path: Path
) -> None:
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_token_scores(value)
        elif isinstance(value, str):
            writer.add_string(f"tokenizer.ggml.{key}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
    write_and_close(writer)
    with pytest.raises(BuildError) as refusal:
        write_tokenizer(tmp_path / "model.gguf", tmp_path)
    said = str(refusal.value)
    assert said.startswith(f"{tmp_path / 'model.gguf'}: ")
    assert message in said
    assert said.endswith("; give its folder with --tokenizer")
    assert "\n" not in said
    assert not (tmp_path / "tokenizer.json").exists()
