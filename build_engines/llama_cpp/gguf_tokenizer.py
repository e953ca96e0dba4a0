"""The tokenizer inside a GGUF file, written as files in Hugging Face's layout."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import gguf

from build_engines.errors import BuildError
from build_engines.llama_cpp.gguf_header import NO_TOKEN, TURN_ENDS, open_model
from build_engines.llama_cpp.pre_tokenizers import PRE_TOKENIZERS

Keys = gguf.Keys.Tokenizer

type _Json = dict[str, Any]

_NORMALIZER = "tokenizer.ggml.normalizer"  # newer than the package gguf
_REMEDY = "give its folder with --tokenizer"
_SPACE = "\u2581"  # SentencePiece writes a space as this character
# llama.cpp ends generation at these tokens: of a turn, a text or a message, and those between files of code.
_END_TOKENS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[
    <\uff5cend\u2581of\u2581sentence\uff5c> <|file_sep|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>
"""
_VISIBLE_END = "<|tool_response>"  # converters mark this token of Gemma 4 as text, so that parsers see it
_END_KEYS = (*TURN_ENDS, Keys.FIM_PAD_ID, Keys.FIM_REP_ID, Keys.FIM_SEP_ID)
# The last token ends no turn where the model has all the others.
_NOT_ENDS = (
    ("<|return|>", "<|call|>", "<|end|>"),
    ("<|call|>", "<|flush|>", "<|end|>"),
    ("<|calls|>", "<|flush|>", "<|end|>"),
    ("<|tool_response>", "</s>"),
)
_CONFIGURED = {"bos_token": Keys.BOS_ID, "eos_token": Keys.EOS_ID, "unk_token": Keys.UNK_ID, "pad_token": Keys.PAD_ID}
_DEFAULT_IDS = {  # of a file without them, by its kind of tokenizer
    "llama": {Keys.BOS_ID: 1, Keys.EOS_ID: 2, Keys.UNK_ID: 0},
    "bert": {Keys.BOS_ID: 101, Keys.SEP_ID: 102, Keys.UNK_ID: 100},
    "t5": {Keys.EOS_ID: 1, Keys.UNK_ID: 2},
}


