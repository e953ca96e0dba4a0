"""Turns a request's result, which TensorRT-LLM changes in place, into the outputs of steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import EngineRequest
from model_repository.engine.logprobs import token_logprob
from model_repository.engine.request_checks import constraint_field
from model_repository.engine.runtime import StepOutput
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, is_scored
from model_repository.engine.tensorrt_llm.tensors import to_array
from model_repository.errors import CannotContinue, EngineFailed, StageError


class ResultReader:
    """Reads the new parts of one result.

    Args:
        plan: the arguments of the call to TensorRT-LLM.
        end_id: the token that replaces an end which the result does not name.
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
        self.given = request.resumed_token_ids  # and the tokens of earlier results, which are at the end of the prompt
        self._num_read = 0  # tokens of this result
        self._num_cached: int | None = None
        self._has_ended = False
        self._prompt_logprobs: tuple[DrawnLogprob, ...] = ()  # part of the next output
        self._is_scored = not is_scored(request)  # also true without any need for scores

    def can_score(self, result: Any) -> bool:
        """Whether `score` must be called."""
        return not self._is_scored and result.context_logits is not None

    def score(self, result: Any, is_wanted: Callable[[], bool]) -> None:
        """Compute the prompt's log probabilities, once, while they are wanted; too slow for an event loop."""
        request = self._request
        scores = _prompt_logprobs(
            result.context_logits, request.prompt_token_ids, request.num_scored_logprobs or 0, self._vocab_size
        )
        self._prompt_logprobs = tuple(itertools.takewhile(lambda _: is_wanted(), scores))
        self._is_scored = True

    def read(self, result: Any) -> list[StepOutput]:
        """Return the outputs since the last call; for a finished result, also its end.

        The result's lists are cumulative. Its own differences may belong to an earlier update.
        """
        if not self._is_scored:
            if not result.finished:
                return []  # the prompt's scores come before the tokens
            return [self._failed(EngineFailed("TensorRT-LLM did not return the logits of the prompt"))]
        completion = result.outputs[0]
        outputs = list(self._drawn(result, completion)) if self._request.max_tokens else []
        if result.finished and not self._has_ended and not self._is_spoiled(completion.token_ids):
            outputs += self._ending(result, completion)
        return outputs

    def _drawn(self, result: Any, completion: Any) -> Iterator[StepOutput]:
        for index in range(self._num_read, self._num_sure(result, completion.token_ids)):
            if self._has_ended:
                return
            self._num_read, token_id = index + 1, completion.token_ids[index]
            if token_id == self._plan.dead_end and token_id not in self._plan.ends:
                self._has_ended = True
                yield self._failed(self._dead_end())
                return
            num_drawn = len(self.given) + self._num_read
            is_end = token_id in self._plan.ends or num_drawn == self._request.max_tokens
            self._has_ended = bool(self._plan.num_held) and is_end
            yield self._output(result, token_id, self._logprob(completion.logprobs, index, token_id))

    def _num_sure(self, result: Any, token_ids: Sequence[int]) -> int:
        """Return the number of tokens that no pause has spoiled: the first one, and those with enough others behind."""
        num_tokens, num_held = len(token_ids), self._plan.num_held
        if self._is_spoiled(token_ids):
            num_tokens = token_ids.index(self._plan.dead_end)
        elif result.finished:
            num_held = 0
        return min(num_tokens, max(1, num_tokens - num_held))

    def _is_spoiled(self, token_ids: Sequence[int]) -> bool:
        """Whether a dead end is the sign of a pause: it is behind two tokens, since the first follows no pause."""
        dead_end = self._plan.dead_end
        return bool(self._plan.num_held) and dead_end in token_ids and token_ids.index(dead_end) > 1

    def has_paused(self, result: Any) -> bool:
        """Whether tokens were drawn without our edits, so that another result must follow the tokens read so far."""
        token_ids = result.outputs[0].token_ids
        if self._has_ended or not self._is_spoiled(token_ids):
            return False
        self.given += tuple(token_ids[: self._num_read])
        self._num_read = 0
        return True

    def _dead_end(self) -> StageError:
        field = constraint_field(self._request)
        if not field:  # our edits before a draw did not get the token before it
            return EngineFailed("TensorRT-LLM did not tell in time which token it had drawn")
        rule = "every token is ruled out, with bad_words or logit_bias, or the rules take too much work"
        return CannotContinue(f"nothing can follow: {rule}", field)

    def _ending(self, result: Any, completion: Any) -> Iterator[StepOutput]:
        """Yield the outputs that make the engine stage end the sequence, too."""
        request, ids = self._request, completion.token_ids
        if completion.finish_reason not in ("stop", "length"):
            yield self._failed(EngineFailed(f"TensorRT-LLM ended it early: {completion.finish_reason}"))
        elif request.max_tokens == 0:
            yield self._output(result, None, None)
        elif completion.finish_reason == "length":
            if len(self.given) + len(ids) < request.max_tokens:  # a limit of the engine
                yield self._output(result, None, None)
        elif not (ids and ids[-1] in self._plan.ends):  # only one backend lists the end token
            reason = completion.stop_reason
            token_id = reason if isinstance(reason, int) and reason in self._plan.ends else self._end_id
            if token_id in self._plan.ends:
                yield self._output(result, token_id, self._logprob(completion.logprobs, len(ids), token_id))
            else:  # an end that the engine stage does not know: it would wait for another one
                yield self._output(result, None, None)

    def _output(self, result: Any, token_id: int | None, logprob: DrawnLogprob | None) -> StepOutput:
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, ()
        if self._num_cached is None:  # after a pause, drawn tokens count too
            self._num_cached = int(result.cached_tokens)
        return StepOutput(
            self._sequence, token_id, self._num_cached, logprob, prompt_logprobs, scheduled_s=self.scheduled_s
        )

    def _logprob(self, entries: Sequence[Any], index: int, token_id: int) -> DrawnLogprob | None:
        """Return a token's log probability, which is unknown for an end token that the result does not list."""
        if self._request.params.num_logprobs is None:
            return None
        entry = entries[index] if index < len(entries) else {}
        return _drawn_logprob(entry, token_id, self._request.params.num_logprobs)

    def _failed(self, error: StageError) -> StepOutput:
        return StepOutput(self._sequence, error=error)


