"""Which tokens may come next, so that a completion satisfies its guide."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from model_repository.contract.request import StructuredOutput
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import InvalidRequest, Overloaded, TooManyGrammars
from model_repository.guides.compilation import LIMITS, short_message
from model_repository.guides.grammar import grammar_text
from model_repository.guides.refusal import FIELD

MAX_BYTES = 128 << 20  # of all compiled guides, cached ones and those in use
MAX_SENDER_BYTES = MAX_BYTES // 2  # of one sender's that are in use: two of the largest


class CompiledGuide:
    """A guide for one vocabulary, before the first token. It counts among the compiler's bytes while it is referred to.

    Args:
        matcher: is copied, never used.
        num_bytes: what it takes.
        sender: who had it compiled.
    """

    def __init__(self, matcher: LLMatcher, num_bytes: int, sender: str) -> None:
        self.matcher = matcher
        self.num_bytes = num_bytes
        self.sender = sender


class ConstraintCompiler:
    """Compiles guides for one vocabulary; one per engine, for any number of threads.

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
        self._known: weakref.WeakValueDictionary[StructuredOutput, CompiledGuide] = weakref.WeakValueDictionary()
        # The last ones, whether in use or not.
        self._cached: OrderedDict[StructuredOutput, CompiledGuide] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """How much memory the compiled guides take."""
        return sum(compiled.num_bytes for compiled in list(self._known.values()))

    def start(self, guide: StructuredOutput, sender: str = "", num_bytes: int = 0) -> Constraint:
        """Return the guide's state before the first token. The tokenizer stage has checked the guide.

        Args:
            guide: the form of the completion.
            sender: of the request.
            num_bytes: the memory that the guide takes compiled, as the tokenizer stage has measured it.

        Raises:
            InvalidRequest: the guide is malformed, or too complex for this vocabulary.
            Overloaded: the guides in use take all the memory there is for them.
            TooManyGrammars: the sender's guides in use take a sender's part of it.
        """
        with self._lock:
            compiled = self._known.get(guide)
            if compiled is None:
                self._make_room(num_bytes, sender)
        if compiled is None:
            compiled = CompiledGuide(self._compile(guide), num_bytes, sender)
        with self._lock:
            self._known[guide] = self._cached[guide] = compiled
            self._cached.move_to_end(guide)
        return Constraint(compiled, self._eos_token_ids, self._vocab_size)

    def _compile(self, guide: StructuredOutput) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar_text(guide), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(short_message(matcher.get_error()), FIELD)
        return matcher

    def _make_room(self, num_bytes: int, sender: str) -> None:
        while self._cached and self.num_bytes + num_bytes > MAX_BYTES - MAX_SENDER_BYTES:
            self._cached.popitem(last=False)  # it goes on to count if it is in use
        in_use = [compiled for guide, compiled in list(self._known.items()) if guide not in self._cached]
        if sum(each.num_bytes for each in in_use if each.sender == sender) + num_bytes > MAX_SENDER_BYTES:
            rule = f"the grammars of one sender that are in use may take {MAX_SENDER_BYTES >> 20} MiB"
            raise TooManyGrammars(rule)
        if self.num_bytes + num_bytes > MAX_BYTES:
            raise Overloaded(f"the grammars in use take {self.num_bytes >> 20} MiB")


class Constraint(TokenConstraint):
    """What a guide makes of the tokens taken so far."""

    def __init__(self, compiled: CompiledGuide, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._compiled = compiled  # which counts while this is in use
        self._matcher = compiled.matcher.deep_copy()
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
                raise InvalidRequest("no token of this model continues the text as the schema or grammar says", FIELD)
        return self._allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = short_message(self._matcher.get_error())
            raise InvalidRequest(f"the schema or grammar cannot be followed: {reason}", FIELD)


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
