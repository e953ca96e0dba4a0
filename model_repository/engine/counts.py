"""Counts of an engine's work since its start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from model_repository.engine.runtime import StepOutput


@dataclass(slots=True)
class EngineCounts:
    """The counts, named as in EngineStats."""

    num_steps: int = 0
    num_step_tokens: int = 0
    max_step_sequences: int = 0
    num_finished: int = 0
    num_cancelled: int = 0
    last_cancel_to_free_ms: float = 0.0
    cancel_to_free_ms: float = 0.0

    def step(self, outputs: Iterable[StepOutput]) -> None:
        """Count a step with results and its tokens; an embedding counts as one."""
        drawn_by = [each.sequence for each in outputs if each.token_id is not None or each.embedding is not None]
        self.num_steps += 1
        self.num_step_tokens += len(drawn_by)
        self.max_step_sequences = max(self.max_step_sequences, len(set(drawn_by)))

    def cancelled(self, to_free_s: float) -> None:
        """Count a cancellation, and the time until its KV tokens were free."""
        self.num_cancelled += 1
        self.last_cancel_to_free_ms = to_free_s * 1e3
        self.cancel_to_free_ms += to_free_s * 1e3