def _drawn_logprob(entry: Mapping[int, Any], token_id: int, num_top: int) -> DrawnLogprob:
    """Return a drawn token's log probability and the most likely tokens. Of equals, lower ids win.

    Args:
        entry: token id to TensorRT-LLM's Logprob: the most likely tokens, and mostly the drawn token. The PyTorch
            backend of 1.2.1 may leave it out if it is not among them.
    """
    values = sorted(
        ((item, float(value.logprob)) for item, value in entry.items()), key=lambda pair: (-pair[1], pair[0])
    )
    return DrawnLogprob(float(entry[token_id].logprob) if token_id in entry else None, tuple(values[:num_top]))


def _prompt_logprobs(
    context_logits: Any, prompt_token_ids: Sequence[int], num_top: int, vocab_size: int
) -> Iterator[DrawnLogprob]:
    """Yield the log probability and rank of each prompt token; a token takes milliseconds, too slow for an event loop.

    TensorRT-LLM's own `prompt_logprobs` hold only the most likely tokens, often without the prompt's own.

    Args:
        context_logits: [num_prompt_tokens, num_logits], at least vocab_size; row t predicts the token after t.
    """
    yield DrawnLogprob(None)  # the first token follows nothing
    for row, token_id in enumerate(prompt_token_ids[1:]):
        yield token_logprob(to_array(context_logits[row])[:vocab_size], token_id, num_top, is_ranked=True)
