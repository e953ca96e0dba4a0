"""How to draw, with the recorded rules."""

from __future__ import annotations

import os
from typing import Any

from tensorrt_llm._contract import recorded_class

_Guided: Any = recorded_class("tensorrt_llm.llmapi.GuidedDecodingParams")
_Sampling: Any = recorded_class("tensorrt_llm.SamplingParams")


class GuidedDecodingParams(_Guided):  # type: ignore[misc]  # made from the contract
    """At most one structured_output."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        structured_outputs = [self.json, self.regex, self.grammar, self.json_object or None, self.structural_tag]
        if sum(structured_output is not None for structured_output in structured_outputs) > 1:
            raise ValueError("only one structured output can be used")


class SamplingParams(_Sampling):  # type: ignore[misc]  # made from the contract
    """Keywords only."""

    best_of: Any
    pad_id: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.best_of is None:
            self.best_of = self.n
        if self.pad_id is None:
            self.pad_id = self.end_id
        for is_broken, rule in (
            (self.top_p is not None and not 0 <= self.top_p <= 1, "0 <= top_p <= 1"),
            (self.top_k is not None and self.top_k < 0, "top_k >= 0"),
            (self.temperature is not None and self.temperature < 0, "temperature >= 0"),
            (self.best_of < self.n, "best_of >= n"),
            (self.best_of > 1 and self.is_greedy and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"), "not greedy"),
            (
                self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens < 1,
                "truncate_prompt_tokens >= 1",
            ),
        ):
            if is_broken:
                raise ValueError(f"require {rule}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        return unset or self.top_k == 1 or self.top_p == 0 or self.temperature == 0


__all__ = ["GuidedDecodingParams", "SamplingParams"]
