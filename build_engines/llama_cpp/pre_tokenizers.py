"""How byte-level BPE splits text into words, by the names that GGUF files have for it."""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split into words before byte-level BPE: by each expression in turn, within the pieces so far."""

    names: str  # values of tokenizer.ggml.pre, separated by spaces
    expressions: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token stays whole
    adds_bos: bool = False  # default of a file without it
    normalizes: bool = False  # text to NFC, like the model's own tokenizer and unlike llama.cpp


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
    PreTokenizer("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", _THREE_DIGITS)),
    PreTokenizer(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        (_words("{1,3}"),),
        ignores_merges=True,
        adds_bos=True,
    ),
    PreTokenizer("glm4 glm5", (_words("{1,3}"),), ignores_merges=True),
    PreTokenizer("dbrx smaug-bpe chatglm-bpe", (_words("{1,3}"),)),
    PreTokenizer("qwen2 deepseek-r1-qwen f2llmv2", (_words(""),), normalizes=True),
    PreTokenizer("qwen35", (_words("", r"\p{L}\p{M}"),), normalizes=True),
    PreTokenizer("stablelm2 hunyuan megrez kormo solar-open grok-2", (_words(""),)),
    PreTokenizer(
        "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling"
        " roberta-bpe jina-v1-en jina-v2-es jina-v2-de jina-v2-code jina-es jina-de",
        (_GPT_2,),
    ),
    PreTokenizer("modern-bert", (_GPT_2,), normalizes=True),
    PreTokenizer(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        (r"\p{N}", _GPT_2),
    ),
    PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, _THREE_DIGITS)),
    PreTokenizer(
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
    PreTokenizer("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    PreTokenizer("deepseek-v3 hunyuan-dense joyai-llm", _DEEPSEEK_3),
    PreTokenizer("tekken", (_words_by_case("", ""),), ignores_merges=True, adds_bos=True),
    PreTokenizer("gpt-4o llama4 kanana2 minimax-m2", (_words_by_case("{1,3}", f"{_CONTRACTIONS}?"),)),
    PreTokenizer("granite-embed-multi-97m", (_words_by_case("{1,3}", f"{_CONTRACTIONS}?"),), ignores_merges=True),
)
PRE_TOKENIZERS = {name: pre_tokenizer for pre_tokenizer in _PRE_TOKENIZERS for name in pre_tokenizer.names.split()}
