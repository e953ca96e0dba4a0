"""The tokenizer inside a GGUF file, written as files in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import gguf

from build_engines.errors import BuildError
from build_engines.llama_cpp import gguf_header

Keys = gguf.Keys.Tokenizer

type _Json = dict[str, Any]

_REMEDY = "give its folder with --tokenizer"
_SPACE = "\u2581"  # SentencePiece writes a space as this character
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is split into words before byte-level BPE: by each expression in turn, within the pieces so far."""

    names: str  # in tokenizer.ggml.pre, with a space between them
    expressions: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token stays whole
    adds_bos: bool = False  # where the file does not say it
    normalizes: bool = False  # to NFC, as the model's own tokenizer does; llama.cpp leaves text as it is


def _words(digits: str, letters: str = r"\p{L}", contractions: str = rf"{_CONTRACTIONS}|") -> str:
    others = rf" ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|\p{{N}}{digits}|{others}"


def _words_by_case(digits: str, contractions: str) -> str:
    first, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = rf"{first}{upper}*{lower}+{contractions}|{first}{upper}+{lower}*{contractions}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREE_DIGITS = "[0-9][0-9][0-9]"
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# Letters that have a case, as of an older Unicode.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

# Facts of llama.cpp (src/llama-vocab.cpp) and of the tokenizers that it names.
_PRE_TOKENIZERS = (
    _PreTokenizer("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", _THREE_DIGITS)),
    _PreTokenizer(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        (_words("{1,3}"),),
        ignores_merges=True,
        adds_bos=True,
    ),
    _PreTokenizer("dbrx smaug-bpe chatglm-bpe glm4", (_words("{1,3}"),)),
    _PreTokenizer("qwen2 deepseek-r1-qwen", (_words(""),), normalizes=True),
    _PreTokenizer("qwen35", (_words("", r"\p{L}\p{M}"),), normalizes=True),
    _PreTokenizer("stablelm2 hunyuan megrez kormo solar-open grok-2", (_words(""),)),
    _PreTokenizer(
        "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling",
        (_GPT_2,),
    ),
    _PreTokenizer(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        (r"\p{N}", _GPT_2),
    ),
    _PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, _THREE_DIGITS)),
    _PreTokenizer(
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        ),
    ),
    _PreTokenizer("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    _PreTokenizer("deepseek-v3 hunyuan-dense joyai-llm", _DEEPSEEK_3),
    _PreTokenizer("tekken", (_words_by_case("", ""),), ignores_merges=True, adds_bos=True),
    _PreTokenizer("gpt-4o llama4 kanana2 minimax-m2", (_words_by_case("{1,3}", f"{_CONTRACTIONS}?"),)),
)
PRE_TOKENIZERS = {name: pre_tokenizer for pre_tokenizer in _PRE_TOKENIZERS for name in pre_tokenizer.names.split()}

