"""Where the time of one completion went."""

from __future__ import annotations

from dataclasses import dataclass

from model_repository.generation import Timing

_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds, one phase after the other."""

    tokenization_s: float  # and the way to Triton and back: all that is not the engine's
    queue_s: float
    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.tokenization_s + self.queue_s + self.prefill_s + self.decode_s


def phases_of(timing: Timing, waited_s: float, *, is_stream: bool) -> Phases:
    """Return the phases of a completion.

    Args:
        timing: the engine's, whose clock may be another machine's: only differences say something.
        waited_s: from the request's departure to its first chunk.
        is_stream: whether that chunk was the first token's, else it is the whole completion.
    """
    told_ns = timing.first_token_time_ns if is_stream else timing.last_token_time_ns
    return Phases(
        tokenization_s=max(0.0, waited_s - (told_ns - timing.arrival_time_ns) * _NS),
        queue_s=(timing.first_scheduled_time_ns - timing.arrival_time_ns) * _NS,
        prefill_s=(timing.first_token_time_ns - timing.first_scheduled_time_ns) * _NS,
        decode_s=(timing.last_token_time_ns - timing.first_token_time_ns) * _NS,
    )


def server_timing(phases: Phases | None, total_s: float) -> str:
    """Return the `Server-Timing` header of an answer; without phases where the engine told none."""
    parts = (
        {}
        if phases is None
        else {
            "tokenize": phases.tokenization_s,
            "queue": phases.queue_s,
            "prefill": phases.prefill_s,
            "decode": phases.decode_s,
        }
    )
    return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in (parts | {"total": total_s}).items())
