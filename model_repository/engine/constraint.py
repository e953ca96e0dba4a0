"""The state of a structured output: the tokens that may come next."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from model_repository.engine.grammar_budget import GrammarBudget, GrammarUse
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import InvalidRequest
from model_repository.structured_output.compilation import LIMITS, short_message
from model_repository.structured_output.refusal import FIELD

MAX_CACHED_BYTES = 64 << 20  # of compiled structured outputs, in use or not; above it the cache is emptied


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A structured output compiled for one vocabulary. The compiler counts its bytes while a reference to it exists."""

    matcher: LLMatcher  # copied for each use
    num_bytes: int


class ConstraintCompiler:
    """Compiles structured outputs for one vocabulary; one per engine, for any number of threads.

    Args:
        byte_table: the bytes of each token. A token without bytes, or beyond the table, has no text and is never
            allowed.
        eos_token_ids: may only end a completion that is complete.
        vocab_size: the number of the model's logits.
        budget: limits the structured outputs in use; None: the engine stage has limited those of this process.
    """

    def __init__(
        self,
        byte_table: Sequence[bytes],
        eos_token_ids: frozenset[int],
        vocab_size: int,
        budget: GrammarBudget | None = None,
    ) -> None:
        self._budget = budget
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size)
        vocabulary = _Vocabulary(byte_table, self._eos_token_ids, vocab_size)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.eos_token_ids
        )
        self._known: weakref.WeakValueDictionary[str, CompiledGrammar] = weakref.WeakValueDictionary()
        # The most recent ones, in use or not.
        self._cached: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """The memory of the compiled structured outputs."""
        return sum(compiled.num_bytes for compiled in list(self._known.values()))

    def start(self, grammar: str, sender: str = "", num_bytes: int = 0) -> Constraint:
        """Return the initial state of a grammar that the tokenizer stage has written and checked.

        Args:
            num_bytes: its memory when compiled, measured by the tokenizer stage.

        Raises:
            InvalidRequest: the grammar is malformed, or too complex for this vocabulary.
            Overloaded, TooManyWaiting: as GrammarBudget.use does.
        """
        use = None if self._budget is None else self._budget.use(grammar, sender, num_bytes)
        with self._lock:
            compiled = self._known.get(grammar)
            while compiled is None and self._cached and self.num_bytes + num_bytes > MAX_CACHED_BYTES:
                self._cached.popitem(last=False)  # still counted while it is in use
        if compiled is None:
            compiled = CompiledGrammar(self._compile(grammar), num_bytes)
        with self._lock:
            self._known[grammar] = self._cached[grammar] = compiled
            self._cached.move_to_end(grammar)
        return Constraint(compiled, self._eos_token_ids, self._vocab_size, use)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(short_message(matcher.get_error()), FIELD)
        return matcher


class Constraint(TokenConstraint):
    """The state of a structured output after the tokens so far."""

    def __init__(
        self, compiled: CompiledGrammar, eos_token_ids: frozenset[int], vocab_size: int, use: GrammarUse | None
    ) -> None:
        self._compiled, self._use = compiled, use  # counted as long as this exists
        self._matcher = compiled.matcher.deep_copy()
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._allowed: NDArray[np.bool_] | None = None  # bool [vocab_size], of the present state
        self._has_ended = False

    def accept_token(self, token_id: int) -> bool:
        if self._has_ended or not 0 <= token_id < self._vocab_size:
            return False
        if token_id in self._eos_token_ids:  # llguidance refuses one at the end of a complete text
            self._has_ended = self._matcher.is_accepting()
            return self._has_ended
        is_accepted: bool = self._matcher.try_consume_tokens([token_id]) == 1
        self._check()
        if is_accepted:
            self._allowed = None
        return is_accepted

    def allowed(self) -> NDArray[np.bool_]:
        return np.zeros(self._vocab_size, dtype=np.bool_) if self._has_ended else self._mask()

    def _mask(self) -> NDArray[np.bool_]:
        if self._allowed is None:
            bias = self._matcher.compute_logit_bias()
            self._check()
            self._allowed = np.frombuffer(bias, dtype=np.uint8)[: self._vocab_size] != 0
            if not self._allowed.any() and not self._matcher.is_accepting():
                raise InvalidRequest("no token of this model continues the text as the schema or grammar says", FIELD)
        return self._allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = short_message(self._matcher.get_error())
            raise InvalidRequest(f"the schema or grammar cannot be followed: {reason}", FIELD)


class _Vocabulary:
    """A vocabulary with the attributes that llguidance expects."""

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
        """Return any tokens of a text: FREE_TOKENS keeps llguidance from forcing them."""
        data = text if isinstance(text, bytes) else text.encode()
        return [self._id_of_byte[byte] for byte in data if byte in self._id_of_byte]
