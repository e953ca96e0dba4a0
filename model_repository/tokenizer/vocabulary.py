"""A model's vocabulary: text to token ids, with the strings of its added tokens parsed or as plain text."""

from __future__ import annotations

import itertools
import json
import operator
import secrets
import sys
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE, Model

from model_repository.errors import InvalidRequest, Unsupported
from model_repository.tokenizer.borders import MIN_CHARS, Borders
from model_repository.tokenizer.bounded_cache import BoundedCache

_MAX_KEPT_BYTES = 64 << 20  # of texts with their tokens: about eight million tokens
_SPACES = " \t\r\n\u2581"


class Vocabulary:
    """Encodes text in three ways: with added tokens, without them, and in parts of both.

    Args:
        tokenizer: the model's; its truncation and padding are turned off.
        num_tokens: of the model: ids from there on are not its tokens.
        open_tokens: added tokens that any text may contain.
    """

    def __init__(
        self, tokenizer: Tokenizer, num_tokens: int = sys.maxsize, open_tokens: frozenset[str] = frozenset()
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in self._added.items()}
        self.added_tokens = frozenset(self._added_ids)
        # Some vocabularies contain runs of spaces as added tokens: these are ordinary text.
        self.control_tokens = frozenset(filter(lambda token: token.strip(_SPACES), self.added_tokens - open_tokens))
        largest: int = max(tokenizer.get_vocab(with_added_tokens=True).values())
        self.size = min(largest + 1, num_tokens)
        kept = {token_id: token for token_id, token in self._added.items() if token.content not in self.control_tokens}
        model = _model_without(tokenizer.model, self.control_tokens, kept)
        self._plain = self._without_space = _with_steps_of(tokenizer, model, kept)
        steps = json.loads(_with_steps_of(tokenizer, BPE()).to_str())
        has_space_once = _adds_space_once(steps)
        if _add_no_space(steps):
            self._without_space = _with_steps_of(Tokenizer.from_str(json.dumps(steps)), model, kept)
        self._inner = self._without_space if has_space_once else self._plain
        beginning = tokenizer.encode("a", add_special_tokens=True)
        self._may_exceed = max([largest, *beginning.ids]) >= self.size  # some tokens of texts are not the model's
        inserted, appended = (
            itertools.takewhile(operator.itemgetter(1), pairs)
            for pairs in (
                zip(beginning.ids, beginning.special_tokens_mask, strict=True),
                zip(reversed(beginning.ids), reversed(beginning.special_tokens_mask), strict=True),
            )
        )
        self._kept: BoundedCache[array[int]] = BoundedCache(sys.getsizeof, max_bytes=_MAX_KEPT_BYTES)
        self.first_ids = tuple(token_id for token_id, _ in inserted)  # start of every prompt: the BOS token, if any
        self.last_ids = tuple(token_id for token_id, _ in appended)[::-1]  # end of every text: an EOS token, if any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with strings of added tokens parsed.

        Args:
            add_special_tokens: add the tokenizer's own tokens, such as a BOS token.
        """
        return _token_ids(self._tokenizer, text, add_special_tokens=add_special_tokens)

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Return the same tokens with their places in the text, which takes twice as long."""
        return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def borders(self, template: str) -> Borders:
        """Return the borders in the texts of a template, at the tokens that its source names."""
        return Borders(self._added.values(), {token for token in self.control_tokens if token in template})

    def encode_pieces(self, pieces: Iterable[str], owner: str = "") -> list[int]:
        """Return the token ids of a text in the pieces of `Borders`: those of `encode` without special tokens.

        Args:
            owner: long pieces are kept for its next texts. Others must not learn from the time which texts it had.
        """
        token_ids: list[int] = []
        for piece in pieces:
            token_ids.extend(self._known_ids(self._tokenizer, piece, owner))
        return token_ids

    def encode_parts(self, parts: Iterable[tuple[str, bool]], owner: str = "") -> list[int]:
        """Return the token ids of a text in parts, each with whether it is an added token.

        Args:
            owner: see `encode_pieces`.
        """
        token_ids: list[int] = []
        parts = list(parts)
        for index, (part, is_added_token) in enumerate(parts):
            if is_added_token:
                token_ids.append(self._added_ids[part])
                continue
            # As in the tokenizer itself: such added tokens include the spaces beside them.
            if index and self._added[self._added_ids[parts[index - 1][0]]].rstrip:
                part = part.lstrip()
            if index + 1 < len(parts) and self._added[self._added_ids[parts[index + 1][0]]].lstrip:
                part = part.rstrip()
            token_ids.extend(self._known_ids(self._inner if index else self._plain, part, owner))
        return token_ids

    def _known_ids(self, tokenizer: Tokenizer, text: str, owner: str) -> Sequence[int]:
        if len(text) < MIN_CHARS:
            return _token_ids(tokenizer, text)
        return self._kept.get((owner, id(tokenizer), text), lambda: array("i", _token_ids(tokenizer, text)))

    def encode_plain(self, text: str, *, add_space: bool = True) -> list[int]:
        """Return the token ids of a text in which strings of added tokens are plain text.

        Args:
            add_space: add the leading space that the tokenizer adds to a prompt.
        """
        return _token_ids(self._plain if add_space else self._without_space, text)

    def encode_pair(self, first: str, second: str) -> Encoding:
        """Return the tokens of two texts with the tokenizer's own tokens around them, as in `[CLS] A [SEP] B [SEP]`.

        Strings of added tokens in them are plain text: a text cannot end before its end.

        Raises:
            Unsupported: the tokenizer has no tokens for pairs.
        """
        query, document = self._plain.encode_batch([first, second], add_special_tokens=False)
        pair = self._tokenizer.post_process(query, document)
        has_texts = query.ids and document.ids  # a blank text has no tokens
        known = pair if has_texts else self._tokenizer.encode("a", "a")
        inside = "".join(map(str, known.special_tokens_mask)).strip("1")
        if "1" not in inside:
            raise Unsupported("this model's tokenizer has no token between the texts of a pair", "model")
        return pair

    def token_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens in the vocabulary's own form; unknown tokens are left out."""
        token_ids = map(self._tokenizer.token_to_id, tokens)
        return [token_id for token_id in token_ids if token_id is not None and token_id < self.size]

    def token_string(self, token_id: int) -> str:
        """Return a token in the vocabulary's own form; empty for an unused id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def added_id(self, token: str) -> int:
        """Return the id of an added token."""
        return self._added_ids[token]

    def is_added(self, token_id: int) -> bool:
        """Whether the token is an added one, which the tokenizer finds in a text before all others."""
        return token_id in self._added

    def check_encoded(self, token_ids: Collection[int], field: str) -> None:
        """Refuse ids outside the vocabulary, as `check`, that `encode` and others made of a text."""
        if self._may_exceed:
            self.check(token_ids, field)

    def check(self, token_ids: Collection[int], field: str) -> None:
        """Refuse ids outside the vocabulary.

        Raises:
            InvalidRequest: names the first such id.
        """
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.size:
            unknown = next(token_id for token_id in token_ids if not 0 <= token_id < self.size)
            raise InvalidRequest(f"{unknown} is not a token: they are 0 to {self.size - 1}", field)


def _token_ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    # Only the tokenizer's calls for a batch let other threads run, and only this one computes no offsets.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    return token_ids


def _with_steps_of(other: Tokenizer, model: Model, added: Mapping[int, AddedToken] | None = None) -> Tokenizer:
    """Return a tokenizer of this model and these added tokens that normalizes and splits a text as the other one."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = other.normalizer, other.pre_tokenizer
    tokenizer.add_tokens([token for _, token in sorted((added or {}).items())])
    return tokenizer


