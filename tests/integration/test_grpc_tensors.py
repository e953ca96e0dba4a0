"""Each capability of the API through the ensemble's tensors, and errors that name the tensor."""

from __future__ import annotations

import time
from typing import Any

import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.tensors import PUBLIC_INPUTS, PUBLIC_OUTPUTS
from model_repository.errors import InvalidRequest, error_from_message
from tests.integration.api import ANSWER, chat_text
from tests.integration.stack import Stack

PROMPT = chat_text("Count from 1 to 9.")


def inputs(**values: Any) -> dict[str, Any]:
    """Return a request's tensors by name: a list is a tensor of several elements."""
    specs = {spec.name: spec for spec in PUBLIC_INPUTS}
    fields = {"text_input": PROMPT, "max_tokens": 40} | values
    return {
        name: tensor(specs[name], *(value if isinstance(value, list) else [value]))
        for name, value in fields.items()
        if value is not None
    }


def generate(stack: Stack, **values: Any) -> dict[str, Any]:
    """Return the outputs of the only response, by name, as lists."""
    [answer] = stack.infer("demo", inputs(**values))
    return {name: tensor.reshape(-1).tolist() for name, tensor in answer.items()}


def text(stack: Stack, **values: Any) -> str:
    """Return the text of the only response."""
    output: bytes = generate(stack, **values)["text_output"][0]
    return output.decode()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"temperature": 2.5}, "temperature"),  # the range of a value
        ({"top_logprobs": 2}, "top_logprobs"),  # what must come together
        ({"input_ids": [1, 99_999], "text_input": None}, "input_ids"),  # the vocabulary
        ({"lora_name": "nobody"}, "lora_name"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "("}, "guided_decoding_guide"),
        ({"context_length_exceeded_behavior": "error", "max_tokens": 5000}, "text_input"),
        ({"images": [b"x"]}, "images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_an_invalid_argument_with_its_field(stack: Stack, values: dict[str, Any], field: str) -> None:
    # Not as a status, by the metadata `triton_grpc_error`: once in some hundred calls that ends Triton (2.51).
    [response] = stack.stream("demo", inputs(**values))
    error = error_from_message(response.error_message)
    assert isinstance(error, InvalidRequest)
    assert error.field == field


def test_a_plain_answer_has_no_optional_outputs_and_each_can_be_requested(stack: Stack) -> None:
    plain = generate(stack)
    assert plain["text_output"] == [ANSWER.encode()]
    counts = {"num_input_tokens", "num_output_tokens", "num_cached_tokens", "num_reasoning_tokens"}
    assert plain.keys() == {"text_output", "finish_reason"} | counts
    begin = time.monotonic_ns()
    answer = generate(
        stack,
        return_log_probs=True,
        top_logprobs=2,
        return_token_ids=True,
        exclude_input_in_output=False,
        stop_words=["5"],
        return_perf_metrics=True,
    )
    of_others = {"num_thinking_chars", "embedding"}  # outputs of models that think or embed
    assert answer.keys() == {spec.name for spec in PUBLIC_OUTPUTS} - of_others
    num_tokens = len(answer["token_ids"])
    assert answer["text_output"] == [(PROMPT + ANSWER.partition("5")[0]).encode()]
    assert answer["stop_reason"] == [b'"5"']
    assert b"".join(answer["token_bytes"]) == answer["text_output"][0]
    assert len(answer["output_log_probs"]) == len(answer["token_bytes"]) == num_tokens
    assert len(answer["top_logprob_values"]) == len(answer["top_logprob_token_ids"]) == 2 * num_tokens
    [num_echoed] = answer["num_echoed_tokens"]
    assert answer["cum_log_probs"] == pytest.approx([sum(answer["output_log_probs"][num_echoed:])], abs=1e-3)
    assert answer["input_token_ids"] == answer["token_ids"][:num_echoed]
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = [answer[name][0] for name in names]
    assert begin < times[0] and times == sorted(times) and times[-1] < time.monotonic_ns()
