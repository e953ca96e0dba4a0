"""The vocabulary of a GGUF file, from tokenizer.json.

Conch tokenizes in the tokenizer stage, never by llama.cpp. The vocabulary is for other programs.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf

from build_engines.checkpoint import Checkpoint, read_chat_templates, whole_number
from build_engines.errors import UnsupportedCheckpoint
from build_engines.json_files import read_json
from build_engines.vocabulary import vocab_of

Keys = gguf.Keys.Tokenizer

_UNUSED_SCORE = -10_000.0  # as llama.cpp's converter writes it
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's names of the expressions that split text into words, before byte-level BPE.
_PRE_TOKENIZERS = {_WORDS % "{1,3}": "llama-bpe", _WORDS % "": "qwen2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """The tokens of a model, one for each row of its embedding."""

    kind: str  # llama.cpp's word: gpt2 is byte-level BPE, llama SentencePiece, bert WordPiece, t5 the unigram model
    tokens: list[str]
    types: list[gguf.TokenType]
    merges: list[str]  # two tokens separated by a space; the first merge goes first
    scores: list[float]  # the highest score is merged first; of a unigram model the logarithm of its probability
    charsmap: bytes  # SentencePiece's normalization of a unigram model; empty: none
    special_ids: Mapping[str, int]  # key: GGUF's name
    pre_tokenizer: str
    has_space_prefix: bool
    adds_bos: bool
    chat_template: str

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> GgufVocabulary:
        """Read tokenizer.json and the configuration.

        Raises:
            UnsupportedCheckpoint: an unsupported kind of tokenizer, or more tokens than the model has.
        """
        description = read_json(checkpoint.folder / "tokenizer.json")
        model, decoder = description["model"], json.dumps(description.get("decoder"))
        kinds = {
            "BPE": (("ByteLevel", "gpt2"), ("ByteFallback", "llama")),
            "WordPiece": (("WordPiece", "bert"),),
            "Unigram": (("Metaspace", "t5"),),
        }
        kind = next((kind for mark, kind in kinds.get(model.get("type"), ()) if mark in decoder), None)
        if kind is None:
            expected = "byte-level BPE, BPE with byte fallback, WordPiece, or Unigram with Metaspace"
            raise UnsupportedCheckpoint(f"tokenizer.json: expected {expected}")
        tokens, types = _tokens(description, int(checkpoint.config["vocab_size"]))
        if checkpoint.scores is not None and checkpoint.scores.has_token_types:
            tokens += [f"[TYPE_1 {token_id}]" for token_id in range(len(tokens))]
            types += [gguf.TokenType.UNUSED] * len(types)
        merges = [item if isinstance(item, str) else " ".join(item) for item in model.get("merges", ())]
        special_ids = _special_ids(checkpoint, tokens)
        unknown = _id_of(model.get("unk_token"), tokens) if kind != "t5" else model.get("unk_id")
        if unknown is not None:
            special_ids[Keys.UNK_ID] = unknown
            types[unknown] = gguf.TokenType.UNKNOWN
        splits = _split_patterns(description)
        return cls(
            kind=kind,
            tokens=tokens,
            types=types,
            merges=merges,
            scores=_scores(tokens, merges) if kind != "t5" else _unigram_scores(model["vocab"], len(tokens)),
            charsmap=_charsmap(description),
            special_ids=special_ids,
            pre_tokenizer=next((name for pattern, name in _PRE_TOKENIZERS.items() if pattern in splits), "default"),
            has_space_prefix=_has_space_prefix(description),
            adds_bos=_adds_bos(description, special_ids.get(Keys.BOS_ID)),
            chat_template=read_chat_templates(checkpoint.folder).get("default", ""),
        )

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata for llama.cpp's loader and tokenizer."""
        writer.add_tokenizer_model(self.kind)
        writer.add_tokenizer_pre(self.pre_tokenizer)
        writer.add_token_list(list(map(_phantom, self.tokens, self.types)) if self.kind == "bert" else self.tokens)
        writer.add_token_types(self.types)
        if self.kind == "gpt2":
            writer.add_token_merges(self.merges)
        elif self.kind in ("llama", "t5"):
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(self.has_space_prefix)
        if self.kind == "t5":
            writer.add_remove_extra_whitespaces(True)
            if self.charsmap:
                writer.add_array(Keys.PRECOMPILED_CHARSMAP, self.charsmap)
        for key, token_id in self.special_ids.items():
            writer.add_uint32(key, token_id)
        writer.add_add_bos_token(self.adds_bos)
        if self.chat_template:
            writer.add_chat_template(self.chat_template)


