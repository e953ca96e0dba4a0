"""Generation requests to tensors and back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.generation import (
    ChatPrompt,
    ContextOverflow,
    GenerationRequest,
    Guide,
    GuideKind,
    Mirostat,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.prompt_reading import MAX_TOOLS, ROLES
from model_repository.request_reading import DEFAULT_MAX_TOKENS, tensors_to_request
from model_repository.request_tensors import request_to_tensors
from model_repository.tensors import array

SPECS = {spec.name: spec for spec in contract.PUBLIC_INPUTS}
RANGED = [spec for spec in contract.HONOURED_INPUTS if spec.low is not None or spec.high is not None]
MESSAGES = ({"role": "user", "content": "hi"},)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def request_of(**tensors: Any) -> GenerationRequest:
    """Return the request of a client that sends a prompt and these tensors, given as lists of elements."""
    sent: dict[str, Any] = {"text_input": ["hello"], "seed": [1]} | tensors
    return tensors_to_request({name: array(SPECS[name], *items) for name, items in sent.items() if items is not None})


def chat_request_of(messages: Any = MESSAGES, **tensors: Any) -> GenerationRequest:
    payload = messages if isinstance(messages, str) else json.dumps(messages)
    return request_of(text_input=None, messages=[payload], **tensors)


def with_tools(*tools: Any, **tensors: Any) -> GenerationRequest:
    return chat_request_of(tools=[json.dumps(tools)], **tensors)


def refusal(*, error: type[InvalidRequest] = InvalidRequest, **tensors: Any) -> str:
    with pytest.raises(error) as caught:
        request_of(**tensors)
    assert type(caught.value) is error
    return caught.value.message().removeprefix(f"[{error.code}] ")


def chat_refusal(messages: Any = MESSAGES, **tensors: Any) -> str:
    payload = messages if isinstance(messages, str) else json.dumps(messages)
    return refusal(text_input=None, messages=[payload], **tensors)


# --- the round trip -------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=5)
WORD = st.text(min_size=1, max_size=5)
TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
JSON_OBJECT = st.dictionaries(TEXT, st.one_of(st.none(), st.booleans(), TEXT, st.lists(TEXT, max_size=2)), max_size=2)

WITH_CONTENT = st.sampled_from([kind for kind in GuideKind if kind not in (GuideKind.JSON_OBJECT, GuideKind.LARK)])


def floats(low: float, high: float, **options: Any) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32, allow_nan=False, **options)  # what the tensor holds exactly


SAMPLING = st.builds(
    SamplingParams,
    temperature=floats(0, 2),
    top_p=floats(0, 1),
    top_k=st.integers(0, 2**31 - 1),
    min_p=floats(0, 1),
    repetition_penalty=floats(0, 2, exclude_min=True),
    presence_penalty=floats(-2, 2),
    frequency_penalty=floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), floats(-100, 100), max_size=3),
    mirostat=st.none() | st.builds(Mirostat, target=floats(0, 20), learning_rate=floats(0, 1, exclude_min=True)),
    seed=st.integers(0, 2**64 - 1),
)


@st.composite
def tool_uses(draw: st.DrawFn) -> ToolUse:
    names = draw(st.lists(WORD, min_size=1, max_size=3, unique=True))
    function = st.fixed_dictionaries({}, optional={"description": TEXT, "parameters": JSON_OBJECT | st.none()})
    tools = tuple({"type": "function", "function": {"name": name, **draw(function)}} for name in names)
    choice = draw(st.sampled_from(["none", "auto", "required", *(f"function:{name}" for name in names)]))
    return ToolUse(tools=tools, choice=choice, is_parallel=draw(st.booleans()))


ROLE = st.sampled_from(ROLES)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": ROLE, "content": TEXT}, optional={"name": TEXT}),
    st.fixed_dictionaries({"role": ROLE, "content": st.none(), "tool_calls": st.lists(JSON_OBJECT, min_size=1)}),
)
PROMPT = st.one_of(
    st.builds(TextPrompt, TEXT, TEXT),
    st.builds(TokenPrompt, TOKEN_IDS),
    st.builds(
        ChatPrompt,
        st.lists(MESSAGE, min_size=1, max_size=3).map(tuple),
        tool_use=st.none() | tool_uses(),
        template_kwargs=JSON_OBJECT,
        add_generation_prompt=st.just(False),
        continue_final_message=st.booleans(),
    ),
    st.builds(ChatPrompt, st.just(MESSAGES)),
)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    is_echo, is_stream = draw(st.booleans()), draw(st.booleans())
    max_tokens = draw(st.integers(0 if is_echo else 1, 2**31 - 1))
    return GenerationRequest(
        prompt=draw(PROMPT),
        max_tokens=max_tokens,
        sampling=draw(SAMPLING),
        overflow=draw(st.sampled_from(ContextOverflow)),
        stop=tuple(draw(st.lists(WORD, max_size=3))),
        stop_token_ids=draw(TOKEN_IDS),
        include_stop=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.integers(0, max_tokens)),
        is_echo=is_echo,
        num_logprobs=draw(st.none() | st.integers(0, 20)),
        has_token_ids=draw(st.booleans()),
        has_usage=draw(st.booleans()),
        guide=draw(st.sampled_from([None, Guide(GuideKind.JSON_OBJECT)]) | st.builds(Guide, WITH_CONTENT, TEXT)),
        lora_name=draw(TEXT),
        images=tuple(draw(st.lists(st.binary(max_size=3), max_size=2))),
        is_stream=is_stream,
        priority=draw(st.integers(-1, 1)),
        cancel_key=draw(TEXT),
        delivery_key=draw(TEXT),
        delivery_number=draw(st.integers(-(2**63), 2**63 - 1)),
        stream_interval_ms=draw(st.none() | st.integers(0, 1000)) if is_stream else None,
    )


@given(requests())
def test_a_request_survives_its_tensors(request: GenerationRequest) -> None:
    assert tensors_to_request(request_to_tensors(request)) == request


TOOL_USE = ToolUse(tools=(TOOL,), choice="function:add", is_parallel=False)
CHAT = ChatPrompt(
    ({"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}),
    tool_use=TOOL_USE,
    template_kwargs={"enable_thinking": False},
    add_generation_prompt=False,
    continue_final_message=True,
)
MIROSTAT = Mirostat(target=3.0, learning_rate=0.25)
FULL = GenerationRequest(
    prompt=CHAT,
    max_tokens=17,
    sampling=SamplingParams(
        temperature=0.75,
        top_p=0.5,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.25,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        logit_bias={3: -100.0, 5: 2.5},
        mirostat=MIROSTAT,
        seed=2**64 - 1,
    ),
    overflow=ContextOverflow.ERROR,
    stop=("€", "\n\n"),
    stop_token_ids=(0, 7),
    include_stop=True,
    ignore_eos=True,
    bad_words=("damn", "é"),
    min_tokens=2,
    is_echo=True,
    num_logprobs=3,
    has_token_ids=True,
    has_usage=True,
    has_timing=True,
    guide=Guide(GuideKind.JSON_SCHEMA, '{"type": "null"}', is_strict=False),
    sender="key-1",
    lora_name="adapter",
    images=(b"\xff\xd8",),
    is_stream=True,
    priority=-1,
    cancel_key="secret",
    delivery_key="another secret",
    delivery_number=-(2**63),
    stream_interval_ms=0,
)
PLAIN = GenerationRequest(prompt=TextPrompt("hello"), max_tokens=1, sampling=SamplingParams())


def test_the_example_sets_every_field() -> None:
    """So that the round trips below would notice a field that gets lost."""
    pairs: list[tuple[Any, Any]] = [
        (FULL, PLAIN),
        (FULL.sampling, PLAIN.sampling),
        (MIROSTAT, Mirostat()),
        (CHAT, ChatPrompt(())),
        (TOOL_USE, ToolUse(tools=())),
    ]
    for full, plain in pairs:
        for field in dataclasses.fields(full):
            if field.name == "request_id":  # it travels as Triton's own
                continue
            assert getattr(full, field.name) != getattr(plain, field.name), field.name


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(GenerationRequest) if field.name != "request_id"]
)
def test_every_field_of_a_request_survives_its_tensors(field: str) -> None:
    companions: dict[str, dict[str, Any]] = {
        "min_tokens": {"max_tokens": 17},
        "stream_interval_ms": {"is_stream": True},
        "sender": {"guide": FULL.guide},
    }
    request = dataclasses.replace(PLAIN, **companions.get(field, {}) | {field: getattr(FULL, field)})
    assert tensors_to_request(request_to_tensors(request)) == request


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SamplingParams)])
def test_every_sampling_parameter_survives_its_tensors(field: str) -> None:
    sampling = dataclasses.replace(PLAIN.sampling, **{field: getattr(FULL.sampling, field)})
    request = dataclasses.replace(PLAIN, sampling=sampling)
    assert tensors_to_request(request_to_tensors(request)) == request


def test_a_request_carries_only_what_it_sets() -> None:
    assert set(request_to_tensors(PLAIN)) == {"text_input", "max_tokens", "temperature", "seed"}


def test_a_full_request_uses_every_honoured_input_of_its_prompt() -> None:
    others = {"text_input", "input_ids", "suffix", "return_num_input_tokens", "return_num_output_tokens", "pad_id"}
    assert set(request_to_tensors(FULL)) == {spec.name for spec in contract.HONOURED_INPUTS} - others


def test_tensors_have_the_datatype_of_the_contract_and_a_batch_of_one() -> None:
    for name, tensor in request_to_tensors(FULL).items():
        assert tensor.dtype == SPECS[name].dtype
        assert (tensor.ndim, tensor.shape[0]) == (2, 1)


# --- what a client leaves out ---------------------------------------------------------------------------------------


def test_without_sampling_inputs_a_request_is_greedy_and_short() -> None:
    request = request_of()
    assert request == dataclasses.replace(
        PLAIN, max_tokens=DEFAULT_MAX_TOKENS, sampling=SamplingParams(temperature=0.0, seed=1)
    )


@pytest.mark.parametrize(
    "sent", [{"top_p": [0.5]}, {"top_k": [40]}, {"min_p": [0.5]}, {"mirostat_target": [3]}, {"mirostat_lr": [0.5]}]
)
def test_a_request_that_shapes_the_distribution_draws_from_it(sent: dict[str, Any]) -> None:
    """With mirostat_lr alone it was greedy."""
    assert request_of(**sent).sampling.temperature == 1.0


def test_without_a_seed_every_request_draws_another() -> None:
    assert request_of(seed=None).sampling.seed != request_of(seed=None).sampling.seed


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"mirostat_target": [3.0]}, Mirostat(target=3.0)),
        ({"mirostat_lr": [0.5]}, Mirostat(learning_rate=0.5)),
        ({"mirostat_lr": [0.5], "mirostat_target": [0.0]}, Mirostat(target=0.0, learning_rate=0.5)),
    ],
)
def test_either_input_of_mirostat_turns_it_on(sent: dict[str, Any], expected: Mirostat) -> None:
    assert request_of(**sent).sampling.mirostat == expected


def test_empty_stop_words_are_none() -> None:
    assert request_of(stop_words=["", "end", ""]).stop == ("end",)


def test_top_k_minus_one_is_off() -> None:
    assert request_of(top_k=[-1]).sampling.top_k == 0


def test_an_empty_text_beside_another_prompt_is_no_second_prompt() -> None:
    assert request_of(text_input=[""], input_ids=[1, 2]).prompt == TokenPrompt((1, 2))
    assert request_of(text_input=[""], messages=[json.dumps(MESSAGES)]).prompt == ChatPrompt(MESSAGES)


def test_an_empty_text_alone_is_a_prompt() -> None:
    assert request_of(text_input=[""], suffix=["b"]).prompt == TextPrompt("", "b")


@pytest.mark.parametrize(
    "sent",
    [
        {"return_num_input_tokens": [True], "return_num_output_tokens": [False], "pad_id": [2]},
        {"top_logprobs": [0], "return_log_probs": [False]},
        {"context_length_exceeded_behavior": [""]},
        {"guided_decoding_guide_type": [""], "guided_decoding_guide": [""]},
        {"lora_name": [""], "cancel_key": [""], "delivery_key": [""]},
    ],
)
def test_what_says_nothing_new_is_accepted(sent: dict[str, Any]) -> None:
    assert request_of(**sent) == request_of()


def test_a_chat_without_tools_offers_none() -> None:
    request = chat_request_of(tools=["[]"], tool_choice=["auto"], parallel_tool_calls=[False])
    assert request.prompt == ChatPrompt(MESSAGES)


def test_tools_may_be_called_unless_the_choice_says_otherwise() -> None:
    prompt = with_tools(TOOL).prompt
    assert prompt == ChatPrompt(MESSAGES, tool_use=ToolUse(tools=(TOOL,), choice="auto", is_parallel=True))


def test_scoring_an_echoed_prompt_needs_no_completion() -> None:
    assert request_of(max_tokens=[0], exclude_input_in_output=[False]).max_tokens == 0


# --- ranges ---------------------------------------------------------------------------------------------------------

COMPANIONS: dict[str, dict[str, Any]] = {  # without which a value in its range would be refused
    "max_tokens": {"exclude_input_in_output": [False]},
    "min_tokens": {"max_tokens": [2**31 - 1]},
    "top_logprobs": {"return_log_probs": [True]},
    "stream_interval_ms": {"stream": [True]},
    "logit_bias_token_ids": {"logit_bias_values": [1.0]},
    "logit_bias_values": {"logit_bias_token_ids": [1]},
}


def step(spec: TensorSpec) -> float:
    return 1 if spec.datatype == "INT32" else 0.5


@pytest.mark.parametrize("spec", RANGED, ids=lambda spec: spec.name)
def test_the_ends_of_a_range_are_in_it(spec: TensorSpec) -> None:
    for end in (spec.low, spec.high):
        if end is not None and not (spec.is_low_open and end == spec.low):
            request_of(**COMPANIONS.get(spec.name, {}), **{spec.name: [end]})


@pytest.mark.parametrize("spec", RANGED, ids=lambda spec: spec.name)
def test_what_is_outside_a_range_is_refused(spec: TensorSpec) -> None:
    outside = [] if spec.high is None else [spec.high + step(spec)]
    if spec.low is not None:
        outside.append(spec.low if spec.is_low_open else spec.low - step(spec))
    if spec.datatype == "FP32":
        outside += [np.nan, np.inf, -np.inf]
    for value in outside:
        shown = int(value) if spec.datatype == "INT32" else float(value)
        message = refusal(**COMPANIONS.get(spec.name, {}) | {spec.name: [value]})
        assert message.startswith(f"{spec.name}: {shown} must be ")


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": [0]}, "max_tokens: 0 must be at least 1, unless exclude_input_in_output is false"),
        ({"min_tokens": [9], "max_tokens": [8]}, "min_tokens: 9 must be at most max_tokens, 8"),
        ({"min_tokens": [17]}, "min_tokens: 17 must be at most max_tokens, 16"),
        ({"max_tokens": [1, 2]}, "max_tokens: expected one element, got 2"),
        ({"stream": []}, "stream: expected one element, got 0"),
        ({"text_input": ["a", "b"]}, "text_input: expected one element, got 2"),
        ({"stop_words": ["a", b"\xff"]}, "stop_words: not UTF-8 at byte 0"),
        ({"text_input": None}, "text_input: expected exactly one of text_input, messages, input_ids"),
        ({"input_ids": [1]}, "text_input: expected exactly one of text_input, messages, input_ids"),
        (
            {"text_input": [""], "messages": ["[]"], "input_ids": [1]},
            "text_input: expected exactly one of text_input, messages, input_ids",
        ),
        ({"text_input": None, "input_ids": [1], "suffix": ["b"]}, "suffix: goes with text_input only"),
        ({"tools": ["[]"]}, "tools: goes with messages only"),
        ({"tool_choice": ["auto"]}, "tool_choice: goes with messages only"),
        ({"parallel_tool_calls": [True]}, "parallel_tool_calls: goes with messages only"),
        ({"chat_template_kwargs": ["{}"]}, "chat_template_kwargs: goes with messages only"),
        ({"add_generation_prompt": [True]}, "add_generation_prompt: goes with messages only"),
        ({"continue_final_message": [False]}, "continue_final_message: goes with messages only"),
        (
            {"logit_bias_token_ids": [1, 2], "logit_bias_values": [1]},
            "logit_bias_values: 1 values for 2 token ids: there must be one for each",
        ),
        ({"logit_bias_values": [1]}, "logit_bias_values: 1 values for 0 token ids: there must be one for each"),
        ({"top_logprobs": [1]}, "top_logprobs: needs return_log_probs to be true"),
        ({"guided_decoding_guide": ["a"]}, "guided_decoding_guide: needs guided_decoding_guide_type"),
        (
            {"guided_decoding_guide_type": ["json"], "guided_decoding_strict": [False]},
            "guided_decoding_strict: goes with json_schema only",
        ),
        (
            {"guided_decoding_guide_type": ["json"], "guided_decoding_guide": ["{}"]},
            "guided_decoding_guide: json takes none: the type for a schema is json_schema",
        ),
        (
            {"guided_decoding_guide_type": ["xml"]},
            "guided_decoding_guide_type: 'xml' must be one of json, json_schema, regex, choice, ebnf_grammar",
        ),
        (
            {"guided_decoding_guide_type": ["lark_grammar"], "guided_decoding_guide": ['start: "a"']},
            "guided_decoding_guide_type: 'lark_grammar' must be one of json, json_schema, regex, choice, ebnf_grammar",
        ),
        (
            {"context_length_exceeded_behavior": ["cut"]},
            "context_length_exceeded_behavior: 'cut' must be one of truncate, error",
        ),
    ],
)
def test_an_error_names_field_value_and_rule(tensors: dict[str, Any], message: str) -> None:
    assert refusal(**tensors) == message


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("{", "messages: not JSON (Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "messages: not JSON ("),
        ("{}", "messages: expected a list of at least one message"),
        ("[]", "messages: expected a list of at least one message"),
        ('["hi"]', "messages[0]: expected an object with a string `role`"),
        (
            '[{"role": "user", "content": "a"}, {"content": "b"}]',
            "messages[1]: expected an object with a string `role`",
        ),
        ('[{"role": 5, "content": "a"}]', "messages[0]: expected an object with a string `role`"),
        ('[{"role": "user"}]', "messages[0]: expected `content` to be a string"),
        ('[{"role": "user", "content": null}]', "messages[0]: expected `content` to be a string"),
        ('[{"role": "user", "content": ["a"]}]', "messages[0]: expected `content` to be a string"),
        (
            '[{"role": "user", "content": "a"}, {"role": "end", "content": "a"}]',
            "messages[1].role: 'end' must be one of ",
        ),
        ('[{"role": "", "content": "a"}]', "messages[0].role: '' must be one of system, developer, user"),
        ('[{"role": "user", "content": null, "tool_calls": []}]', "messages[0]: expected `content` to be a string"),
    ],
)
def test_bad_messages_are_refused_with_their_place(payload: str, message: str) -> None:
    assert chat_refusal(payload).startswith(message)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"tools": ["{"]}, "tools: not JSON (Expecting property name enclosed in double quotes"),
        ({"tools": ["{}"]}, f"tools: expected a list of at most {MAX_TOOLS} tools"),
        ({"tools": [json.dumps([TOOL] * (MAX_TOOLS + 1))]}, f"tools: expected a list of at most {MAX_TOOLS} tools"),
        ({"tools": ["[5]"]}, "tools[0]: expected {"),
        ({"tools": [json.dumps([TOOL, {"type": "custom"}])]}, "tools[1]: expected {"),
        ({"tools": ['[{"type": "function", "function": {"name": ""}}]']}, "tools[0]: expected {"),
        ({"tools": ['[{"type": "function", "function": {"name": 5}}]']}, "tools[0]: expected {"),
        ({"tools": ['[{"type": "function", "function": {"name": "a", "parameters": [1]}}]']}, "tools[0]: expected {"),
        ({"tool_choice": ["required"]}, "tool_choice: 'required' needs tools"),
        ({"tool_choice": ["function:add"]}, "tool_choice: 'function:add' needs tools"),
        (
            {"tools": [json.dumps([TOOL])], "tool_choice": ["function:sub"]},
            "tool_choice: 'function:sub' must be none, auto, required or one of function:add",
        ),
        (
            {"tools": [json.dumps([TOOL])], "tool_choice": ["any"]},
            "tool_choice: 'any' must be none, auto, required or one of function:add",
        ),
        ({"chat_template_kwargs": ["["]}, "chat_template_kwargs: not JSON ("),
        ({"chat_template_kwargs": ["[]"]}, "chat_template_kwargs: expected a JSON object"),
        ({"continue_final_message": [True]}, "continue_final_message: needs add_generation_prompt to be false"),
    ],
)
def test_what_a_chat_may_not_say_is_refused(tensors: dict[str, Any], message: str) -> None:
    assert chat_refusal(**tensors).startswith(message)


@pytest.mark.parametrize("role", ROLES)
def test_roles_that_templates_know_are_taken(role: str) -> None:
    message = {"role": role, "content": "a"}
    asked = request_of(**{"text_input": [""], "messages": [json.dumps([message])]})
    assert asked.prompt == ChatPrompt((message,))


# --- NVIDIA's inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", contract.NEUTRAL_INPUTS, ids=lambda spec: spec.name)
def test_neutral_values_change_nothing(spec: TensorSpec) -> None:
    for value in spec.neutral or ():
        assert request_of(**{spec.name: [value]}) == request_of()


@pytest.mark.parametrize("spec", contract.NEUTRAL_INPUTS, ids=lambda spec: spec.name)
def test_values_that_cannot_be_honoured_are_refused(spec: TensorSpec) -> None:
    other = {"BYTES": "x", "BOOL": not (spec.neutral or (True,))[0]}.get(spec.datatype, 5)
    message = refusal(error=Unsupported, **{spec.name: [other]})
    assert message.startswith(f"{spec.name}: ")
    assert " is not supported, only " in message


def test_one_value_that_cannot_be_honoured_among_neutral_ones_is_refused() -> None:
    assert refusal(error=Unsupported, embedding_bias_words=["", "damn"]) == (
        "embedding_bias_words: 'damn' is not supported, only '' is"
    )


def test_bad_words_are_few_and_short() -> None:
    longest = ["é" * 256] * 256
    assert request_of(bad_words=[*longest, ""]).bad_words == tuple(longest)
    assert refusal(stop_words=["a"] * 17) == "stop_words: 17 texts: there may be 16"
    assert refusal(bad_words=["a"] * 257) == "bad_words: 257 texts: there may be 256"
    assert refusal(bad_words=["a" * 257]) == "bad_words: a text of 257 characters: it may have 256"
