"""One request's completions in figures: times, token counts and gaps, for metrics, the log and traces."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from model_repository.contract.output import Chunk, FinishReason, Timing, Usage
from model_repository.contract.request import GenerationRequest

# Upper bounds, in seconds, of the buckets for the times between two chunks.
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 40)
_NS = 1e-9


@dataclass(slots=True)
class CompletionRecord:
    """One completion so far."""

    request: GenerationRequest
    first_s: float | None = None  # arrival of its first chunk
    last_s: float = 0.0  # arrival of its latest chunk
    finish_reason: FinishReason | None = None
    num_tokens: int = 0  # that have come
    reported: Usage | None = None  # the engine's latest, of the first chunk or of the last one
    phases: Phases | None = None

    @property
    def usage(self) -> Usage | None:
        """Token counts so far; None: no chunk has come."""
        if self.finish_reason is not None or self.reported is None:
            return self.reported
        return replace(self.reported, num_output_tokens=max(self.num_tokens, self.reported.num_output_tokens))


class StreamRecord:
    """The completions of one request.

    Args:
        requests: one for each completion, in the order of the prompts.
        num_per_prompt: completions of each prompt.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        num_per_prompt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.completions = [CompletionRecord(request) for request in requests]
        self.num_per_prompt = num_per_prompt
        self.is_stream = requests[0].params.is_stream
        self.gap_counts = [0] * (len(GAP_S) + 1)  # gaps between two chunks of a completion, by bucket
        self.gaps_s = 0.0  # the sum of all gaps
        self.first_s: float | None = None  # arrival of the first chunk of all
        self.sent_s = clock()
        self.num_resumed = 0  # completions that went on after a death, each time
        self._clock = clock

    def add(self, index: int, chunk: Chunk) -> None:
        """Count a chunk of a completion. This runs for every chunk."""
        now_s = self._clock()
        completion = self.completions[index]
        if completion.first_s is None:
            completion.first_s = now_s
            self.first_s = self.first_s or now_s
        else:
            gap_s = now_s - completion.last_s
            self.gap_counts[bisect_left(GAP_S, gap_s)] += 1
            self.gaps_s += gap_s
        completion.last_s = now_s
        completion.num_tokens += chunk.num_tokens
        completion.reported = chunk.usage or completion.reported
        if chunk.finish_reason is not None:
            completion.finish_reason = chunk.finish_reason
            if chunk.timing is not None:
                waited_s = completion.first_s - self.sent_s
                completion.phases = phases_of(chunk.timing, waited_s, is_stream=self.is_stream)

    @property
    def num_finished(self) -> int:
        """Number of completions with a finish reason."""
        return sum(each.finish_reason is not None for each in self.completions)

    @property
    def num_input_tokens(self) -> int:
        """Prompt tokens. The completions of one prompt count it once."""
        prompts = self.completions[:: self.num_per_prompt]
        return sum([usage.num_input_tokens for each in prompts if (usage := each.usage)])

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the completions, as far as they have come."""
        return sum([usage.num_output_tokens for each in self.completions if (usage := each.usage)])

    @property
    def slowest(self) -> Phases | None:
        """The phases of the completion that took longest."""
        phases = [each.phases for each in self.completions if each.phases is not None]
        return max(phases, key=lambda each: each.total_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds of each phase of a completion, in order."""

    tokenization_s: float  # includes the way to Triton and back
    queue_s: float
    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """Sum of the phases."""
        return self.tokenization_s + self.queue_s + self.prefill_s + self.decode_s

    def by_name(self) -> dict[str, float]:
        """Return them by the names of the header `Server-Timing`."""
        return {
            "tokenize": self.tokenization_s,
            "queue": self.queue_s,
            "prefill": self.prefill_s,
            "decode": self.decode_s,
        }


def phases_of(timing: Timing, waited_s: float, *, is_stream: bool) -> Phases:
    """Return the phases of a completion.

    Args:
        timing: by the engine's clock, which may be another machine's: only its differences are used.
        waited_s: from sending the request to its first chunk.
        is_stream: the first chunk has the first token; without a stream it has the whole completion.
    """
    chunk_ns = timing.first_token_time_ns if is_stream else timing.last_token_time_ns
    return Phases(
        tokenization_s=max(0.0, waited_s - (chunk_ns - timing.arrival_time_ns) * _NS),
        queue_s=(timing.first_scheduled_time_ns - timing.arrival_time_ns) * _NS,
        prefill_s=(timing.first_token_time_ns - timing.first_scheduled_time_ns) * _NS,
        decode_s=(timing.last_token_time_ns - timing.first_token_time_ns) * _NS,
    )


def server_timing(phases: Phases | None, *, load_s: float = 0.0, total_s: float = 0.0) -> str:
    """Return the `Server-Timing` header of an answer, with the parts that are known.

    Args:
        phases: of the engine; None: unknown.
        load_s: the wait for the load of the model.
        total_s: of the whole answer; 0: it is still being made.
    """
    parts = {"load": load_s, **(phases.by_name() if phases else {}), "total": total_s}
    return ", ".join(f"{name};dur={s * 1000:.1f}" for name, s in parts.items() if s or name not in ("load", "total"))
