"""What may follow while a model thinks: the rules of the answer wait, and the end comes in time."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from model_repository.contract.request import Thinking
from model_repository.engine.bad_words import BadWords, TokenIds, TokenIndex
from model_repository.engine.stop_buffer import ThinkingBorder, border_of
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import CannotContinue


class ThinkingConstraint(TokenConstraint):
    """Applies a structured output to the answer behind the thinking.

    The thinking ends at the end of a token, so that the answer begins with a whole one. The model begins to think with
    the begin marker as its first token, or not at all.

    A model may call a tool while it thinks, and end without the end marker. A completion ends so only behind calls that
    the answer's rule accepts as a whole answer. Until then they may be a draft, which that rule does not concern.

    Where messages have heads, the structured output is that of all messages, and needs no such rule.
    """

    def __init__(self, thinking: Thinking, index: TokenIndex, answer: TokenConstraint) -> None:
        self._begin, self._end = thinking.format.begin.encode(), thinking.format.end.encode()
        self._index = index
        self._answer = answer
        self._border = ThinkingBorder(thinking, is_single=True)
        self._is_over = False
        self._call_marker = thinking.call.encode()
        self._call: TokenConstraint | None = None  # the answer's rule, at the last token of a call in the thinking
        self._call_text = b""  # of its marker so far

    @property
    def is_calling(self) -> bool:
        """Whether the thinking ends with calls, or with the beginning of one."""
        return self._call is not None and self._call_text == self._call_marker

    def accept_token(self, token_id: int) -> bool:
        if self._is_over:
            return self._answer.accept_token(token_id)
        text, is_thinking = self._index.texts[token_id], self._border.is_thinking
        if not is_thinking and text != self._begin:
            self._is_over = self._answer.accept_token(token_id)
            return self._is_over
        if is_thinking and text == b"":
            return self.is_calling and self._call is not None and self._call.accept_token(token_id)
        if is_thinking and not self._may_continue(text):
            return False
        self._border.push(text)
        if is_thinking and self._call_marker:
            self._follow_call(token_id, text)
        self._is_over = self._border.is_over
        return True

    def allowed(self) -> NDArray[np.bool_]:
        if self._is_over:
            return self._answer.allowed()
        if self._border.is_thinking:
            mask = np.ones(self._index.vocab_size, dtype=np.bool_)
            for ids in (self._suspicious, self._index.starting_with(self._border.rest)):
                mask[[each for each in ids if not self._may_continue(self._index.texts[each])]] = False
            if self.is_calling and self._call is not None:
                ends = self._index.equal_to(b"")
                with suppress(CannotContinue):  # the thinking goes on
                    mask[ends] = self._call.allowed()[ends]
            return mask
        mask = self._answer.allowed().copy()
        mask[self._index.equal_to(self._begin)] = True
        return mask

    def _follow_call(self, token_id: int, text: bytes) -> None:
        """Continue the call in the thinking with a token, or begin one."""
        if self._call is not None and _accepts(self._call, token_id):
            self._call_text = (self._call_text + text)[: len(self._call_marker)]
            if self._call_marker.startswith(self._call_text):
                return
        self._call = None
        start = text.find(self._call_marker)
        if start < 0:
            tails = range(max(0, len(text) - len(self._call_marker) + 1), len(text))
            start = next((each for each in tails if self._call_marker.startswith(text[each:])), -1)
        if start >= 0:
            call = copy.copy(self._answer)
            self._call = call if _accepts(call, token_id) else None
            self._call_text = text[start : start + len(self._call_marker)]

    @cached_property
    def _suspicious(self) -> TokenIds:
        """The ids of tokens without text, or with the whole end marker, int64 [num_found]."""
        return np.concatenate((self._index.equal_to(b""), self._index.containing(self._end)))

    def _may_continue(self, text: bytes) -> bool:
        """Whether a token may follow in the thinking."""
        return text != b"" and not self._border.answer_in(text)


def _accepts(call: TokenConstraint, token_id: int) -> bool:
    try:
        return call.accept_token(token_id)
    except CannotContinue:
        return False


class ThinkingBudget(TokenConstraint):
    """Ends the thinking after a number of tokens, besides other rules, but not within a call.

    Args:
        thinking: with a budget.
        inner: the other rules; None: there are no others.
    """

    def __init__(self, thinking: Thinking, index: TokenIndex, inner: TokenConstraint | None) -> None:
        assert thinking.budget is not None, "without a budget there is no such rule"
        self._num_left = thinking.budget
        self._index = index
        self._inner = inner
        # With other rules a marker in the answer may be text, as in the arguments of a call.
        self._border = border_of(thinking, is_single=inner is not None)
        self._no_more = BadWords([thinking.format.head], index) if thinking.format.head else None

    def accept_token(self, token_id: int) -> bool:
        rule = self._rule()
        if rule is not None and not rule[token_id]:
            return False
        if self._inner is not None and not self._inner.accept_token(token_id):
            return False
        if not self._border.is_over:
            self._border.push(self._index.texts[token_id])
            if self._num_left <= 0 and self._no_more is not None:
                self._no_more.accept_token(token_id)
            self._num_left -= self._border.is_thinking
        return True

    def allowed(self) -> NDArray[np.bool_]:
        rule = self._rule()
        if self._inner is not None:
            return self._inner.allowed() if rule is None else self._inner.allowed() & rule
        return np.ones(self._index.vocab_size, dtype=np.bool_) if rule is None else rule

    def _rule(self) -> NDArray[np.bool_] | None:
        """Return the tokens that the budget allows, bool [vocab_size]; None: all of them."""
        if self._border.is_over or self._num_left > 0:
            return None
        if isinstance(self._inner, ThinkingConstraint) and self._inner.is_calling:  # it may be the answer
            return None
        if not self._border.is_thinking:  # no more of it may begin
            return None if self._no_more is None else self._no_more.allowed()
        rest = self._border.rest
        beginnings = (self._index.equal_to(rest[:length]) for length in range(len(rest), 0, -1))
        forced = next((int(ids[0]) for ids in beginnings if len(ids)), None)
        if forced is None:
            return None
        mask = np.zeros(self._index.vocab_size, dtype=np.bool_)
        mask[forced] = True
        return mask
