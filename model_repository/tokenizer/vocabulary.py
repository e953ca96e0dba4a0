"""A model's vocabulary: text to token ids, with its added tokens' strings parsed or as plain text."""

from __future__ import annotations

import itertools
import json
import operator
import secrets
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from model_repository.errors import InvalidRequest

_SPACES = " \t\r\n\u2581"


class Vocabulary:
    """Encodes text in three ways: with added tokens, without, and in parts of both.

    Args:
        tokenizer: the model's; truncation and padding are turned off.
        num_tokens: that the model has: ids from there on are none of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, num_tokens: int = sys.maxsize) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in self._added.items()}
        self.added_tokens = frozenset(self._added_ids)
        # Some vocabularies list runs of spaces among them, which are text like any other.
        self.control_tokens = frozenset(token for token in self.added_tokens if token.strip(_SPACES))
        self.size: int = min(max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1, num_tokens)
        description = _without_tokens(json.loads(tokenizer.to_str()), self.control_tokens)
        self._plain = Tokenizer.from_str(json.dumps(description))
        has_space_once = _adds_space_once(description)
        _add_no_space(description)
        self._without_space = Tokenizer.from_str(json.dumps(description))
        self._inner = self._without_space if has_space_once else self._plain
        beginning = tokenizer.encode("a", add_special_tokens=True)
        put = itertools.takewhile(
            operator.itemgetter(1), zip(beginning.ids, beginning.special_tokens_mask, strict=True)
        )
        self.first_ids = tuple(token_id for token_id, _ in put)  # put before every prompt: the BOS token, or nothing

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, strings of added tokens in it parsed, as the tokenizer's own post-processor.

        Args:
            add_special_tokens: put around it what the tokenizer puts there, as a BOS token.
        """
        return _token_ids(self._tokenizer, text, add_special_tokens=add_special_tokens)

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Return the same tokens with their places in the text: to find those takes about as long again."""
        return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the token ids of a text in parts, each with whether it is an added token."""
        token_ids: list[int] = []
        parts = list(parts)
        for index, (part, is_added_token) in enumerate(parts):
            if is_added_token:
                token_ids.append(self._added_ids[part])
                continue
            # As the tokenizer itself does: such tokens take the spaces beside them.
            if index and self._added[self._added_ids[parts[index - 1][0]]].rstrip:
                part = part.lstrip()
            if index + 1 < len(parts) and self._added[self._added_ids[parts[index + 1][0]]].lstrip:
                part = part.rstrip()
            token_ids += _token_ids(self._inner if index else self._plain, part)
        return token_ids

    def encode_plain(self, text: str, *, add_space: bool = True) -> list[int]:
        """Return the token ids of a text in which strings of added tokens are text.

        Args:
            add_space: put a space before the text where the tokenizer does that at the beginning of a prompt.
        """
        return _token_ids(self._plain if add_space else self._without_space, text)

    def token_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens in the vocabulary's own form; of those that are none, nothing."""
        token_ids = map(self._tokenizer.token_to_id, tokens)
        return [token_id for token_id in token_ids if token_id is not None and token_id < self.size]

    def token_string(self, token_id: int) -> str:
        """Return a token in the vocabulary's own form; empty for an id that is not used."""
        return self._tokenizer.id_to_token(token_id) or ""

    def is_added(self, token_id: int) -> bool:
        """Whether the token is one of those that are found in a text before anything else."""
        return token_id in self._added

    def check(self, token_ids: Iterable[int], field: str) -> None:
        """Refuse ids that are no tokens.

        Raises:
            InvalidRequest: one is outside the vocabulary.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.size:
                raise InvalidRequest(f"{token_id} is not a token: they are 0 to {self.size - 1}", field)


def _token_ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    # Of the tokenizer's own calls only those for a batch let other threads run, and only this one finds no offsets.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    return token_ids


def _without_tokens(description: dict[str, Any], tokens: frozenset[str]) -> dict[str, Any]:
    """Return a tokenizer.json that sees the strings of these added tokens as plain text."""
    kept = [token for token in description["added_tokens"] if token["content"] not in tokens]
    description["added_tokens"] = kept
    description["post_processor"] = None
    # A vocabulary may list them among the others, where merges or a whole word would lead to them.
    model, hidden = description["model"], secrets.token_hex()
    model["vocab"] = {
        token + hidden if token in tokens else token: token_id for token, token_id in model["vocab"].items()
    } | {token["content"]: token["id"] for token in kept}  # only what is listed there keeps its id
    model["merges"] = [merge for merge in model["merges"] if "".join(merge) not in tokens]
    if model.get("unk_token") in tokens:
        model["unk_token"] += hidden
    return description


def _steps(step: dict[str, Any] | None, name: str) -> Sequence[dict[str, Any]]:
    """Return a normalizer's or a pre-tokenizer's steps: it may be one or a sequence."""
    if step is None:
        return []
    steps: Sequence[dict[str, Any]] = step.get(name, [step])
    return steps


def _adds_space_once(description: dict[str, Any]) -> bool:
    steps = _steps(description["pre_tokenizer"], "pretokenizers")
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps)


def _add_no_space(description: dict[str, Any]) -> None:
    """Change a tokenizer.json of SentencePiece's kind so that no text gets a space before it."""
    for step in _steps(description["normalizer"], "normalizers"):
        if step["type"] == "Prepend":
            step["prepend"] = ""
    for step in _steps(description["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