def _phantom(token: str, kind: gguf.TokenType) -> str:
    """Return a token of WordPiece as llama.cpp has it: the start of a word is marked, in place of the rest of one."""
    if kind in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN, gguf.TokenType.UNUSED):
        return token
    return token.removeprefix("##") if token.startswith("##") else f"\u2581{token}"


def _tokens(description: dict[str, Any], vocab_size: int) -> tuple[list[str], list[gguf.TokenType]]:
    """Return token and type of every row of the embedding."""
    vocab = vocab_of(description["model"])
    if max(vocab.values()) >= vocab_size:
        rule = f"config.json says vocab_size={vocab_size}"
        raise UnsupportedCheckpoint(f"tokenizer.json: the model has token {max(vocab.values())}; {rule}")
    # Padding rows have no token.
    tokens = [f"[PAD{token_id}]" for token_id in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    has_bytes = bool(description["model"].get("byte_fallback"))
    for token, token_id in vocab.items():
        is_byte = has_bytes and _BYTE_TOKEN.fullmatch(token)
        tokens[token_id] = token
        types[token_id] = gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL
    for added in description.get("added_tokens", ()):
        if added["id"] < vocab_size:  # the model cannot use tokens beyond its vocabulary
            tokens[added["id"]] = added["content"]
            types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    return tokens, types


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """Return scores with which llama.cpp, which prefers the best token, merges in the order of the ranks."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _unigram_scores(vocab: list[tuple[str, float]], num_tokens: int) -> list[float]:
    scores = [score for _, score in vocab]
    return scores + [_UNUSED_SCORE] * (num_tokens - len(scores))


def _charsmap(description: dict[str, Any]) -> bytes:
    parts = _parts(description.get("normalizer"))
    return next((b64decode(part["precompiled_charsmap"]) for part in parts if part["type"] == "Precompiled"), b"")


def _special_ids(checkpoint: Checkpoint, tokens: list[str]) -> dict[str, int]:
    """Return the ids of the configured special tokens by their keys in GGUF."""
    configured = read_json(checkpoint.folder / "tokenizer_config.json", is_optional=True)
    special_ids = {}
    for key, name in ((Keys.BOS_ID, "cls"), (Keys.SEP_ID, "sep"), (Keys.BOS_ID, "bos"), (Keys.PAD_ID, "pad")):
        token_id = checkpoint.config.get(f"{name}_token_id")
        if token_id is not None:
            whole_number(f"config.json: {name}_token_id", token_id, -1)
        else:
            token_id = _id_of(configured.get(f"{name}_token"), tokens)
        if token_id is not None and 0 <= token_id < len(tokens):
            special_ids[key] = token_id
    # llama.cpp ends generation at each of these three. GGUF has no more; the artifact's manifest lists all.
    first = _id_of(configured.get("eos_token"), tokens)
    ends = dict.fromkeys(checkpoint.eos_token_ids or ([] if first is None else [first]))  # an encoder names none
    ordered = sorted(ends, key=lambda token_id: token_id != first)
    return special_ids | dict(zip((Keys.EOS_ID, Keys.EOT_ID, Keys.EOM_ID), ordered, strict=False))


def _id_of(token: object, tokens: list[str]) -> int | None:
    """Return the id of a token of tokenizer_config.json, which is a text or an object with a text."""
    content = token.get("content") if isinstance(token, dict) else token
    return tokens.index(content) if content in tokens else None


def _has_space_prefix(description: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a space before a text."""
    parts = [*_parts(description.get("normalizer")), *_parts(description.get("pre_tokenizer"))]
    return any(
        part["type"] == "Prepend" or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )


def _adds_bos(description: dict[str, Any], bos_token_id: int | None) -> bool:
    """Whether the tokenizer puts BOS before a text."""
    for part in _parts(description.get("post_processor")):
        first = part["single"][0] if part["type"] == "TemplateProcessing" else {}
        if "SpecialToken" in first:
            return bos_token_id in part["special_tokens"][first["SpecialToken"]["id"]]["ids"]
    return False


def _split_patterns(description: dict[str, Any]) -> list[str]:
    """Return the regular expressions that split a text into words."""
    parts = _parts(description.get("pre_tokenizer"))
    return [part["pattern"].get("Regex", "") for part in parts if part["type"] == "Split"]


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's component. A sequence has its steps under one of these names."""
    if component is None:
        return []
    for name in ("normalizers", "pretokenizers", "processors"):
        if name in component:
            return [part for step in component[name] for part in _parts(step)]
    return [component]
