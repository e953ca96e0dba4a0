"""From a request's result, as TensorRT-LLM changes it in place, to the outputs of steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest
from model_repository.engine.request_checks import constraint_field
from model_repository.engine.runtime import StepOutput
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, is_scored
from model_repository.engine.tensorrt_llm.scores import drawn_logprob, prompt_logprobs
from model_repository.errors import EngineFailed, InvalidRequest, StageError


class ResultReader:
    """Reads what is new in one result.

    Args:
        sequence: the number that the outputs carry.
        request: what was asked.
        plan: how TensorRT-LLM was asked.
        end_id: the token that stands for an end which the result does not name.
        vocab_size: the tokens that there are.
    """

    def __init__(
        self, sequence: int, request: EngineRequest, plan: SamplingPlan, *, end_id: int, vocab_size: int
    ) -> None:
        self.scheduled_s: float | None = None  # when TensorRT-LLM was called
        self._sequence = sequence
        self._request = request
        self._plan = plan
        self._end_id = end_id
        self._vocab_size = vocab_size
        self._num_read = 0  # of the completion's tokens
        self._prompt_logprobs: tuple[DrawnLogprob, ...] = ()  # to be told with the next output
        self._is_scored = not is_scored(request)  # or need not be

    def can_score(self, result: Any) -> bool:
        """Whether `score` is due."""
        return not self._is_scored and result.context_logits is not None

    def score(self, result: Any, is_wanted: Callable[[], bool]) -> None:
        """Compute the prompt's log probabilities, once, as long as they are wanted; not for an event loop."""
        request = self._request
        scores = prompt_logprobs(
            result.context_logits, request.prompt_token_ids, request.params.num_logprobs or 0, self._vocab_size
        )
        self._prompt_logprobs = tuple(itertools.takewhile(lambda _: is_wanted(), scores))
        self._is_scored = True

    def read(self, result: Any) -> list[StepOutput]:
        """Return what happened since the last call, and on a finished result how it ended.

        The result's lists are cumulative; its own differences may be of an update before the last.
        """
        if not self._is_scored:
            if not result.finished:
                return []  # the tokens wait, since the prompt comes first
            return [self._failed(EngineFailed("TensorRT-LLM did not return the logits of the prompt"))]
        completion = result.outputs[0]
        outputs = list(self._drawn(result, completion)) if self._request.max_tokens else []
        self._num_read = len(completion.token_ids)
        if result.finished and not (outputs and outputs[-1].error):
            outputs += self._ending(result, completion)
        return outputs

    def _drawn(self, result: Any, completion: Any) -> Iterator[StepOutput]:
        for index in range(self._num_read, len(completion.token_ids)):
            token_id = completion.token_ids[index]
            if token_id == self._plan.dead_end and token_id not in self._plan.ends:
                yield self._failed(self._dead_end())
                return
            yield self._output(result, token_id, self._logprob(completion.logprobs, index, token_id))

    def _dead_end(self) -> StageError:
        field = constraint_field(self._request)
        if not field:  # our steps before a draw did not hear of the token before it
            return EngineFailed("TensorRT-LLM did not tell in time which token it had drawn")
        rule = "it rules out every token, with bad_words, logit_bias or min_tokens, or is too complex"
        return InvalidRequest(f"nothing can follow: {rule}", field)

    def _ending(self, result: Any, completion: Any) -> Iterator[StepOutput]:
        """Yield what the engine stage must still be told so that it ends the sequence too."""
        request, ids = self._request, completion.token_ids
        if completion.finish_reason not in ("stop", "length"):
            yield self._failed(EngineFailed(f"TensorRT-LLM ended it early: {completion.finish_reason}"))
        elif request.max_tokens == 0:
            yield self._output(result, None, None)
        elif completion.finish_reason == "length":
            if len(ids) < request.max_tokens:  # a limit of the engine's own
                yield self._output(result, None, None)
        elif not (ids and ids[-1] in self._plan.ends):  # whether the end token is among them depends on the backend
            reason = completion.stop_reason
            token_id = reason if isinstance(reason, int) and reason in self._plan.ends else self._end_id
            if token_id in self._plan.ends:
                yield self._output(result, token_id, self._logprob(completion.logprobs, len(ids), token_id))
            else:  # of no end that the engine stage knows, which would wait for one for ever
                yield self._output(result, None, None)

    def _output(self, result: Any, token_id: int | None, logprob: DrawnLogprob | None) -> StepOutput:
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, ()
        return StepOutput(
            self._sequence, token_id, int(result.cached_tokens), logprob, prompt_logprobs, scheduled_s=self.scheduled_s
        )

    def _logprob(self, entries: Sequence[Any], index: int, token_id: int) -> DrawnLogprob | None:
        """Return a token's log probability; an unknown one for an end token that the result does not list."""
        if self._request.params.num_logprobs is None:
            return None
        if index >= len(entries) or token_id not in entries[index]:
            return DrawnLogprob(None)
        return drawn_logprob(entries[index], token_id, self._request.params.num_logprobs)

    def _failed(self, error: StageError) -> StepOutput:
        return StepOutput(self._sequence, error=error)
