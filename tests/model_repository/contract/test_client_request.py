"""A gRPC client's tensors as a generation request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from model_repository.contract.client_request import tensors_to_request
from model_repository.contract.codec import tensor
from model_repository.contract.request import (
    MAX_BAD_WORDS,
    MAX_STOP_WORDS,
    ChatPrompt,
    GenerationRequest,
    Mirostat,
    Params,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from model_repository.contract.rules import MAX_TOOLS, MAX_TOOLS_CHARS, check_request
from model_repository.contract.spec import TensorSpec, specs_of
from model_repository.contract.tensors import HONOURED_INPUTS, INPUTS, NEUTRAL_INPUTS
from model_repository.errors import InvalidRequest, Unsupported
from tests.model_repository.contract.generated import requests
from tests.public_tensors import request_to_tensors

MESSAGES = ({"role": "user", "content": "hi"},)
CHAT = json.dumps(MESSAGES)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}
TOOLS = json.dumps([TOOL])
GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1}
RANGED = [spec for spec in HONOURED_INPUTS if spec.low is not None or spec.high is not None]


def request_of(**tensors: Any) -> GenerationRequest:
    """Return the request of a client that sends a prompt and these tensors, given as lists of elements."""
    sent: dict[str, Any] = {"text_input": ["hello"], "seed": [1]} | tensors
    tensors = {name: tensor(INPUTS[name], *items) for name, items in sent.items() if items is not None}
    request = tensors_to_request(tensors)
    check_request(request)
    return request


def params(sampling: dict[str, Any] | None = None, **fields: Any) -> Params:
    """Return the parameters of a request, which is greedy unless `sampling` says otherwise."""
    return Params(sampling=SamplingParams(**GREEDY | (sampling or {})), **fields)


def refusal(*, error: type[InvalidRequest] = InvalidRequest, **tensors: Any) -> str:
    with pytest.raises(error) as caught:
        request_of(**tensors)
    assert type(caught.value) is error
    return caught.value.message().removeprefix(f"[{error.code}] ")


def shortened(value: Any) -> str:
    return str(value)[:80]


# --- the round trip -------------------------------------------------------------------------------------------------


@given(requests())
def test_a_request_survives_its_tensors(request: GenerationRequest) -> None:
    assert tensors_to_request(request_to_tensors(request)) == request


# --- each input -----------------------------------------------------------------------------------------------------

# The tensors of a client, and the parameters of its request: the cases that the round trip does not reach.
PARAMS: list[tuple[dict[str, Any], Params]] = [
    ({}, params()),
    ({"stop_words": ["", "€", "\n\n", ""]}, params(stop=("€", "\n\n"))),
    ({"bad_words": ["damn", "", "é"]}, params(bad_words=("damn", "é"))),
    ({"context_length_exceeded_behavior": [""]}, params()),
    ({"lora_name": [""], "sender": [""], "cancel_key": [""], "stop_words": [""]}, params()),
    ({"guided_decoding_guide_type": [""], "guided_decoding_guide": [""]}, params()),
    # An input that shapes the distribution turns sampling on.
    ({"temperature": [0.75]}, params({"temperature": 0.75})),
    ({"top_p": [0.5]}, params({"temperature": 1.0, "top_p": 0.5})),
    ({"top_k": [-1]}, params({"temperature": 1.0})),
    ({"min_p": [0.25]}, params({"temperature": 1.0, "min_p": 0.25})),
    ({"min_p": [0.25], "temperature": [0.0]}, params({"min_p": 0.25})),
    ({"mirostat_target": [3]}, params({"temperature": 1.0, "mirostat": Mirostat(target=3.0)})),
    ({"mirostat_lr": [0.5]}, params({"temperature": 1.0, "mirostat": Mirostat(learning_rate=0.5)})),
]
PROMPTS: list[tuple[dict[str, Any], Prompt]] = [
    ({"text_input": [""], "suffix": ["b"]}, TextPrompt("", "b")),
    ({"text_input": ["é\0"]}, TextPrompt("é\0")),
    # NVIDIA's clients always send a text.
    ({"input_ids": [1, 2], "text_input": [""]}, TokenPrompt((1, 2))),
    ({"messages": [CHAT], "text_input": [""]}, ChatPrompt(MESSAGES)),
    (
        {"messages": [json.dumps([{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}])]},
        ChatPrompt(({"role": "user", "content": "a\nb"},)),
    ),
    (
        {"messages": [CHAT], "tools": ["[]"], "tool_choice": ["auto"], "parallel_tool_calls": [False]},
        ChatPrompt(MESSAGES),
    ),
]


@pytest.mark.parametrize(("sent", "expected"), PARAMS, ids=shortened)
def test_each_parameter_is_read_from_its_input(sent: dict[str, Any], expected: Params) -> None:
    found = request_of(**sent)
    assert found == GenerationRequest(prompt=TextPrompt("hello"), params=expected)
    assert repr(found.params) == repr(expected)  # 0, 0.0 and False are equal


@pytest.mark.parametrize(("sent", "expected"), PROMPTS, ids=shortened)
def test_each_prompt_is_read_from_its_inputs(sent: dict[str, Any], expected: Prompt) -> None:
    assert request_of(**{"text_input": None} | sent).prompt == expected


def test_without_a_seed_every_request_draws_another() -> None:
    seeds = {request_of(seed=None).params.sampling.seed for _ in range(2)}
    assert len(seeds) == 2


# --- ranges ---------------------------------------------------------------------------------------------------------

COMPANIONS: dict[str, dict[str, Any]] = {  # without which a value in its range would be refused
    "max_tokens": {"exclude_input_in_output": [False]},
    "min_tokens": {"max_tokens": [2**31 - 1]},
    "top_logprobs": {"return_log_probs": [True]},
    "stream_interval_ms": {"stream": [True]},
    "logit_bias_token_ids": {"logit_bias_values": [1.0]},
    "logit_bias_values": {"logit_bias_token_ids": [1]},
}


@pytest.mark.parametrize("spec", RANGED, ids=lambda spec: spec.name)
def test_a_value_outside_its_range_is_refused_and_the_ends_of_the_range_are_in_it(spec: TensorSpec) -> None:
    companions = COMPANIONS.get(spec.name, {})
    for end in (spec.low, spec.high):
        if end is not None and not (spec.is_low_open and end == spec.low):
            request_of(**companions, **{spec.name: [end]})
    is_integer = spec.datatype == "INT32"
    step = 1 if is_integer else 0.5
    outside = [] if spec.high is None else [spec.high + step]
    if spec.low is not None:
        outside.append(spec.low if spec.is_low_open else spec.low - step)
    for value in outside if is_integer else [*outside, np.nan, np.inf, -np.inf]:
        shown = int(value) if is_integer else float(value)
        assert refusal(**companions | {spec.name: [value]}).startswith(f"{spec.name}: {shown} must be ")


@pytest.mark.parametrize("top_k", [-2, 2**31])
def test_an_integer_that_fits_no_tensor_is_refused(top_k: int) -> None:
    """A message between stages can have it. It failed in the runtime as an internal error."""
    asked = GenerationRequest(prompt=TextPrompt("a"), params=Params(sampling=SamplingParams(top_k=top_k)))
    with pytest.raises(InvalidRequest, match=f"^{top_k} must be at least -1 and at most 2147483647$") as caught:
        check_request(asked)
    assert caught.value.field == "top_k"


@pytest.mark.parametrize(
    ("count", "images", "rule"),
    [
        (-1, (), "-1 must be at least 0 and at most 20"),
        (21, (), "21 must be at least 0 and at most 20"),
        (0, (b"a",), "a prompt with images has none"),
    ],
)
def test_log_probabilities_of_a_prompt_have_rules_of_their_own(
    count: int, images: tuple[bytes, ...], rule: str
) -> None:
    asked = GenerationRequest(prompt=TextPrompt("a"), params=Params(num_prompt_logprobs=count), images=images)
    with pytest.raises(InvalidRequest) as caught:
        check_request(asked)
    assert (caught.value.text, caught.value.field) == (rule, "prompt_logprobs")


# --- refusals -------------------------------------------------------------------------------------------------------

FORMATS = "must be one of json, json_schema, regex, choice, ebnf_grammar"
ONE_PROMPT = "text_input: expected exactly one of text_input, messages, input_ids, text_pair"
NO_LIST = "tools: expected a JSON list"
NO_CONTENT = "messages[0]: expected `content` to be a string or a list of text parts"


def tools(function: Any) -> dict[str, Any]:
    return {"tools": [json.dumps([{"type": "function", "function": function}])]}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": [0]}, "max_tokens: 0 must be at least 1, unless exclude_input_in_output is false"),
        ({"min_tokens": [17]}, "min_tokens: 17 must be at most max_tokens, 16"),
        ({"max_tokens": [1, 2]}, "max_tokens: expected one element, got 2"),
        ({"stream": []}, "stream: expected one element, got 0"),
        ({"stop_words": ["a", b"\xff"]}, "stop_words: not UTF-8 at byte 0"),
        ({"text_input": ["a\ud800".encode("utf-8", "surrogatepass")]}, "text_input: not UTF-8 at byte 1"),
        ({"stop_words": ["a"] * (MAX_STOP_WORDS + 1)}, "stop_words: 17 elements: there may be 16"),
        ({"bad_words": ["a"] * (MAX_BAD_WORDS + 1)}, "bad_words: 257 elements: there may be 256"),
        ({"bad_words": ["é" * 65]}, "bad_words: a text of 65 characters: at most 64 are allowed"),
        ({"top_logprobs": [1]}, "top_logprobs: needs return_log_probs to be true"),
        ({"truncate_prompt_tokens": [0]}, "truncate_prompt_tokens: 0 must be at least 1, or -1"),
        (
            {"truncate_prompt_tokens": [5], "suffix": ["b"]},
            "truncate_prompt_tokens: a prompt with a suffix is not truncated",
        ),
        (
            {"truncate_prompt_tokens": [5], "images": [b"a"]},
            "truncate_prompt_tokens: a prompt with images is not truncated",
        ),
        ({"stream_interval_ms": [1]}, "stream_interval_ms: needs stream to be true"),
        ({"logit_bias_values": [1]}, "logit_bias_values: 1 values for 0 of logit_bias_token_ids: there must be one"),
        ({"context_length_exceeded_behavior": ["cut"]}, "context_length_exceeded_behavior: 'cut' must be one of trunc"),
        ({"guided_decoding_guide": ["a"]}, "guided_decoding_guide: needs guided_decoding_guide_type"),
        (
            {"guided_decoding_guide_type": ["json"], "guided_decoding_strict": [False]},
            "guided_decoding_strict: goes with json_schema only",
        ),
        (
            {"guided_decoding_guide_type": ["json"], "guided_decoding_guide": ["{}"]},
            "guided_decoding_guide: json takes none: the type for a schema is json_schema",
        ),
        ({"guided_decoding_guide_type": ["xml"]}, f"guided_decoding_guide_type: 'xml' {FORMATS}"),
        ({"text_input": None}, ONE_PROMPT),
        ({"input_ids": [1]}, ONE_PROMPT),
        ({"text_input": [""], "messages": ["[]"], "input_ids": [1]}, ONE_PROMPT),
        ({"text_input": None, "input_ids": [1], "suffix": ["b"]}, "suffix: goes with text_input only"),
        *(
            ({spec.name: [True if spec.datatype == "BOOL" else "{}"]}, f"{spec.name}: goes with messages only")
            for spec in specs_of(ChatPrompt)
            if spec.name != "messages"
        ),
    ],
    ids=shortened,
)
def test_a_refusal_names_input_value_and_rule(tensors: dict[str, Any], message: str) -> None:
    assert refusal(**tensors).startswith(message)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"messages": ["{"]}, "messages: not JSON (Expecting property name enclosed in double quotes"),
        ({"messages": ["[" * 100_000]}, "messages: not JSON ("),
        ({"messages": ["{}"]}, "messages: expected a JSON list"),
        ({"messages": ["null"]}, "messages: expected a list of at least one message"),
        ({"messages": ['["hi"]']}, "messages[0]: expected an object with a string `role`"),
        ({"messages": ['[{"role": 5, "content": "a"}]']}, "messages[0]: expected an object with a string `role`"),
        ({"messages": ['[{"role": "end", "content": "a"}]']}, "messages[0].role: 'end' must be one of system, devel"),
        ({"messages": ['[{"role": "user"}]']}, NO_CONTENT),
        ({"messages": ['[{"role": "user", "content": [{"type": "image_url"}]}]']}, NO_CONTENT),
        ({"messages": ['[{"role": "user", "content": null}]']}, NO_CONTENT),
        ({"messages": ['[{"role": "user", "content": null, "tool_calls": []}]']}, NO_CONTENT),
        ({"messages": [f"{CHAT[:-1]}, 5]"]}, "messages[1]: expected an object with a string `role`"),
        ({"tools": ["{}"]}, NO_LIST),
        ({"tools": [json.dumps([TOOL] * (MAX_TOOLS + 1))]}, f"tools: {MAX_TOOLS + 1} tools: there may be {MAX_TOOLS}"),
        (tools({"name": "a", "description": "a" * MAX_TOOLS_CHARS}), "tools: together they may have 300000"),
        ({"tools": ["[5]"]}, "tools[0]: expected {"),
        ({"tools": [json.dumps([TOOL, {"type": "custom"}])]}, "tools[1]: expected {"),
        (tools({"name": ""}), "tools[0]: expected {"),
        (tools({"name": "a", "parameters": [1]}), "tools[0]: expected {"),
        (tools({"name": "a", "strict": 1}), "tools[0]: expected {"),
        ({"tool_choice": ["required"]}, "tool_choice: 'required' needs tools"),
        (
            {"tools": [TOOLS], "tool_choice": ["function:sub"]},
            "tool_choice: 'function:sub' must be none, auto, required or one of function:add",
        ),
        ({"chat_template_kwargs": ["[]"]}, "chat_template_kwargs: expected a JSON object"),
        ({"continue_final_message": [True]}, "continue_final_message: needs add_generation_prompt to be false"),
    ],
    ids=shortened,
)
def test_a_malformed_chat_is_refused_by_its_place(tensors: dict[str, Any], message: str) -> None:
    assert refusal(**{"text_input": None, "messages": [CHAT]} | tensors).startswith(message)


# --- NVIDIA's inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", NEUTRAL_INPUTS, ids=lambda spec: spec.name)
def test_neutral_values_change_nothing_and_others_are_refused(spec: TensorSpec) -> None:
    for value in spec.neutral or ():
        assert request_of(**{spec.name: [value]}) == request_of()
    other = {"BYTES": "x", "BOOL": not (spec.neutral or (True,))[0]}.get(spec.datatype, 5)
    message = refusal(error=Unsupported, **{spec.name: [other]})
    assert message.startswith(f"{spec.name}: ")
    assert " is not supported, only " in message
