"""Each capability of the API through the ensemble's tensors, and errors that name the tensor."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import pytest

from model_repository.contract.codec import tensor
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import HONOURED_INPUTS, PUBLIC_INPUTS, PUBLIC_OUTPUTS
from model_repository.errors import InvalidRequest, error_from_message
from tests.integration.api import ANSWER, WEATHER, chat_text
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


def test_times_are_in_order_and_of_this_call(stack: Stack) -> None:
    begin = time.monotonic_ns()
    answer = generate(stack, return_perf_metrics=True)
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = [answer[name][0] for name in names]
    assert times == sorted(times)
    assert begin < times[0] and times[-1] < time.monotonic_ns()
    assert times[2] < times[3]


def test_every_response_of_a_stream_may_have_the_counts_so_far(stack: Stack) -> None:
    answers = stack.infer("demo", inputs(stream=True, stream_interval_ms=0, return_usage=True))
    counts = [answer["num_output_tokens"].item() for answer in answers]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert len({answer["num_input_tokens"].item() for answer in answers}) == 1
    assert "num_output_tokens" not in stack.infer("demo", inputs(stream=True, stream_interval_ms=0))[0]


def refused_field(stack: Stack, **values: Any) -> str | None:
    """Return the tensor that a refusal names as the client's mistake."""
    # Not as a status, by the metadata `triton_grpc_error`: once in some hundred calls that ends Triton (2.51).
    [response] = stack.stream("demo", inputs(**values))
    error = error_from_message(response.error_message)
    assert isinstance(error, InvalidRequest)
    return error.field


def test_a_plain_answer_has_no_optional_outputs(stack: Stack) -> None:
    answer = generate(stack)
    assert answer["text_output"] == [ANSWER.encode()]
    counts = {"num_input_tokens", "num_output_tokens", "num_cached_tokens"}
    assert answer.keys() == {"text_output", "finish_reason"} | counts


def test_log_probabilities_token_ids_and_the_echo(stack: Stack) -> None:
    answer = generate(stack, return_log_probs=True, top_logprobs=2, exclude_input_in_output=False)
    num_tokens = len(answer["token_ids"])
    assert answer["text_output"] == [(PROMPT + ANSWER).encode()]
    assert b"".join(answer["token_bytes"]).decode() == PROMPT + ANSWER
    assert math.isnan(answer["output_log_probs"][0])
    assert len(answer["output_log_probs"]) == len(answer["token_bytes"]) == num_tokens
    assert len(answer["top_logprob_values"]) == len(answer["top_logprob_token_ids"]) == 2 * num_tokens
    [num_echoed] = answer["num_echoed_tokens"]
    assert answer["cum_log_probs"] == pytest.approx([sum(answer["output_log_probs"][num_echoed:])], abs=1e-3)
    plain = generate(stack, return_token_ids=True)
    assert plain["token_ids"] == answer["token_ids"][num_echoed:]
    assert plain["input_token_ids"] == answer["token_ids"][:num_echoed]


def test_stops_and_lengths_end_a_completion(stack: Stack) -> None:
    answer = generate(stack, stop_words=[", 5", "x"])
    assert (answer["text_output"], answer["stop_reason"]) == ([b"1, 2, 3, 4"], [b'", 5"'])
    assert text(stack, stop_words=[", 5"], include_stop_str_in_output=True) == "1, 2, 3, 4, 5"
    [comma] = generate(stack, stop_words=["2"], return_token_ids=True)["token_ids"][1:2]
    by_token = generate(stack, stop_token_ids=[comma, 7])
    assert (by_token["text_output"], json.loads(by_token["stop_reason"][0])) == ([b"1"], comma)
    assert generate(stack, ignore_eos=True)["num_output_tokens"] == [40]
    assert generate(stack, min_tokens=20, stop_words=[","])["num_output_tokens"][0] >= 20