def write_tokenizer(gguf_path: Path, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into an empty folder.

    Args:
        gguf_path: a GGUF file, or the first of a split model.
        folder: exists, and has none of these files.

    Raises:
        BuildError: not a GGUF file of a model, or a kind of tokenizer that is not supported.
    """
    header = _Header(gguf_path, open_model(gguf_path))
    tokens = _Tokens.of(header)
    files = {
        "tokenizer.json": _tokenizer(header, tokens),
        "tokenizer_config.json": tokens.configured() | _chat_template(header),
        "generation_config.json": {"eos_token_id": _end_token_ids(tokens)},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


# --- the header -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Header:
    path: Path
    reader: gguf.GGUFReader

    @overload
    def value[T](self, key: str, kind: type[T]) -> T | None: ...
    @overload
    def value[T](self, key: str, kind: type[T], default: T) -> T: ...
    def value[T](self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """Return the value of a key.

        Raises:
            BuildError: the value is of another kind.
        """
        field = self.reader.fields.get(key)
        if field is None:
            return default
        try:
            value = field.contents()
        except UnicodeDecodeError as exc:
            raise self.refusal(key, "bytes", "expected text in UTF-8") from exc
        if not isinstance(value, kind):
            raise self.refusal(key, repr(value), f"expected {kind.__name__}")
        return value

    def array(self, key: str, length: int | None = None) -> list[Any]:
        """Return a required array.

        Raises:
            BuildError: it is missing, or has another length.
        """
        array: list[Any] = self.value(key, list, [])
        if not array or length not in (None, len(array)):
            rule = f"expected {'some' if length is None else f'{length:,}, one for each token'}"
            raise self.refusal(key, f"with {len(array):,} values", rule)
        return array

    def refusal(self, key: str, found: str, rule: str) -> BuildError:
        return BuildError(f"{self.path}: {key} {found}: {rule}; {_REMEDY}")


# --- tokens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    texts: list[str]  # one for each row
    types: list[int]  # gguf.TokenType of each row
    ids: dict[str, int]  # ids of used rows, ascending
    special_ids: dict[str, int]  # key: GGUF's name

    @classmethod
    def of(cls, header: _Header) -> _Tokens:
        """Read the vocabulary.

        Raises:
            BuildError: it is incomplete, or a special token is not in it.
        """
        texts = header.array(Keys.LIST)
        types = [int(gguf.TokenType.NORMAL)] * len(texts)
        if Keys.TOKEN_TYPE in header.reader.fields:
            types = header.array(Keys.TOKEN_TYPE, len(texts))
        special_ids = dict(_DEFAULT_IDS.get(header.value(Keys.MODEL, str, ""), {}))
        for key in (*_CONFIGURED.values(), Keys.SEP_ID, *_END_KEYS):
            token_id = header.value(key, int, special_ids.get(key))
            # As in llama.cpp, the id of no token is not read. One that ends texts is refused: no text would end.
            is_read = token_id is not None and token_id != NO_TOKEN and (token_id < len(texts) or key in _END_KEYS)
            if token_id is not None and is_read:
                special_ids[key] = token_id
        for key, token_id in special_ids.items():
            if not 0 <= token_id < len(texts):
                raise header.refusal(key, str(token_id), f"expected 0 to {len(texts) - 1}")
        unused = {
            row
            for row, (text, token_type) in enumerate(zip(texts, types, strict=True))
            if token_type == gguf.TokenType.UNUSED or text in ("", f"[PAD{row}]")
        }.difference(special_ids.values())
        ids = {text: row for row, text in enumerate(texts) if row not in unused}
        return cls(texts=texts, types=types, ids=ids, special_ids=special_ids)

    def configured(self) -> dict[str, str]:
        """Return the special tokens by their names in tokenizer_config.json."""
        return {name: self.texts[self.special_ids[key]] for name, key in _CONFIGURED.items() if key in self.special_ids}

    def added(self, model_name: str) -> list[_Json]:
        """Return the tokens that are found in a text before all others."""
        # The tokens of Phi-3 include the spaces behind them; a GGUF file cannot say this of a token.
        strips = any(name in model_name.lower() for name in ("phi-3", "phi3"))
        ends = {self.special_ids.get(key) for key in TURN_ENDS}
        special_types = (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)
        special = {row for row in self.ids.values() if row in ends or self.types[row] in special_types}
        return [
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and text not in ("<unk>", "<s>", "<|endoftext|>"),
                "normalized": False,
                "special": token_id in special,
            }
            for text, token_id in self.ids.items()
            if token_id in special or self.types[token_id] == gguf.TokenType.USER_DEFINED
        ]


def _end_token_ids(tokens: _Tokens) -> list[int]:
    """Return the ids of the tokens that end generation, the tokenizer's own first."""
    ends = dict.fromkeys(tokens.special_ids[key] for key in _END_KEYS if key in tokens.special_ids)
    for text in _END_TOKENS.split():
        token_id = tokens.ids.get(text)
        if token_id is not None and (tokens.types[token_id] == gguf.TokenType.CONTROL or text == _VISIBLE_END):
            ends[token_id] = None
    texts = {tokens.texts[token_id] for token_id in ends}
    removed = {group[-1] for group in _NOT_ENDS if texts.issuperset(group)}
    return [token_id for token_id in ends if tokens.texts[token_id] not in removed]


def _chat_template(header: _Header) -> _Json:
    default = header.value(Keys.CHAT_TEMPLATE, str, "")
    templates = {"default": default} if default else {}
    for name in header.value(Keys.CHAT_TEMPLATES, list, []):
        templates[name] = header.value(Keys.CHAT_TEMPLATE_N.format(name=name), str, "")
    if "rerank" in templates:
        templates = {"default": _pair_template(templates["rerank"])}
    match templates:
        case {"default": only} if len(templates) == 1:
            return {"chat_template": only}
        case {}:
            named = [{"name": name, "template": template} for name, template in templates.items()]
            return {"chat_template": named} if named else {}


def _pair_template(form: str) -> str:
    """Return the template of a reranker in Jinja, for two messages. llama.cpp only replaces two words in it."""
    parts = re.split("{(query|document)}", form)  # text and role in turns
    role = '(messages | selectattr("role", "eq", {}) | first).content'
    return "{{ " + " ~ ".join((role.format if i % 2 else str)(json.dumps(part)) for i, part in enumerate(parts)) + " }}"


# --- tokenizer.json ---------------------------------------------------------------------------------------------------


def _tokenizer(header: _Header, tokens: _Tokens) -> _Json:
    """Return the content of tokenizer.json.

    Raises:
        BuildError: this kind of tokenizer is not supported.
    """
    match header.value(Keys.MODEL, str):
        case "gpt2":
            steps, adds_bos = _byte_level(header, tokens)
        case "llama":
            merges = list(_merges_by_score(tokens, header.array(Keys.SCORES, len(tokens.texts)), header))
            has_prefix = header.value(Keys.ADD_PREFIX, bool, True)
            steps, adds_bos = _sentencepiece(tokens, merges, has_prefix), True
        case "gemma4":
            steps, adds_bos = _sentencepiece(tokens, _listed_merges(header, tokens), False), True
        case "bert":
            steps, adds_bos = _word_piece(header, tokens), True
        case "t5":
            steps, adds_bos = _unigram(header, tokens), False
        case kind:
            raise header.refusal(Keys.MODEL, repr(kind), "expected gpt2, llama, gemma4, bert or t5")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens.added(header.value(gguf.Keys.General.NAME, str, "")),
        **steps,
        "post_processor": _post_processor(header, tokens, adds_bos),
    }


