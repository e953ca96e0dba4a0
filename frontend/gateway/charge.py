"""The charge of a request: an estimate before it runs, and its tokens at its end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from msgspec import Struct

from frontend.stream_record import StreamRecord
from model_repository.contract.output import Usage


class Outcome(Enum):
    """The end of a request."""

    ANSWERED = auto()  # in whole, or in the part of a stream before its error
    ABANDONED = auto()  # the client has left
    REFUSED = auto()  # an error came, possibly after tokens
    EXHAUSTED = auto()  # the same, and the work before it is charged without tokens too


class Charge(Struct, kw_only=True):
    """The tokens of one request. Its completions report them in any order, and it is settled once."""

    num_estimated: int  # tokens of prompts and completions, which are charged already
    num_prompt_tokens: int  # their part for the prompts
    num_completions: int
    num_per_prompt: int  # completions of each prompt
    is_stream: bool
    on_settled: Callable[[int], None]  # gets the tokens that replace the estimate
    usages: dict[int, Usage] = {}  # by completion
    is_settled: bool = False

    def used(self, index: int, usage: Usage) -> None:
        """Note the usage of a completion. The last one settles the charge."""
        self.usages[index] = usage
        if len(self.usages) == self.num_completions and not self.is_settled:
            prompts = range(0, self.num_completions, self.num_per_prompt)
            num_input_tokens = sum([self.usages[each].num_input_tokens for each in prompts])
            self._settle(num_input_tokens + sum([each.num_output_tokens for each in self.usages.values()]))

    def settle(self, outcome: Outcome, record: StreamRecord | None) -> None:
        """Charge a request that has ended, if it is not settled.

        Args:
            record: of the tokens that have come; None: the request ended before it was sent.
        """
        if self.is_settled:
            return
        has_tokens = record is not None and record.first_s is not None
        is_unknown = outcome is Outcome.ABANDONED and not self.is_stream  # the engine reports at the end only
        if is_unknown or (outcome is Outcome.EXHAUSTED and not has_tokens):
            self._settle(self.num_estimated)
        elif outcome is Outcome.REFUSED and not has_tokens:
            self._settle(0)
        elif record is None:
            self._settle(self.num_prompt_tokens)
        else:
            self._settle((record.num_input_tokens or self.num_prompt_tokens) + record.num_output_tokens)

    def _settle(self, num_tokens: int) -> None:
        self.is_settled = True
        self.on_settled(num_tokens)
