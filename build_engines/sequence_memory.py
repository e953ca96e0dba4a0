"""The memory that one sequence keeps between two steps, or a step of a model that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMemory:
    """Its bytes by kind of layer: keys and values of all tokens, those of the last tokens, or a state of fixed size."""

    bytes_per_token: int = 0  # layers that attend to all tokens
    window: int = 0  # tokens that the layers with a sliding window keep
    bytes_per_window_token: int = 0  # layers with a sliding window
    state_bytes: int = 0  # recurrent layers
    step_bytes: int = 0  # of a model that embeds: the largest steps of all contexts together
    # The buffers of a context that generates, without logits: a size, and more for each token of the window.
    buffer_bytes: int = 0  # 0: unknown
    buffer_bytes_per_token: int = 0

    def num_bytes(self, num_tokens: int) -> int:
        """Return the size of a sequence with this number of tokens."""
        in_window = min(num_tokens, self.window) * self.bytes_per_window_token
        return num_tokens * self.bytes_per_token + in_window + self.state_bytes

    def buffer_bytes_for(self, window: int) -> int:
        """Return the size of the buffers of a context that generates, with this window; 0: unknown."""
        return self.buffer_bytes and self.buffer_bytes + window * self.buffer_bytes_per_token