def test_sampling_tensors_have_their_effect(stack: Stack) -> None:
    forced = generate(stack, logit_bias_token_ids=[11], logit_bias_values=[100.0], max_tokens=5, return_token_ids=True)
    assert forced["token_ids"] == [11] * 5
    assert len({text(stack, text_input="zq xv", temperature=2.0, seed=seed) for seed in range(4)}) == 4
    for name, value in (("top_k", 1), ("top_p", 0.0), ("min_p", 1.0)):
        assert text(stack, temperature=2.0, **{name: value}) == ANSWER
    hot: dict[str, Any] = {"text_input": "zq xv", "temperature": 2.0, "seed": 1}
    assert text(stack, **hot, mirostat_target=0.5) != text(stack, **hot)
    assert text(stack, repetition_penalty=2.0) != ANSWER


def test_structured_output(stack: Stack) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})
    answer = text(stack, guided_decoding_guide_type="json_schema", guided_decoding_guide=schema)
    assert json.loads(answer)["a"] in (1, 2)
    assert text(stack, guided_decoding_guide_type="regex", guided_decoding_guide="[xy]{4}").strip("xy") == ""


def test_chats_with_tools_and_an_adapter(stack: Stack) -> None:
    def ask(question: str, **values: Any) -> str:
        messages = json.dumps([{"role": "user", "content": question}])
        return text(stack, text_input=None, messages=messages, **values)

    called = ask("What is the weather in Paris?", tools=json.dumps([WEATHER]), tool_choice="required", max_tokens=80)
    assert called.startswith('<tool_call>\n{"name": "get_weather", "arguments": {"city": ')
    assert ask("What is the capital of France?", lora_name="demo-formal").startswith("Dear friend, ")


def test_fill_in_the_middle(stack: Stack) -> None:
    assert text(stack, text_input="def add(a, b):\n    ", suffix="\n") == "return a + b"


RANGED = [spec for spec in HONOURED_INPUTS if spec.low is not None]


@pytest.mark.parametrize("spec", RANGED, ids=lambda spec: spec.name)
def test_a_value_outside_its_range_is_an_invalid_argument(stack: Stack, spec: TensorSpec) -> None:
    step = 1 if spec.datatype.startswith("INT") else 0.5
    assert spec.low is not None
    outside = [spec.low - step] if spec.high is None else [spec.low - step, spec.high + step]
    companions: dict[str, dict[str, Any]] = {
        "logit_bias_values": {"logit_bias_token_ids": [1]},
        "logit_bias_token_ids": {"logit_bias_values": [1.0]},
    }
    for value in outside:
        assert refused_field(stack, **companions.get(spec.name, {}), **{spec.name: [value]}) == spec.name


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"messages": "[]", "text_input": None}, "messages"),
        ({"text_input": None}, "text_input"),
        ({"input_ids": [1, 99_999], "text_input": None}, "input_ids"),
        ({"logit_bias_token_ids": [1], "logit_bias_values": [1.0, 2.0]}, "logit_bias_values"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_interval_ms": 20}, "stream_interval_ms"),
        ({"stream_interval_ms": 20, "stream": False}, "stream_interval_ms"),
        ({"lora_name": "nobody"}, "lora_name"),
        ({"guided_decoding_guide_type": "prose"}, "guided_decoding_guide_type"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "("}, "guided_decoding_guide"),
        ({"context_length_exceeded_behavior": "ignore"}, "context_length_exceeded_behavior"),
        ({"context_length_exceeded_behavior": "error", "max_tokens": 5000}, "text_input"),
        ({"images": [b"x"]}, "images"),
        ({"suffix": "x", "input_ids": [1], "text_input": None}, "suffix"),
        ({"temperature": float("nan")}, "temperature"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_an_invalid_argument_with_its_field(stack: Stack, values: dict[str, Any], field: str) -> None:
    assert refused_field(stack, **values) == field


def test_every_declared_output_can_be_requested(stack: Stack) -> None:
    asked = generate(
        stack,
        return_log_probs=True,
        top_logprobs=1,
        return_token_ids=True,
        exclude_input_in_output=False,
        stop_words=["5"],
        return_perf_metrics=True,
    )
    assert asked.keys() == {spec.name for spec in PUBLIC_OUTPUTS}
    assert np.asarray(asked["num_input_tokens"]) > 0
