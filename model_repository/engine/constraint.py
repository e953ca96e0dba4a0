"""The state of a structured output: the tokens that may come next."""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from model_repository.engine.grammar_budget import GrammarBudget, GrammarUse
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import CannotContinue, InvalidRequest
from model_repository.structured_output.compilation import MAX_MASK_ITEMS, MAX_ROW_ITEMS, short_message
from model_repository.structured_output.refusal import FIELD

MAX_CACHED_BYTES = 64 << 20  # of compiled structured outputs, in use or not; above it the cache is emptied
# The work of a completion's masks, in units that take at most 14 ns here: about a second.
MAX_WORK = 70_000_000
# Visited nodes in a unit. With 152,000 tokens a mask of `[a-z ]+` visits 300,000 in 1.4 ms, each time: such a text must
# not end after 226 tokens, so it may take some seconds.
_NODES_PER_UNIT = 16
_COUNTED_TOKENS = 8  # between two counts, each of which takes 20 us

_INVALID_TOKEN = 1 << 30
_STATE = "\n<state>"  # behind the message of a verbose error
_STATS = re.compile(r"^Parser: (\{.*?^\})", re.MULTILINE | re.DOTALL)
# The same limits as those of the tokenizer stage. Only a verbose error tells the parser's counts.
_LIMITS = LLParserLimits(max_items_in_row=MAX_ROW_ITEMS, step_max_items=MAX_MASK_ITEMS, verbose_errors=True)


_FAILED = "the schema or grammar cannot be followed"

type _Key = tuple[str, str]  # a sender, and a grammar


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A structured output compiled for one vocabulary. The compiler counts its bytes while a reference to it exists."""

    matcher: LLMatcher  # copied for each use
    num_bytes: int


class ConstraintCompiler:
    """Compiles structured outputs for one vocabulary; one per engine, for any number of threads.

    Each sender has compiled grammars of its own. Otherwise the time of an answer would tell one sender that another one
    has sent the same grammar, and the masks of both would wait for each other in llguidance.

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
        self._known: weakref.WeakValueDictionary[_Key, CompiledGrammar] = weakref.WeakValueDictionary()
        self._cached: OrderedDict[_Key, CompiledGrammar] = OrderedDict()  # the most recent ones, in use or not
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
        key = sender, grammar
        with self._lock:
            compiled = self._known.get(key)
            while compiled is None and self._cached and self.num_bytes + num_bytes > MAX_CACHED_BYTES:
                self._cached.popitem(last=False)  # still counted while it is in use
        if compiled is None:
            compiled = CompiledGrammar(self._compile(grammar), num_bytes)
        with self._lock:
            self._known[key] = self._cached[key] = compiled
            self._cached.move_to_end(key)
        return Constraint(compiled, self._eos_token_ids, self._vocab_size, use)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise InvalidRequest(_message(matcher), FIELD)
        return matcher


class Constraint(TokenConstraint):
    """The state of a structured output after the tokens so far.

    The parser's work is counted, in a unit that neither the machine nor other requests change: the nodes of the
    vocabulary's tree that it has visited, and the square of the items in a row of its table for each row. The work of
    the lexer is not in it, since completions with the same grammar share the lexer.
    """

    def __init__(
        self, compiled: CompiledGrammar, eos_token_ids: frozenset[int], vocab_size: int, use: GrammarUse | None
    ) -> None:
        self._compiled, self._use = compiled, use  # counted as long as this exists
        self._matcher = compiled.matcher.deep_copy()
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._allowed: NDArray[np.bool_] | None = None  # bool [vocab_size], of the present state
        self._has_ended = False
        self._num_accepted = 0
        self._counts = Counts()
        self.work = 0  # as of the last count

    def __copy__(self) -> Self:
        copied = super().__new__(type(self))
        copied.__dict__ |= self.__dict__ | {"_matcher": self._matcher.deep_copy()}
        return copied

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
            self._num_accepted += 1
            if self._num_accepted % _COUNTED_TOKENS == 0:
                self._count_work()
        return is_accepted

    def allowed(self) -> NDArray[np.bool_]:
        return np.zeros(self._vocab_size, dtype=np.bool_) if self._has_ended else self._mask()

    def _mask(self) -> NDArray[np.bool_]:
        if self._allowed is None:
            bias = self._matcher.compute_logit_bias()
            self._check()
            self._allowed = np.frombuffer(bias, dtype=np.uint8)[: self._vocab_size] != 0
            if not self._allowed.any() and not self._matcher.is_accepting():
                raise CannotContinue("no token of this model continues the text as the schema or grammar says", FIELD)
        return self._allowed

    def _count_work(self) -> None:
        """Add the work since the last count.

        Raises:
            CannotContinue: there was too much of it.
        """
        counts = read_counts(self._matcher)
        num_items = counts.num_items - self._counts.num_items
        num_rows = max(1, counts.num_rows - self._counts.num_rows)
        num_nodes = counts.num_nodes - self._counts.num_nodes
        self.work += num_nodes // _NODES_PER_UNIT + num_items * num_items // num_rows
        self._counts = counts
        if self.work > MAX_WORK:
            raise CannotContinue(f"{_FAILED}: a completion may take {MAX_WORK} steps of the parser", FIELD)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise CannotContinue(f"{_FAILED}: {_message(self._matcher)}", FIELD)


@dataclass(frozen=True, slots=True)
class Counts:
    """The work of a parser since its start."""

    num_nodes: int = 0
    num_items: int = 0
    num_rows: int = 0


def read_counts(matcher: LLMatcher) -> Counts:
    """Return the counts of a matcher, which has no other way to tell them than the error of a copy."""
    copy = matcher.deep_copy()
    copy.consume_token(_INVALID_TOKEN)
    found = _STATS.search(copy.get_error())
    assert found is not None, "llguidance 1.9.1 writes them so"
    stats = json.loads(found[1])
    return Counts(stats["trie_nodes_walked"], stats["all_items"], stats["rows"])


def _message(matcher: LLMatcher) -> str:
    return short_message(matcher.get_error().partition(_STATE)[0])


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
