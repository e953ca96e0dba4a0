"""What is seen of a request's completions while their chunks pass: the times, and whether the chunks keep the rules.

This is on the path of every chunk, so it only compares and counts. Metrics, log and traces read it at the end of the
request.
"""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import orjson

from frontend.errors import StreamBroken
from model_repository.contract.output import FinishReason, GenerationChunk, Timing, Usage
from model_repository.contract.request import GenerationRequest

logger = logging.getLogger(__name__)

# Upper bounds, in seconds, of the buckets in which the times between two chunks are counted.
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 40)
_NS = 1e-9


class Rule(StrEnum):
    """What a completion's stream must keep to."""

    NOTHING_AFTER_THE_FINISH = "nothing_after_the_finish"
    USAGE_WITH_THE_FINISH = "usage_with_the_finish"  # and never before it
    USAGE_ADDS_UP = "usage_adds_up"
    ENDS_WITH_A_FINISH = "ends_with_a_finish"
    VALID_UTF8 = "valid_utf8"


@dataclass(slots=True)
class Completion:
    """One completion, as far as it has come."""

    request: GenerationRequest
    first_s: float | None = None  # when its first chunk came, and its last one so far
    last_s: float = 0.0
    num_token_ids: int = 0  # that were told, where the request asks for them
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    phases: Phases | None = None


class StreamRecord:
    """The completions of one request.

    Args:
        requests: one for each completion, those of one prompt together.
        num_per_prompt: how many those are.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        num_per_prompt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.completions = [Completion(request) for request in requests]
        self.num_per_prompt = num_per_prompt
        self.is_stream = requests[0].params.is_stream
        self.gap_counts = [0] * (len(GAP_S) + 1)  # between two chunks of a completion, by bucket
        self.gaps_s = 0.0  # all of them together
        self.broken_rule: Rule | None = None
        self.sent_s = clock()
        self._clock = clock

    def saw(self, index: int, chunk: GenerationChunk) -> None:
        """Note a chunk of a completion before it is passed on.

        Raises:
            StreamBroken: it breaks a rule.
        """
        now_s = self._clock()
        completion = self.completions[index]
        if completion.first_s is None:
            completion.first_s = now_s
        else:
            gap_s = now_s - completion.last_s
            self.gap_counts[bisect_left(GAP_S, gap_s)] += 1
            self.gaps_s += gap_s
        completion.last_s = now_s
        if completion.finish_reason is not None:
            raise self._broken(Rule.NOTHING_AFTER_THE_FINISH)
        if chunk.token_ids:
            completion.num_token_ids += len(chunk.token_ids) - chunk.num_prompt_tokens
        if chunk.finish_reason is not None or (chunk.usage is not None and not completion.request.params.has_usage):
            self._finish(index, completion, chunk)

    def require_ends(self) -> None:
        """Check that every completion has ended.

        Raises:
            StreamBroken: one has not, and nothing more comes.
        """
        if any(completion.finish_reason is None for completion in self.completions):
            raise self._broken(Rule.ENDS_WITH_A_FINISH)

    @contextlib.contextmanager
    def rules_kept(self) -> Iterator[None]:
        """Have what else shows a broken rule raise StreamBroken: a stream that ends too early, a text without bytes.

        A chunk's text is a `str`, so all that can be wrong with it is half of a surrogate pair; JSON cannot hold that.
        """
        try:
            yield
        except StopAsyncIteration as exc:
            raise self._broken(Rule.ENDS_WITH_A_FINISH) from exc
        except orjson.JSONEncodeError as exc:
            raise self._broken(Rule.VALID_UTF8) from exc

    def _broken(self, rule: Rule) -> StreamBroken:
        """Note which rule was broken, and return what the client is told."""
        self.broken_rule = rule
        logger.error("a completion broke a rule: %s request_id=%s", rule, self.completions[0].request.request_id)
        return StreamBroken()

    @property
    def slowest(self) -> Phases | None:
        """The phases of the completion that took longest."""
        told = [completion.phases for completion in self.completions if completion.phases is not None]
        return max(told, key=lambda phases: phases.total_s, default=None)

    def _finish(self, index: int, completion: Completion, chunk: GenerationChunk) -> None:
        if chunk.finish_reason is None or chunk.usage is None:
            raise self._broken(Rule.USAGE_WITH_THE_FINISH)
        completion.finish_reason, completion.usage = chunk.finish_reason, chunk.usage
        same_prompt = self.completions[index - index % self.num_per_prompt :][: self.num_per_prompt]
        if not _adds_up(completion, chunk.usage, [other.usage for other in same_prompt if other.usage is not None]):
            raise self._broken(Rule.USAGE_ADDS_UP)
        if chunk.timing is not None and completion.first_s is not None:
            waited_s = completion.first_s - self.sent_s
            completion.phases = phases_of(chunk.timing, waited_s, is_stream=self.is_stream)


def _adds_up(completion: Completion, usage: Usage, same_prompt: Sequence[Usage]) -> bool:
    return (
        0 <= usage.num_cached_tokens <= usage.num_input_tokens
        and completion.num_token_ids <= usage.num_output_tokens <= completion.request.params.max_tokens
        and usage.num_output_tokens >= 0
        and all(other.num_input_tokens == usage.num_input_tokens for other in same_prompt)
    )


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
