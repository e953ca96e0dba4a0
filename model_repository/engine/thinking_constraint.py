"""What may follow while a model thinks: the rules of the answer wait, and the end comes in time."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from model_repository.contract.request import Thinking
from model_repository.engine.bad_words import TokenIds, TokenIndex
from model_repository.engine.stop_buffer import ThinkingBorder
from model_repository.engine.token_constraint import TokenConstraint


class ThinkingConstraint(TokenConstraint):
    """Applies a structured output to the answer behind the thinking, and ends the thinking after its budget.

    Beside a structured output the thinking ends at the end of a token, so that the answer begins with a whole one. The
    model then begins to think with the begin marker as its first token, or not at all.

    Args:
        answer: the structured output; None: only the budget counts.
    """

    def __init__(self, thinking: Thinking, index: TokenIndex, answer: TokenConstraint | None) -> None:
        self._begin, self._end = thinking.format.begin.encode(), thinking.format.end.encode()
        self._budget = thinking.budget
        self._index = index
        self._answer = answer
        self._border = ThinkingBorder(thinking)
        self._num_tokens = 0  # thinking tokens
        self._is_over = False

    def accept_token(self, token_id: int) -> bool:
        if self._is_over:
            return self._answer is None or self._answer.accept_token(token_id)
        text, is_thinking = self._index.texts[token_id], self._border.is_thinking
        if self._answer is not None and not is_thinking and text != self._begin:
            self._is_over = self._answer.accept_token(token_id)
            return self._is_over
        if is_thinking and not self._may_continue(token_id, text):
            return False
        self._border.push(text)
        self._num_tokens += self._border.is_thinking
        self._is_over = self._border.num_bytes is not None
        return True

    def allowed(self) -> NDArray[np.bool_]:
        if self._border.is_thinking:
            return self._allowed_thinking()
        if self._answer is None:
            return np.ones(self._index.vocab_size, dtype=np.bool_)
        if self._is_over:
            return self._answer.allowed()
        mask = self._answer.allowed().copy()
        mask[self._index.equal_to(self._begin)] = True
        return mask

    def _allowed_thinking(self) -> NDArray[np.bool_]:
        if (forced := self._forced) is not None:
            mask = np.zeros(self._index.vocab_size, dtype=np.bool_)
            mask[forced] = True
            return mask
        mask = np.ones(self._index.vocab_size, dtype=np.bool_)
        if self._answer is not None:
            for ids in (self._suspicious, self._index.starting_with(self._border.rest)):
                mask[[each for each in ids if not self._may_continue(each, self._index.texts[each])]] = False
        return mask

    @cached_property
    def _suspicious(self) -> TokenIds:
        """The ids of tokens without text, or with the whole end marker, int64 [num_found]."""
        return np.concatenate((self._index.equal_to(b""), self._index.containing(self._end)))

    @property
    def _forced(self) -> int | None:
        """The only token that may follow: the next one of the end marker, after the budget."""
        if self._budget is None or self._num_tokens < self._budget:
            return None
        rest = self._border.rest
        beginnings = (self._index.equal_to(rest[:length]) for length in range(len(rest), 0, -1))
        return next((int(ids[0]) for ids in beginnings if len(ids)), None)

    def _may_continue(self, token_id: int, text: bytes) -> bool:
        """Whether a token may follow in the thinking."""
        if (forced := self._forced) is not None:
            return token_id == forced
        return self._answer is None or (text != b"" and not self._border.answer_in(text))