def _byte_level(header: _Header, tokens: _Tokens) -> tuple[_Json, bool]:
    """Return the steps of byte-level BPE, and whether BOS comes before a text where the file does not say it."""
    name = header.value(Keys.PRE, str)
    if name not in PRE_TOKENIZERS:
        raise header.refusal(Keys.PRE, repr(name), "the expression that splits text into words is not known")
    pre_tokenizer = PRE_TOKENIZERS[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in pre_tokenizer.expressions
    ]
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = _bpe(tokens, _listed_merges(header, tokens), ignore_merges=pre_tokenizer.ignores_merges)
    steps = {
        "normalizer": {"type": "NFC"} if pre_tokenizer.normalizes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, to_bytes]},
        "decoder": to_bytes,
        "model": model,
    }
    return steps, pre_tokenizer.adds_bos


def _sentencepiece(tokens: _Tokens, merges: Sequence[tuple[str, str]], has_prefix: bool) -> _Json:
    """Return the steps of SentencePiece with byte fallback."""
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    unknown = tokens.configured().get("unk_token")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": _sentencepiece_decoder(has_prefix),
        "model": _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _sentencepiece_decoder(has_prefix: bool) -> _Json:
    restore = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    return {"type": "Sequence", "decoders": [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}


def _word_piece(header: _Header, tokens: _Tokens) -> _Json:
    """Return the steps of WordPiece. A file marks the starts of words, in place of the other pieces."""
    special = {gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN}
    words = {text: row for text, row in tokens.ids.items() if tokens.types[row] not in special}
    pieces = {text[1:] if text.startswith(_SPACE) else f"##{text}": row for text, row in words.items()}
    unknown = tokens.texts[tokens.special_ids[Keys.UNK_ID]]
    is_lowercase = all(piece == piece.lower() for piece in pieces if not piece.startswith("["))  # [unused1]
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": header.value(f"{_NORMALIZER}.strip_accents", bool),  # None: as `lowercase`
            "lowercase": header.value(f"{_NORMALIZER}.lowercase", bool, is_lowercase),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": pieces | {text: row for text, row in tokens.ids.items() if tokens.types[row] in special},
        },
    }


