"""Which tokens may come next, so that a completion satisfies its guide."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import EngineFailed, InvalidRequest
from model_repository.generation import Guide
from model_repository.guides.compilation import LIMITS, short_message
from model_repository.guides.grammar import grammar_text
from model_repository.guides.refusal import FIELD

NUM_CACHED_GUIDES = 64


class ConstraintCompiler:
    """Compiles guides for one vocabulary; one per engine, for one thread.

    Args:
        byte_table: the bytes of each token, empty for one that is no text and therefore never allowed; tokens of the
            vocabulary that it does not reach are treated as such.
        eos_token_ids: what may end a completion that is complete, and nothing else may they do.
        vocab_size: how many tokens the model has logits for.
    """

    def __init__(self, byte_table: Sequence[bytes], eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size)
        vocabulary = _Vocabulary(byte_table, self._eos_token_ids, vocab_size)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.eos_token_ids
        )
        self._compile = functools.lru_cache(maxsize=NUM_CACHED_GUIDES)(self._compile_guide)

    def start(self, guide: Guide) -> Constraint:
        """Return the guide's state before the first token.

        The tokenizer stage has checked the guide; a second time would cost more than all else here, between two steps
        of every other sequence.

        Raises:
            InvalidRequest: the guide is malformed, or too complex for this vocabulary.
        """
        return Constraint(self._compile(guide).deep_copy(), self._eos_token_ids, self._vocab_size)

    def _compile_guide(self, guide: Guide) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar_text(guide), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(short_message(matcher.get_error()), FIELD)
        return matcher


class Constraint(TokenConstraint):
    """What a guide makes of the tokens taken so far."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._allowed: NDArray[np.bool_] | None = None  # bool [vocab_size], of the present state
        self._has_ended = False

    def take(self, token_id: int) -> bool:
        if self._has_ended or not 0 <= token_id < self._vocab_size:
            return False
        if token_id in self._eos_token_ids:  # llguidance no longer takes one where nothing else may follow
            self._has_ended = self._matcher.is_accepting()
            return self._has_ended
        is_taken: bool = self._matcher.try_consume_tokens([token_id]) == 1
        self._check()
        if is_taken:
            self._allowed = None
        return is_taken

    def allowed(self) -> NDArray[np.bool_]:
        return np.zeros(self._vocab_size, dtype=np.bool_) if self._has_ended else self._mask()

    def _mask(self) -> NDArray[np.bool_]:
        if self._allowed is None:
            bias = self._matcher.compute_logit_bias()
            self._check()
            self._allowed = np.frombuffer(bias, dtype=np.uint8)[: self._vocab_size] != 0
            if not self._allowed.any() and not self._matcher.is_accepting():
                raise EngineFailed("no token of this model continues the text as the guide demands", FIELD)
        return self._allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineFailed(f"the guide cannot be followed: {short_message(self._matcher.get_error())}", FIELD)


class _Vocabulary:
    """A vocabulary as llguidance wants to see it."""

    bos_token_id = None

    def __init__(self, byte_table: Sequence[bytes], eos_token_ids: frozenset[int], vocab_size: int) -> None:
        texts = [*byte_table[:vocab_size], *[b""] * (vocab_size - len(byte_table))]
        self.eos_token_ids = sorted(eos_token_ids) or [vocab_size]  # llguidance needs one
        texts += [b""] * (self.eos_token_ids[-1] + 1 - vocab_size)
        self.eos_token_id = self.eos_token_ids[0]
        self.special_token_ids = [i for i, text in enumerate(texts) if not text or i in self.eos_token_ids]
        self.tokens = list(texts)
        for token_id in self.special_token_ids:
            self.tokens[token_id] = b"\xff<|%d|>" % token_id  # 0xff begins no text, so no grammar reaches them
        self._id_of_byte = {text[0]: i for i, text in enumerate(texts) if len(text) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        """Return tokens of a text: any will do, for FREE_TOKENS keeps llguidance from forcing them."""
        data = text if isinstance(text, bytes) else text.encode()
        return [self._id_of_byte[byte] for byte in data if byte in self._id_of_byte]
