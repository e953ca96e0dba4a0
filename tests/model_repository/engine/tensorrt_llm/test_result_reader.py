"""From results that change in place to the outputs of steps."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_repository.contract.output import DrawnLogprob
from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.tensorrt_llm import tensors
from model_repository.engine.tensorrt_llm.result_reader import ResultReader
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan
from model_repository.errors import EngineFailed, InvalidRequest
from tests.model_repository.engine.tensorrt_llm.conftest import EOS, OTHER_EOS, UNUSED, request

STOP = 20
PLAN = SamplingPlan({}, {}, None, frozenset([EOS, OTHER_EOS, STOP]), UNUSED)


class Result:
    """A result as TensorRT-LLM fills it."""

    def __init__(self) -> None:
        self.outputs = [
            SimpleNamespace(token_ids=[], token_ids_diff="stale", logprobs=[], finish_reason=None, stop_reason=None)
        ]
        self.finished = False
        self.cached_tokens = 0
        self.context_logits: Any = None

    def add(self, *token_ids: int, finish_reason: str | None = None, stop_reason: Any = None) -> Result:
        self.outputs[0].token_ids += token_ids
        self.outputs[0].finish_reason, self.outputs[0].stop_reason = finish_reason, stop_reason
        self.finished = finish_reason is not None
        return self


def reader(**fields: Any) -> ResultReader:
    return ResultReader(5, request(**{"ignore_eos": False} | fields), PLAN, end_id=EOS, vocab_size=4)


def tokens(outputs: Any) -> list[int | None]:
    assert all(output.sequence == 5 and output.error is None for output in outputs)
    return [output.token_id for output in outputs]


def test_each_token_is_read_once() -> None:
    read, result = reader().read, Result()
    assert tokens(read(result.add(30))) == [30]
    assert tokens(read(result)) == []
    assert tokens(read(result.add(31, 32))) == [31, 32]


# The tokens and the end of a result, and the tokens of the outputs.
@pytest.mark.parametrize(
    ("token_ids", "finish_reason", "stop_reason", "expected"),
    [
        *(((30, end), "stop", end, [30, end]) for end in (EOS, OTHER_EOS, STOP)),
        ((30,), "stop", None, [30, EOS]),
        ((30,), "stop", STOP, [30, STOP]),
        ((), "stop", None, [EOS]),
        ((30, 31), "length", None, [30, 31]),  # max_tokens is the engine stage's to see
        ((30,), "length", None, [30, None]),  # a limit of the engine's own
    ],
)
def test_a_sequence_ends_once_whether_the_result_lists_its_end_or_not(
    token_ids: tuple[int, ...], finish_reason: str, stop_reason: int | None, expected: list[int | None]
) -> None:
    result = Result().add(*token_ids, finish_reason=finish_reason, stop_reason=stop_reason)
    assert tokens(reader(max_tokens=2).read(result)) == expected


def test_the_unwanted_token_of_an_empty_completion_is_dropped() -> None:
    read, result = reader(max_tokens=0).read, Result()
    assert tokens(read(result.add(30))) == []
    assert tokens(read(result.add(finish_reason="length"))) == [None]
    assert tokens(reader(max_tokens=0).read(Result().add(EOS, finish_reason="stop"))) == [None]


def test_an_unexpected_ending_is_an_error() -> None:
    for reason in ("cancelled", "timeout"):
        [output] = reader().read(Result().add(finish_reason=reason))
        assert isinstance(output.error, EngineFailed) and reason in output.error.text


def test_a_dead_end_is_an_error_and_nothing_follows_it() -> None:
    regex = StructuredOutput(OutputFormat.REGEX, "x")
    token, dead = reader(structured_output=regex).read(Result().add(30, UNUSED, 31, finish_reason="length"))
    assert token.token_id == 30
    assert isinstance(dead.error, InvalidRequest) and "nothing can follow" in dead.error.text
    [late] = reader().read(Result().add(UNUSED))
    assert isinstance(late.error, EngineFailed)


def test_tokens_are_held_until_no_pause_can_have_spoiled_them() -> None:
    """Two tokens in a row may have been drawn without a call of the logits processor."""
    plan = dataclasses.replace(PLAN, num_held=2)
    held = ResultReader(5, request(max_tokens=9, ignore_eos=False), plan, end_id=EOS, vocab_size=4)
    result = Result()
    assert [tokens(held.read(result.add(token_id))) for token_id in (30, 31, 32, 33)] == [[30], [], [], [31]]
    assert not held.has_paused(result)
    assert tokens(held.read(result.add(UNUSED))) == []
    assert held.has_paused(result) and held.given == (30, 31)
    assert tokens(held.read(Result().add(40, EOS, 50, 51))) == [40, EOS]  # tokens behind an end are dropped


def test_log_probabilities_are_of_the_token_and_the_likeliest() -> None:
    result = Result().add(30)
    entry = {7: -0.5, 9: -1.5, 8: -1.5, 30: -4.0}
    result.outputs[0].logprobs = [{key: SimpleNamespace(logprob=value) for key, value in entry.items()}]
    [output] = reader(num_logprobs=2).read(result)
    assert output.logprob == DrawnLogprob(-4.0, ((7, -0.5), (8, -1.5)))
    [plain] = reader(num_logprobs=0).read(result)
    assert plain.logprob == DrawnLogprob(-4.0)
    [without] = reader().read(result)
    assert without.logprob is None
    del result.outputs[0].logprobs[0][30]  # as the PyTorch backend of 1.2.1 may do
    [unlikely] = reader(num_logprobs=1).read(result)
    assert unlikely.logprob == DrawnLogprob(None, ((7, -0.5),))


def test_an_omitted_end_token_keeps_its_log_probability() -> None:
    result = Result().add(finish_reason="stop")
    result.outputs[0].logprobs = [{EOS: SimpleNamespace(logprob=-0.25)}]
    assert [output.logprob for output in reader(num_logprobs=0).read(result)] == [DrawnLogprob(-0.25)]
    result.outputs[0].logprobs = []
    assert [output.logprob for output in reader(num_logprobs=0).read(result)] == [DrawnLogprob(None)]


@pytest.mark.parametrize("asked", [{"num_logprobs": 1, "echo": (b"a", b"b", b"c")}, {"num_prompt_logprobs": 1}])
def test_tokens_wait_for_the_prompts_log_probabilities(asked: dict[str, Any]) -> None:
    scored = reader(prompt_token_ids=(1, 2, 3), **asked)
    result = Result().add(30)
    result.outputs[0].logprobs = [{30: SimpleNamespace(logprob=-1.0)}]
    assert not scored.can_score(result)
    assert scored.read(result) == []
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4, 9.0], [0.7, 0.1, 0.1, 0.1, 9.0], [0.25] * 5], dtype=np.float32))
    result.context_logits = tensors.to_tensor(logits)
    assert scored.can_score(result)
    scored.score(result, lambda: True)
    assert not scored.can_score(result)
    [output] = scored.read(result)
    assert output.token_id == 30
    first, second, third = output.prompt_logprobs
    assert first == DrawnLogprob(None)
    assert (second.logprob, second.top[0][1]) == pytest.approx((math.log(0.3), math.log(0.4)), abs=1e-6)
    assert (third.logprob, third.top[0][1]) == pytest.approx((math.log(0.1), math.log(0.7)), abs=1e-6)
    assert (second.top[0][0], third.top[0][0]) == (3, 0)
    assert (second.rank, third.rank) == (2, 4)
    assert scored.read(result.add(31))[0].prompt_logprobs == ()


def test_logits_of_the_prompt_that_never_come_are_an_error() -> None:
    scored = reader(num_logprobs=0, echo=(b"a", b"b", b"c"))
    [output] = scored.read(Result().add(30, finish_reason="length"))
    assert isinstance(output.error, EngineFailed)


def test_an_unknown_end_still_ends_the_sequence() -> None:
    plan = SamplingPlan({}, {}, None, frozenset([STOP]), UNUSED)
    ignoring = ResultReader(5, request(ignore_eos=True), plan, end_id=EOS, vocab_size=4)
    assert tokens(ignoring.read(Result().add(30, finish_reason="stop"))) == [30, None]