def _model_without(model: Model, tokens: frozenset[str], kept: Mapping[int, AddedToken]) -> Model:
    """Return a model that makes none of these tokens from a text: for most, itself.

    Args:
        kept: the other added tokens by their ids, which a tokenizer of the model must give them.
    """
    has_kept_ids = all(model.token_to_id(token.content) == token_id for token_id, token in kept.items())
    if has_kept_ids and not any(_makes(model, token) for token in tokens):
        return model
    description = json.loads(Tokenizer(model).to_str())
    changed, hidden = description["model"], secrets.token_hex()
    if changed["type"] == "Unigram":
        changed["vocab"] = [(token + hidden if token in tokens else token, score) for token, score in changed["vocab"]]
    else:
        changed["vocab"] = {
            token + hidden if token in tokens else token: token_id for token, token_id in changed["vocab"].items()
        } | {token.content: token_id for token_id, token in kept.items()}
    if "merges" in changed:  # WordPiece has none
        changed["merges"] = [merge for merge in changed["merges"] if "".join(merge) not in tokens]
    if changed.get("unk_token") in tokens:
        changed["unk_token"] += hidden
    without: Model = Tokenizer.from_str(json.dumps(description)).model
    return without


def _makes(model: Model, token: str) -> bool:
    """Whether a text can contain the token by merges or as a whole word."""
    if model.token_to_id(token) is None:
        return False
    if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return True
    return len(model.tokenize(token)) == 1  # merges inside a longer word are those of the token alone


def _steps(step: dict[str, Any] | None, name: str) -> Sequence[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, which is one step or a sequence."""
    if step is None:
        return []
    steps: Sequence[dict[str, Any]] = step.get(name, [step])
    return steps


def _adds_space_once(description: dict[str, Any]) -> bool:
    steps = _steps(description["pre_tokenizer"], "pretokenizers")
    return any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps)


def _add_no_space(description: dict[str, Any]) -> bool:
    """Change a SentencePiece tokenizer.json so that no text gets a leading space; return whether it differs."""
    before = json.dumps(description)
    for step in _steps(description["normalizer"], "normalizers"):
        if step["type"] == "Prepend":
            step["prepend"] = ""
    for step in _steps(description["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
    return json.dumps(description) != before
