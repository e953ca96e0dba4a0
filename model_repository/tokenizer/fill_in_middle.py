"""Fill in the middle: a prompt of prefix and suffix, by the tokens of the model's training.

Both are encoded as plain text. Unlike in a completions prompt, strings of special tokens in them are not parsed: they
are pieces of a file, which may well mention such tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_repository.errors import Unsupported
from model_repository.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """A family of models: its tokens before the prefix, before the suffix and before the middle, in this order."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()  # tokens that end the middle, besides the model's own end tokens
    has_space: bool = False  # SentencePiece's leading space is added to the prefix, never to the suffix


# In the order of the search.
FAMILIES = (
    # Qwen2.5-Coder, CodeGemma, Granite 4. Source: their model cards.
    FillInMiddle(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder, StarCoder2, Granite Code, Refact. Source: the model card of bigcode/starcoder.
    FillInMiddle("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<|endoftext|>", "<file_sep>")),
    # DeepSeek-Coder. Source: its README, "Code Insertion".
    FillInMiddle("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 (they are spelled so)
    # Code Llama. Source: infilling_prompt_tokens in meta-llama/codellama.
    FillInMiddle("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",), has_space=True),
)


class FillInMiddleEncoder:
    """Encodes prompts for the first family whose tokens a vocabulary has."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        known = ((family, vocabulary.token_ids((family.prefix, family.suffix, family.middle))) for family in FAMILIES)
        self._known = next(((family, marks) for family, marks in known if len(marks) == 3), None)
        self.end_token_ids = tuple(vocabulary.token_ids(self._known[0].ends)) if self._known else ()

    def encode(self, prefix: str, suffix: str) -> list[tuple[int, bool]]:
        """Return the prompt's token ids, each with whether it belongs to the prefix's text.

        Raises:
            Unsupported: the vocabulary has no such tokens.
        """
        if self._known is None:
            raise Unsupported("this model cannot fill in the middle: its vocabulary has no tokens for it", "suffix")
        family, (prefix_id, suffix_id, middle_id) = self._known
        prefix_ids = self._vocabulary.encode_plain(prefix, add_space=family.has_space)
        suffix_ids = self._vocabulary.encode_plain(suffix, add_space=False)
        return [
            *((token_id, False) for token_id in (*self._vocabulary.first_ids, prefix_id)),
            *((token_id, True) for token_id in prefix_ids),
            *((token_id, False) for token_id in (suffix_id, *suffix_ids, middle_id)),
        ]
