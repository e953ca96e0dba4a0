"""The tokens that a request is charged at its end, for each way to end."""

from __future__ import annotations

import pytest

from frontend.gateway.charge import Charge, Outcome
from frontend.stream_record import StreamRecord
from model_repository.contract.output import GenerationChunk, Usage
from model_repository.contract.request import GenerationRequest, Params, TextPrompt

ESTIMATE, PROMPT = 1000, 100  # tokens: of the request, and of its prompt
USAGE = Usage(num_input_tokens=70, num_output_tokens=5)  # of a completion
NOTHING, SENT, BEGUN = "nothing is sent", "no token has come", "two tokens have come"


def charge_of(num_completions: int = 2, num_per_prompt: int = 2, *, is_stream: bool = True) -> tuple[Charge, list[int]]:
    """Return a charge, and the tokens that it is settled with."""
    settled: list[int] = []
    charge = Charge(
        num_estimated=ESTIMATE,
        num_prompt_tokens=PROMPT,
        num_completions=num_completions,
        num_per_prompt=num_per_prompt,
        is_stream=is_stream,
        on_settled=settled.append,
    )
    return charge, settled


def record_of(state: str, *, is_stream: bool) -> StreamRecord | None:
    """Return the record of a request with two completions."""
    if state == NOTHING:
        return None
    request = GenerationRequest(prompt=TextPrompt("p"), params=Params(max_tokens=9, is_stream=is_stream))
    record = StreamRecord([request] * 2, 2)
    if state == BEGUN:
        first = Usage(num_input_tokens=70, num_output_tokens=1)
        record.add(0, GenerationChunk(text="ab", num_tokens=2, usage=first))
    return record


@pytest.mark.parametrize(
    ("outcome", "is_stream", "state", "num_tokens"),
    [
        (Outcome.ANSWERED, True, SENT, PROMPT),
        (Outcome.ANSWERED, True, BEGUN, 70 + 2),
        (Outcome.ABANDONED, True, NOTHING, PROMPT),
        (Outcome.ABANDONED, True, SENT, PROMPT),
        (Outcome.ABANDONED, True, BEGUN, 70 + 2),
        (Outcome.ABANDONED, False, NOTHING, ESTIMATE),
        (Outcome.ABANDONED, False, SENT, ESTIMATE),
        (Outcome.ABANDONED, False, BEGUN, ESTIMATE),
        (Outcome.REFUSED, True, NOTHING, 0),
        (Outcome.REFUSED, True, SENT, 0),
        (Outcome.REFUSED, True, BEGUN, 70 + 2),
        (Outcome.REFUSED, False, SENT, 0),
        (Outcome.REFUSED, False, BEGUN, 70 + 2),
        (Outcome.EXHAUSTED, True, SENT, ESTIMATE),
        (Outcome.EXHAUSTED, True, BEGUN, 70 + 2),
        (Outcome.EXHAUSTED, False, SENT, ESTIMATE),
        (Outcome.EXHAUSTED, False, BEGUN, 70 + 2),
    ],
)
@pytest.mark.parametrize("usages", [0, 1], ids=["no usage", "one usage of two"])
def test_without_all_usages_the_charge_is_of_the_outcome_and_the_tokens_so_far(
    outcome: Outcome, is_stream: bool, state: str, num_tokens: int, usages: int
) -> None:
    charge, settled = charge_of(is_stream=is_stream)
    for index in range(usages):
        charge.used(index, USAGE)
    charge.settle(outcome, record_of(state, is_stream=is_stream))
    charge.settle(Outcome.ANSWERED, None)
    for index in range(2):
        charge.used(index, USAGE)
    assert settled == [num_tokens]


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("is_stream", [False, True])
def test_the_last_usage_settles_at_once_and_no_outcome_changes_it(outcome: Outcome, is_stream: bool) -> None:
    charge, settled = charge_of(4, 2, is_stream=is_stream)
    for index in (3, 0, 2, 1):
        assert settled == []
        charge.used(index, USAGE)
    assert settled == [2 * 70 + 4 * 5]
    charge.settle(outcome, record_of(BEGUN, is_stream=is_stream))
    assert settled == [2 * 70 + 4 * 5]