def _unigram(header: _Header, tokens: _Tokens) -> _Json:
    """Return the steps of SentencePiece's unigram model, which finds the likeliest tokens of a whole text."""
    scores = header.array(Keys.SCORES, len(tokens.texts))
    charsmap = bytes(value % 256 for value in header.value(Keys.PRECOMPILED_CHARSMAP, list, []))
    removes_spaces = header.value(Keys.REMOVE_EXTRA_WS, bool, False)
    characters = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}]
    spaces = [(" +", " "), (r"\A | \z", "")] if removes_spaces else []
    has_prefix = removes_spaces or header.value(Keys.ADD_PREFIX, bool, False)
    steps = [
        *(characters if charsmap else []),
        *({"type": "Replace", "pattern": {"Regex": found}, "content": content} for found, content in spaces),
        *([{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []),
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _sentencepiece_decoder(has_prefix),
        "model": {
            "type": "Unigram",
            "unk_id": tokens.special_ids[Keys.UNK_ID],
            # The id is the place in the list: an unused row has an empty text, which no text has.
            "vocab": [
                (text if row == tokens.ids.get(text) else "", float(score))
                for row, (text, score) in enumerate(zip(tokens.texts, scores, strict=True))
            ],
        },
    }


def _bpe(tokens: _Tokens, merges: Sequence[tuple[str, str]], **settings: Any) -> _Json:
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    # Added tokens too: `tokenizers` would number those outside of the vocabulary anew where rows are unused.
    return defaults | settings | {"vocab": tokens.ids, "merges": merges}


def _listed_merges(header: _Header, tokens: _Tokens) -> list[tuple[str, str]]:
    """Return the merges of the file, except those of unused rows."""
    merges: dict[tuple[str, str], None] = {}  # an ordered set; the first of equal ones counts
    for merge in header.array(Keys.MERGES):
        middle = merge.find(" ", 1)
        merges[merge[:middle], merge[middle + 1 :]] = None
    ids = tokens.ids
    return [(left, right) for left, right in merges if left in ids and right in ids and left + right in ids]


def _merges_by_score(tokens: _Tokens, scores: Sequence[float], header: _Header) -> Iterator[tuple[str, str]]:
    """Yield every split of a token into two tokens, the token with the highest score first.

    Raises:
        BuildError: all scores are equal. Some converters have written this.
    """
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED, 0)  # 0: undefined
    ids = {text: token_id for text, token_id in tokens.ids.items() if tokens.types[token_id] in kinds}
    if len(ids) > 1 and len({scores[token_id] for token_id in ids.values()}) == 1:
        raise header.refusal(Keys.SCORES, "with one value for all tokens", "expected the order of the merges")
    for text in sorted(ids, key=lambda text: -scores[ids[text]]):
        splits = ((text[:middle], text[middle:]) for middle in range(1, len(text)))
        found = [(left, right) for left, right in splits if left in ids and right in ids]
        yield from sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _post_processor(header: _Header, tokens: _Tokens, adds_bos: bool) -> _Json | None:
    """Return the step that puts BOS before a text and EOS behind it, or with WordPiece SEP.

    In a pair, they are around both texts, with EOS between them, and SEP too if the file says so. Between texts of
    XLM-RoBERTa there are two EOS also where the file does not say it, unlike in llama.cpp.

    Source: format_prompt_rerank in llama.cpp's server.

    Raises:
        BuildError: the file names no such token.
    """
    before = _added_token(header, tokens, Keys.BOS_ID, header.value(Keys.ADD_BOS, bool, adds_bos))
    if header.value(Keys.MODEL, str) == "bert":
        between = behind = _added_token(header, tokens, Keys.SEP_ID, header.value(Keys.ADD_SEP, bool, True))
    else:
        is_unigram = header.value(Keys.MODEL, str) == "t5"
        behind = _added_token(header, tokens, Keys.EOS_ID, header.value(Keys.ADD_EOS, bool, is_unigram))
        separator = _added_token(header, tokens, Keys.SEP_ID, header.value(Keys.ADD_SEP, bool, False))
        between = behind + (behind if is_unigram else separator)
    if not before and not behind:
        return None

    def added(part: list[str], type_id: int = 0) -> list[_Json]:
        return [{"SpecialToken": {"id": token, "type_id": type_id}} for token in part]

    first, second = ({"Sequence": {"id": text, "type_id": type_id}} for type_id, text in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*added(before), first, *added(behind)],
        "pair": [*added(before), first, *added(between), second, *added(behind, 1)],
        "special_tokens": {
            token: {"id": token, "ids": [tokens.ids[token]], "tokens": [token]} for token in (*before, *between)
        },
    }


def _added_token(header: _Header, tokens: _Tokens, key: str, is_added: bool) -> list[str]:
    if is_added and key not in tokens.special_ids:
        raise header.refusal(key, "missing", "texts begin or end with this token")
    return [tokens.texts[tokens.special_ids[key]]] if is_added else []