# llama.cpp ends generation at these tokens: of a turn, a text or a message, and those between files of code.
_END_TOKENS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[
    <\uff5cend\u2581of\u2581sentence\uff5c> <|file_sep|>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>
"""
_TURN_END_KEYS = (Keys.EOS_ID, Keys.EOT_ID, Keys.EOM_ID)
_END_KEYS = (*_TURN_END_KEYS, Keys.FIM_PAD_ID, Keys.FIM_REP_ID, Keys.FIM_SEP_ID)
# The last token ends no turn where the model has all the others.
_NOT_ENDS = (
    ("<|return|>", "<|call|>", "<|end|>"),
    ("<|call|>", "<|flush|>", "<|end|>"),
    ("<|calls|>", "<|flush|>", "<|end|>"),
    ("<|tool_response>", "</s>"),
)
_CONFIGURED = {"bos_token": Keys.BOS_ID, "eos_token": Keys.EOS_ID, "unk_token": Keys.UNK_ID, "pad_token": Keys.PAD_ID}
_SENTENCEPIECE_IDS = {Keys.BOS_ID: 1, Keys.EOS_ID: 2, Keys.UNK_ID: 0}  # where the file does not say it


def write_tokenizer(gguf_path: Path, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into an empty folder.

    Args:
        gguf_path: a GGUF file, or the first of a split model.
        folder: exists, and has none of these files.

    Raises:
        BuildError: not a GGUF file, or a kind of tokenizer that is not supported.
    """
    header = _Header(gguf_path, open_gguf(gguf_path))
    tokens = _Tokens.of(header)
    files = {
        "tokenizer.json": _tokenizer(header, tokens),
        "tokenizer_config.json": tokens.configured() | _chat_template(header),
        "generation_config.json": {"eos_token_id": _end_token_ids(tokens)},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


# --- the header -------------------------------------------------------------------------------------------------------


class _Reader(gguf_header._Reader):
    """Reads an array in one step: GGUFReader makes two numpy arrays for each element."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        element_type = gguf.GGUFValueType(int(self._get(orig_offs, "u4")[0]))
        length, start = int(self._get(orig_offs + 4, "u8")[0]), orig_offs + 12
        types = [gguf.GGUFValueType.ARRAY, element_type]
        if element_type == gguf.GGUFValueType.STRING:
            texts, end = self._texts(start, length)
            return end - orig_offs, texts, list(range(length)), types
        if element_type not in self.gguf_scalar_to_np:
            raise ValueError(f"an array of {element_type.name}")
        numbers = self._get(start, self.gguf_scalar_to_np[element_type], length)
        if len(numbers) != length:
            raise ValueError("an array beyond its end")
        return 12 + numbers.nbytes, [numbers], [0], types

    def _texts(self, start: int, length: int) -> tuple[list[memoryview], int]:
        """Return the texts that begin at an offset, and their end."""
        content, texts = memoryview(self.data), []
        is_little = self.endianess == gguf.GGUFEndian.LITTLE
        for _ in range(length):
            end = start + 8 + int.from_bytes(content[start : start + 8], "little" if is_little else "big")
            if end > len(content):
                raise ValueError("a text beyond its end")
            texts.append(content[start + 8 : end])
            start = end
        return texts, start


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Read the header of a GGUF file.

    Raises:
        BuildError: not a GGUF file.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise BuildError(f"{path}: not a GGUF file: it begins with {magic!r}")
        return _Reader(path)
    except OSError as exc:
        raise BuildError(f"{path}: {(exc.strerror or str(exc)).lower()}") from exc
    except (ValueError, LookupError) as exc:
        raise BuildError(f"{path}: a GGUF file that is cut off or damaged: download it again ({exc})") from exc


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
    texts: list[str]  # of each row
    types: list[int]  # gguf.TokenType of each row
    ids: dict[str, int]  # without unused rows, ascending
    special_ids: dict[str, int]  # by their keys in GGUF

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
        special_ids = dict(_SENTENCEPIECE_IDS) if header.value(Keys.MODEL, str) == "llama" else {}
        for key in (*_CONFIGURED.values(), *_END_KEYS):
            token_id = header.value(key, int, special_ids.get(key))
            if token_id is not None:
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

    def is_special(self, token_id: int) -> bool:
        is_end = any(token_id == self.special_ids.get(key) for key in _TURN_END_KEYS)
        return is_end or self.types[token_id] in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)

    def added(self, model_name: str) -> list[_Json]:
        """Return the tokens that are found in a text before all others."""
        # The tokens of Phi-3 include the spaces behind them; a GGUF file cannot say this of a token.
        strips = any(name in model_name.lower() for name in ("phi-3", "phi3"))
        return [
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and text not in ("<unk>", "<s>", "<|endoftext|>"),
                "normalized": False,
                "special": self.is_special(token_id),
            }
            for text, token_id in self.ids.items()
            if self.is_special(token_id) or self.types[token_id] == gguf.TokenType.USER_DEFINED
        ]


def _end_token_ids(tokens: _Tokens) -> list[int]:
    """Return the ids of the tokens that end generation, the tokenizer's own first."""
    ends = dict.fromkeys(tokens.special_ids[key] for key in _END_KEYS if key in tokens.special_ids)
    for text in _END_TOKENS.split():
        token_id = tokens.ids.get(text)
        if token_id is not None and tokens.types[token_id] == gguf.TokenType.CONTROL:
            ends[token_id] = None
    texts = {tokens.texts[token_id] for token_id in ends}
    removed = {group[-1] for group in _NOT_ENDS if texts.issuperset(group)}
    return [token_id for token_id in ends if tokens.texts[token_id] not in removed]


def _chat_template(header: _Header) -> _Json:
    default = header.value(Keys.CHAT_TEMPLATE, str, "")
    templates = {"default": default} if default else {}
    for name in header.value(Keys.CHAT_TEMPLATES, list, []):
        templates[name] = header.value(Keys.CHAT_TEMPLATE_N.format(name=name), str, "")
    match templates:
        case {"default": only} if len(templates) == 1:
            return {"chat_template": only}
        case {}:
            named = [{"name": name, "template": template} for name, template in templates.items()]
            return {"chat_template": named} if named else {}


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
        case kind:
            raise header.refusal(Keys.MODEL, repr(kind), "expected gpt2, llama or gemma4")
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
    restore = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    decoders = [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    unknown = tokens.configured().get("unk_token")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
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
    merges: dict[tuple[str, str], None] = {}  # in their order; of equal ones the first counts
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
    """Return the step that puts BOS before a text and EOS behind it.

    Raises:
        BuildError: the file names no such token.
    """
    before = _added_token(header, tokens, Keys.BOS_ID, header.value(Keys.ADD_BOS, bool, adds_bos))
    behind = _added_token(header, tokens, Keys.EOS_ID, header.value(Keys.ADD_EOS, bool, False))
    if not before and not behind:
        return None

    def around(sequence: str, type_id: int) -> list[_Json]:
        first, last = (
            [{"SpecialToken": {"id": token, "type_id": type_id}} for token in part] for part in (before, behind)
        )
        return [*first, {"Sequence": {"id": sequence, "type_id": type_id}}, *last]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [tokens.ids[token]], "tokens": [token]} for token in (*before, *behind)
        },
    }


def _added_token(header: _Header, tokens: _Tokens, key: str, is_added: bool) -> list[str]:
    if is_added and key not in tokens.special_ids:
        raise header.refusal(key, "missing", "texts begin or end with this token")
    return [tokens.texts[tokens.special_ids[key]]] if is_added else []
