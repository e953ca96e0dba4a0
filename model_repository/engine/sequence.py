"""One request inside the engine: its end, and the tokens that may be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from model_repository.contract.output import (
    DeltaDetails,
    DrawnLogprob,
    FinishReason,
    Timing,
    TokenDelta,
    Usage,
    VectorChunk,
)
from model_repository.contract.request import EngineRequest
from model_repository.engine.emitter import PendingOutput
from model_repository.engine.output_streams import OutputStream
from model_repository.engine.runtime import StepOutput
from model_repository.engine.stop_buffer import StopBuffer, border_of
from model_repository.errors import InvalidRequest

_PART_SIZE = 512  # log probabilities: their objects take 50 kB here, and the detokenizer a millisecond


class EngineSequence:
    """A request from its arrival at the engine to its last token delta.

    Args:
        number: the engine's own name for it.
        item: the client's number for it, on that stream.
    """

    def __init__(
        self,
        number: int,
        request: EngineRequest,
        *,
        stream: OutputStream,
        item: int,
        byte_table: Sequence[bytes],
        eos_token_ids: frozenset[int],
        now_s: float,
    ) -> None:
        self.number = number
        self.request = request
        self.stream = stream
        self.item = item
        self._arrived_s = now_s
        self._scheduled_s = self._last_output_s = now_s  # outputs replace both
        self._first_output_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._embedding: bytes | None = None
        self._byte_table = byte_table
        self._end_token_id: int | None = None  # token that ended it; kept only if the request lists tokens
        self._eos_token_ids = frozenset() if request.params.ignore_eos else eos_token_ids.union(request.end_token_ids)
        self._stop_token_ids = frozenset(request.params.stop_token_ids)
        has_form = request.params.structured_output is not None
        self._border = None if request.thinking is None else border_of(request.thinking, is_single=has_form)
        self._stop_buffer = StopBuffer(
            byte_table,
            [stop.encode() for stop in request.params.stop],
            include_stop=request.params.include_stop,
            min_tokens=request.params.min_tokens,
            border=self._border,
        )
        self._final_token_ids: list[int] = []  # not sent yet
        self._final_since_s = now_s
        is_resumed, resumed = request.params.resume_token_ids is not None, request.resumed_token_ids
        self._has_sent_token = bool(resumed)
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._has_echo = bool(request.echo) and not is_resumed  # not sent yet
        has_scores = request.params.num_prompt_logprobs is not None
        # The prompt's token ids are not sent yet.
        self._has_prompt = not is_resumed and (self._has_echo or request.params.has_token_ids or has_scores)
        self._prompt_logprobs: tuple[DrawnLogprob, ...] = ()
        self._logprobs: deque[DrawnLogprob] = deque()  # all tokens that are not sent yet
        self._cum_logprob = 0.0  # sum over the tokens sent
        self._lists_tokens = request.params.has_token_ids or request.params.num_logprobs is not None
        self._has_details = self._has_prompt or self._lists_tokens
        interval_ms = request.params.stream_interval_ms
        self._max_wait_s = None if interval_ms is None else interval_ms / 1e3
        self._num_unsent_resumed = len(resumed)  # tokens that the client has, and that are not final here yet
        self._num_redrawn = len(resumed) if request.is_redrawn else 0  # still to come
        for token_id in resumed:
            self._replay(token_id, now_s)

    def _replay(self, token_id: int, now_s: float) -> None:
        """Add a token that the client has.

        Raises:
            InvalidRequest: the completion ended before it.
        """
        if self.finish_reason is None:
            self._num_output_tokens += 1
            self._add_token(token_id, now_s)
        if self.finish_reason is not None or self._num_output_tokens >= self.request.max_tokens:
            raise InvalidRequest(f"the completion ended with {token_id}, or before it", "resume_token_ids")

    def add_output(self, output: StepOutput, now_s: float) -> None:
        """Add the result of a step: count its token, pass it to the stop buffer, and decide whether it is the last."""
        if self._first_output_s is None:
            self._first_output_s, self._scheduled_s = now_s, output.scheduled_s or self._arrived_s
        self._last_output_s = now_s
        num_cached = min(output.num_cached_tokens, len(self.request.prompt_token_ids))
        self._num_cached_tokens = max(self._num_cached_tokens, num_cached)
        if output.prompt_logprobs:
            self._prompt_logprobs = output.prompt_logprobs
        if output.embedding is not None:
            self._embedding, self.finish_reason = output.embedding, VectorChunk.finish_reason
        if output.token_id is not None and self._num_redrawn:
            self._num_redrawn -= 1
            return
        if output.token_id is not None:
            self._num_output_tokens += 1
            if output.logprob is not None:
                self._logprobs.append(output.logprob)
            self._add_token(output.token_id, now_s)
        has_no_more = output.token_id is None or self._num_output_tokens >= self.request.max_tokens
        if self.finish_reason is None and has_no_more:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason is not None and self._stop_buffer.matched_stop is None:
            self._add_final(self._stop_buffer.finish(), now_s)
            if self._end_token_id is not None:
                self._add_final([self._end_token_id], now_s)

    def _add_token(self, token_id: int, now_s: float) -> None:
        if token_id in self._eos_token_ids:
            self._end_at(token_id, None)
            return
        if token_id in self._stop_token_ids:
            if not self.request.params.include_stop:
                self._end_at(token_id, token_id)
                return
            self.finish_reason, self._stop_reason = FinishReason.STOP, token_id
        self._add_final(self._stop_buffer.push(token_id), now_s)
        if (matched := self._stop_buffer.matched_stop) is not None:
            self.finish_reason, self._stop_reason = FinishReason.STOP, self.request.params.stop[matched]

    def _end_at(self, token_id: int, stop_reason: int | None) -> None:
        """End at a token that adds no text. A request that lists its tokens gets it, too."""
        self.finish_reason, self._stop_reason = FinishReason.STOP, stop_reason
        if self._lists_tokens:
            self._end_token_id = token_id

    def _add_final(self, token_ids: list[int], now_s: float) -> None:
        if self._num_unsent_resumed:
            known, token_ids = token_ids[: self._num_unsent_resumed], token_ids[self._num_unsent_resumed :]
            self._num_unsent_resumed -= len(known)
            if self._border is not None:
                self._border.next_spans(self._byte_table[each] for each in known)
        if token_ids and not self._final_token_ids:
            self._final_since_s = now_s
        self._final_token_ids += token_ids

    def pending_output(self) -> PendingOutput | None:
        """Return the output that may be sent now, if any.

        Without streaming everything is sent in one response, except for many log probabilities: a frontend joins them.
        """
        is_last, is_stream = self.finish_reason is not None, self.request.params.is_stream
        if not is_last and not (self._has_part() if not is_stream else self._final_token_ids or self._can_send_echo()):
            return None
        return PendingOutput(
            key=self.number,
            since_s=self._final_since_s,
            is_urgent=is_last or (is_stream and not self._has_sent_token),
            stream=self.stream.number,
            max_wait_s=self._max_wait_s,
            is_held=self.stream.is_sending,
        )

    def _has_part(self) -> bool:
        """Whether there are so many log probabilities that they should not wait for the others."""
        num_top = self.request.params.num_logprobs
        if num_top is None or self.stream.is_single:
            return False
        return len(self._final_token_ids) * (1 + num_top) >= _PART_SIZE and (
            not self._has_echo or bool(self._prompt_logprobs)
        )

    def _can_send_echo(self) -> bool:
        return self._has_echo and (self.request.params.num_logprobs is None or bool(self._prompt_logprobs))

    def outcome(self) -> str:
        """Return a line for the log: how the sequence ended."""
        times = self._timing() if self.finish_reason is not None else None
        waited_ms = 0.0 if times is None else (times.first_token_time_ns - times.arrival_time_ns) / 1e6
        return (
            f"{self.finish_reason or 'cancelled'} request_id={self.request.request_id or '-'} sequence={self.number} "
            f"input_tokens={len(self.request.prompt_token_ids)} output_tokens={self._num_output_tokens} "
            f"first_token_ms={waited_ms:.1f}"
        )

    def vector(self) -> VectorChunk | None:
        """Return the vector of a sequence that is embedded or scored."""
        if self._embedding is None:
            return None
        params = self.request.params
        return VectorChunk(
            embedding=self._embedding,
            prompt_token_ids=self.request.prompt_token_ids if params.has_token_ids else (),
            usage=self._usage(),
            timing=self._timing() if params.has_timing else None,
        )

    def next_delta(self) -> TokenDelta:
        """Return everything that may be sent and is not sent yet."""
        is_last = self.finish_reason is not None
        token_ids, self._final_token_ids = tuple(self._final_token_ids), []
        details = self._next_details(len(token_ids)) if self._has_details or is_last else None
        is_first = bool(token_ids) and not self._has_sent_token
        self._has_sent_token = self._has_sent_token or is_first
        return TokenDelta(
            token_ids=token_ids,
            num_cut_bytes=self._num_cut_bytes(),
            finish_reason=self.finish_reason,
            usage=self._usage() if is_last or is_first or self.request.params.has_usage else None,
            details=details,
            spans=() if self._border is None else self._border.next_spans(self._byte_table[each] for each in token_ids),
        )

    def _num_cut_bytes(self) -> int:
        if self._end_token_id is not None:
            return len(self._byte_table[self._end_token_id])
        return self._stop_buffer.num_cut_bytes

    def _usage(self) -> Usage:
        return Usage(
            num_input_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_reasoning_tokens=0 if self._border is None else self._border.num_tokens,
        )

    def _timing(self) -> Timing:
        assert self._first_output_s is not None, "a sequence ends with an output"
        times_s = self._arrived_s, self._scheduled_s, self._first_output_s, self._last_output_s
        arrived, scheduled, first, last = (round(time_s * 1e9) for time_s in times_s)
        return Timing(
            arrival_time_ns=arrived,
            first_scheduled_time_ns=scheduled,
            first_token_time_ns=first,
            last_token_time_ns=last,
        )

    def _next_details(self, num_tokens: int) -> DeltaDetails | None:
        """Return the other facts about the next tokens, if any."""
        request, has_echo, has_logprobs = self.request, self._has_echo, self.request.params.num_logprobs is not None
        has_prompt = self._has_prompt
        logprobs = [self._logprobs.popleft() for _ in range(num_tokens)] if has_logprobs else []
        self._cum_logprob += sum(item.logprob or 0.0 for item in logprobs)
        self._has_echo = self._has_prompt = False
        details = DeltaDetails(
            prompt_token_ids=request.prompt_token_ids if has_prompt else (),
            echo=request.echo if has_echo else (),
            logprobs=(*self._scores(request.params.num_logprobs), *logprobs) if has_echo else tuple(logprobs),
            prompt_logprobs=self._scores(request.params.num_prompt_logprobs) if has_prompt else (),
            cum_logprob=self._cum_logprob if has_logprobs and self.finish_reason is not None else None,
            has_token_ids=request.params.has_token_ids,
            stop_reason=self._stop_reason,
            timing=self._timing() if request.params.has_timing and self.finish_reason is not None else None,
        )
        return None if details == DeltaDetails() else details

    def _scores(self, num_top: int | None) -> tuple[DrawnLogprob, ...]:
        """Return the prompt's log probabilities with this number of likely tokens; None: without any."""
        if num_top is None:
            return ()
        if num_top == self.request.num_scored_logprobs:
            return self._prompt_logprobs
        return tuple(DrawnLogprob(item.logprob, item.top[:num_top], item.rank) for item in self._prompt_logprobs)
