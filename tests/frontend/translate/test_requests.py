"""OpenAI's requests to generation requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec.structs
import pytest
from msgspec.structs import replace

from frontend.errors import ContextLengthExceeded, UnsupportedValue
from frontend.protocol.tokenization import TokenizeRequest
from frontend.settings import Settings
from frontend.translate.requests import chat_to_requests, completion_to_requests, ignored_fields, tokenize_to_prompt
from frontend.triton.models import ModelName
from model_repository.contract.request import (
    ChatPrompt,
    ContextOverflow,
    GenerationRequest,
    Mirostat,
    OutputFormat,
    Params,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.model_parameters import ModelDefaults
from tests.fakes import DEMO, served_model
from tests.frontend.bodies import TIME, USER, WEATHER, chat, completion, read
from tests.frontend.protocol.test_tools import allowed

NAME = ModelName(requested=DEMO.id, model=DEMO)
DEFAULTS = Settings().request_defaults
SEED_LIMIT = 2**64


def of_completion(name: ModelName = NAME, defaults: ModelDefaults | None = None, **fields: Any) -> list[Any]:
    return completion_to_requests(completion(**fields), name, dataclasses.replace(DEFAULTS, **(defaults or {})))


def of_chat(name: ModelName = NAME, defaults: ModelDefaults | None = None, **fields: Any) -> list[Any]:
    return chat_to_requests(chat(**fields), name, dataclasses.replace(DEFAULTS, **(defaults or {})))


BOTH = pytest.mark.parametrize("translated", [of_chat, of_completion])


def one(requests: list[GenerationRequest]) -> GenerationRequest:
    (request,) = requests
    return request


def params_of(requests: list[GenerationRequest]) -> Params:
    return one(requests).params


@BOTH
def test_every_sampling_field_arrives(translated: Any) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 40,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
        "seed": 11,
        "logit_bias": {"3": -100, "0": 1.5},
        "mirostat": 2,
    }
    assert {field.name for field in msgspec.structs.fields(SamplingParams)} == set(fields)
    expected = fields | {"logit_bias": {3: -100, 0: 1.5}, "mirostat": Mirostat(target=5.0)}
    assert params_of(translated(**fields)).sampling == SamplingParams(**expected)


@BOTH
def test_every_other_shared_field_arrives(translated: Any) -> None:
    params = params_of(
        translated(
            max_tokens=7,
            min_tokens=3,
            stop=["a", "b"],
            bad_words=["c"],
            allowed_token_ids=[3, 1],
            stop_token_ids=[5],
            include_stop_str_in_output=True,
            ignore_eos=True,
            truncate_prompt_tokens=9,
            context_length_exceeded_behavior="error",
            structured_outputs={"regex": "a"},
            return_token_ids=True,
            stream=True,
            stream_options={"continuous_usage_stats": True},
            stream_interval_ms=0,
        )
    )
    assert replace(params, cancel_key="", sampling=SamplingParams()) == Params(
        max_tokens=7,
        min_tokens=3,
        stop=("a", "b"),
        bad_words=("c",),
        allowed_token_ids=(3, 1),
        stop_token_ids=(5,),
        include_stop=True,
        ignore_eos=True,
        truncate_prompt_tokens=9,
        overflow=ContextOverflow.ERROR,
        structured_output=StructuredOutput(OutputFormat.REGEX, "a"),
        has_token_ids=True,
        has_usage=True,
        has_timing=True,
        is_stream=True,
        stream_interval_ms=0,
    )


@BOTH
def test_a_field_that_is_left_out_is_neutral(translated: Any) -> None:
    request = one(translated())
    params = replace(request.params, cancel_key="", sampling=replace(request.params.sampling, seed=0))
    neutral = Params(max_tokens=params.max_tokens, has_timing=True)  # the times are for metrics
    assert replace(request, params=params) == GenerationRequest(prompt=request.prompt, params=neutral)


def test_zero_is_a_value_and_top_k_has_three_ways_to_be_off() -> None:
    sampling = params_of(of_completion(temperature=0, top_p=0, seed=0)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0, 0, 0)
    assert [params_of(of_completion(top_k=top_k)).sampling.top_k for top_k in (-1, 0, None)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "mirostat"),
    [
        ({}, None),
        ({"mirostat_target": None, "mirostat_lr": None}, None),
        ({"mirostat": 2}, Mirostat(target=5.0, learning_rate=0.1)),
        ({"mirostat_target": 1.5}, Mirostat(target=1.5, learning_rate=0.1)),
        ({"mirostat_lr": 0.5}, Mirostat(target=1.5, learning_rate=0.5)),
        ({"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}, Mirostat(target=3.0, learning_rate=0.2)),
    ],
)
def test_mirostat_is_on_when_any_of_its_fields_is_sent(fields: dict[str, Any], mirostat: Mirostat | None) -> None:
    assert params_of(of_completion(**fields)).sampling.mirostat == mirostat


@BOTH
def test_each_choice_has_the_next_seed_and_a_cancel_key_of_its_own(translated: Any) -> None:
    for seed in (7, 0, -1, -(2**63), 2**63 - 1):
        requests = translated(seed=seed, n=3)
        assert [each.params.sampling.seed for each in requests] == [(seed + i) % SEED_LIMIT for i in range(3)]
        keys = {each.params.cancel_key for each in (*requests, *translated(seed=seed))}
        assert (len(keys), {len(key) for key in keys}) == (4, {32})
    seeds = {params_of(translated()).sampling.seed for _ in range(4)}
    assert len(seeds) == 4, "requests without a seed draw differently"
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"prompt": "a"}, [TextPrompt("a")]),
        ({"prompt": "a", "suffix": "end"}, [TextPrompt("a", "end")]),
        ({"prompt": [1, 2]}, [TokenPrompt((1, 2))]),
        ({"prompt": ["a", "b"], "suffix": ""}, [TextPrompt("a"), TextPrompt("b")]),
        ({"prompt": [[1, 2], [3]]}, [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        ({"prompt": ["a", "b"], "n": 2, "best_of": 3}, [TextPrompt("a")] * 3 + [TextPrompt("b")] * 3),
    ],
)
def test_prompts_come_in_order_each_with_its_completions(fields: dict[str, Any], prompts: list[Any]) -> None:
    assert [request.prompt for request in of_completion(**fields)] == prompts


@pytest.mark.parametrize(
    ("translated", "fields", "num_logprobs"),
    [
        (of_completion, {}, None),
        (of_completion, {"logprobs": 0}, 0),
        (of_completion, {"n": 2, "best_of": 2}, None),
        (of_completion, {"best_of": 2}, 0),
        (of_chat, {"logprobs": True}, 0),
        (of_chat, {"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_for_the_answer_or_to_rank(
    translated: Any, fields: dict[str, Any], num_logprobs: int | None
) -> None:
    assert {request.params.num_logprobs for request in translated(**fields)} == {num_logprobs}


@BOTH
def test_only_the_first_choice_of_a_prompt_scores_it(translated: Any) -> None:
    counts = [request.params.num_prompt_logprobs for request in translated(n=3, prompt_logprobs=0)]
    assert counts == [0, None, None]


@pytest.mark.parametrize(
    ("translated", "prompt"),
    [
        (of_completion, {"prompt": "a" * (2048 * 256 + 1)}),
        (of_completion, {"prompt": [1] * 2049}),
        (of_chat, {"messages": "a" * (2048 * 256 + 1)}),
    ],
)
def test_a_prompt_that_will_be_truncated_is_not_too_long(translated: Any, prompt: dict[str, Any]) -> None:
    with pytest.raises(ContextLengthExceeded):
        translated(**prompt)
    assert params_of(translated(**prompt, truncate_prompt_tokens=5)).truncate_prompt_tokens == 5


@pytest.mark.parametrize(("truncate_prompt_tokens", "num_kept"), [(5, 5), (-1, 2032)])
def test_token_ids_are_truncated_before_they_are_sent(truncate_prompt_tokens: int, num_kept: int) -> None:
    """A body may have millions of them."""
    requests = of_completion(prompt=[*range(5000)], truncate_prompt_tokens=truncate_prompt_tokens)
    assert one(requests).prompt == TokenPrompt(tuple(range(5000 - num_kept, 5000)))
    with pytest.raises(ContextLengthExceeded):
        of_completion(prompt=[*range(5000)], truncate_prompt_tokens=4000)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 16),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 0, "echo": True}, 0),
    ],
)
def test_max_completion_tokens_wins_over_max_tokens_over_the_default(fields: dict[str, Any], max_tokens: int) -> None:
    params = params_of(of_completion(**fields))
    assert (params.max_tokens, params.is_echo) == (max_tokens, bool(fields.get("echo")))


@BOTH
def test_a_default_of_null_fills_the_window(translated: Any) -> None:
    # Filling it is no overflow, even where overflow is an error.
    fill: ModelDefaults = {"completion_max_tokens": None, "chat_max_tokens": None}
    params = params_of(translated(defaults=fill, context_length_exceeded_behavior="error"))
    assert (params.max_tokens, params.overflow) == (2048, ContextOverflow.TRUNCATE)
    params = params_of(translated(defaults=fill, max_tokens=5, context_length_exceeded_behavior="error"))
    assert (params.max_tokens, params.overflow) == (5, ContextOverflow.ERROR)


@BOTH
def test_the_models_defaults_are_for_absent_fields(translated: Any) -> None:
    defaults: ModelDefaults = {
        "context_length_exceeded_behavior": ContextOverflow.ERROR,
        "include_stop_str_in_output": True,
        "temperature": 0.6,
        "top_k": 20,
    }
    params = params_of(translated(defaults=defaults, temperature=None))
    assert (params.overflow, params.include_stop) == (ContextOverflow.ERROR, True)
    assert replace(params.sampling, seed=0) == SamplingParams(temperature=0.6, top_k=20)
    said = {"context_length_exceeded_behavior": "truncate", "include_stop_str_in_output": False}
    params = params_of(translated(defaults=defaults, **said, temperature=0, top_k=0))
    assert (params.overflow, params.include_stop) == (ContextOverflow.TRUNCATE, False)
    assert replace(params.sampling, seed=0) == SamplingParams(temperature=0)


def test_the_prompt_of_a_chat_is_the_same_for_tokenize() -> None:
    fields: dict[str, Any] = {
        "messages": [USER],
        "tools": [WEATHER],
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    request, _ = read(TokenizeRequest, {"model": "m"} | fields)
    assert tokenize_to_prompt(request, NAME) == one(of_chat(**fields)).prompt
    assert one(of_chat(**fields)).prompt == ChatPrompt(
        messages=(USER,),
        tool_use=ToolUse(tools=(WEATHER,)),
        template_kwargs={"a": 1},
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert tokenize_to_prompt(read(TokenizeRequest, {"model": "m", "prompt": "x"})[0], NAME) == TextPrompt("x")


TIME_TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": [WEATHER, TIME]}, ToolUse(tools=(WEATHER, TIME_TOOL))),
        ({"tools": [WEATHER], "tool_choice": "none"}, ToolUse(tools=(WEATHER,), choice="none")),
        ({"tools": [WEATHER], "tool_choice": "required"}, ToolUse(tools=(WEATHER,), choice="required")),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            ToolUse(tools=(TIME_TOOL,), choice="function:get_time"),
        ),
        (
            {"tools": [WEATHER, TIME], "tool_choice": allowed("required", "get_time")},
            ToolUse(tools=(TIME_TOOL,), choice="required"),
        ),
        ({"tools": [WEATHER], "parallel_tool_calls": False}, ToolUse(tools=(WEATHER,), is_parallel=False)),
        ({"functions": [TIME["function"]]}, ToolUse(tools=(TIME_TOOL,), is_parallel=False)),
        (
            {"functions": [TIME["function"]], "function_call": "none"},
            ToolUse(tools=(TIME_TOOL,), choice="none", is_parallel=False),
        ),
        (
            {"functions": [TIME["function"]], "function_call": {"name": "get_time"}},
            ToolUse(tools=(TIME_TOOL,), choice="function:get_time", is_parallel=False),
        ),
    ],
)
def test_tools_and_functions_have_one_form_for_the_model(fields: dict[str, Any], expected: ToolUse | None) -> None:
    prompt = one(of_chat(**fields)).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tool_use == expected


# --- fields that only some chat templates read ------------------------------------------------------------------------
THOUGHT = {"role": "assistant", "content": "4", "reasoning": "2 and 2"}


def reading(*fields: str) -> ModelName:
    """Return a model with a chat template that reads these fields."""
    model = served_model(template_fields=fields)
    return ModelName(requested=model.id, model=model)


@pytest.mark.parametrize("sent", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("read_fields", [("reasoning",), ("reasoning_content",), ("reasoning_content", "reasoning")])
def test_the_reasoning_of_an_earlier_turn_reaches_a_template_that_reads_it(
    sent: str, read_fields: tuple[str, ...]
) -> None:
    """Histories move between models that call it by other names."""
    body = chat(messages=[USER, {"role": "assistant", "content": "4", sent: "2 and 2"}])
    assert ignored_fields(body, reading(*read_fields)) == []
    (request,) = chat_to_requests(body, reading(*read_fields), DEFAULTS)
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages[1] == {"role": "assistant", "content": "4"} | dict.fromkeys(read_fields, "2 and 2")


def test_the_reasoning_of_an_earlier_turn_is_the_thinking_for_a_template_that_reads_it() -> None:
    body = chat(messages=[USER, THOUGHT])
    assert ignored_fields(body, reading("message.thinking")) == []
    (request,) = chat_to_requests(body, reading("message.thinking"), DEFAULTS)
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages[1] == {"role": "assistant", "content": "4", "thinking": "2 and 2"}


def test_the_reasoning_of_an_earlier_turn_is_left_out_and_listed_where_no_template_reads_it() -> None:
    body = chat(messages=[USER, THOUGHT, USER | {"content": "x"}, THOUGHT | {"reasoning": ""}])
    assert ignored_fields(body, NAME) == ["messages[1].reasoning"]
    (request,) = chat_to_requests(body, NAME, DEFAULTS)
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages[1] == {"role": "assistant", "content": "4"}


def test_variables_and_names_that_no_template_reads_are_listed() -> None:
    body = chat(messages=[USER, USER | {"name": "Ann"}], chat_template_kwargs={"a": 1, "b": 2})
    assert ignored_fields(body, reading("b")) == ["chat_template_kwargs.a", "messages[1].name"]
    assert ignored_fields(body, reading("a", "b", "name")) == []


def test_the_reasoning_effort_is_a_name_for_a_template_that_reads_it() -> None:
    model = reading("reasoning_effort")
    body = chat(reasoning_effort="high")
    assert (ignored_fields(body, model), ignored_fields(body, NAME)) == ([], ["reasoning_effort"])
    assert one(of_chat(model, reasoning_effort="high")).prompt == ChatPrompt(
        messages=(USER,), template_kwargs={"reasoning_effort": "high"}
    )
    kwargs = {"reasoning_effort": "low"}
    assert one(of_chat(model, reasoning_effort="high", chat_template_kwargs=kwargs)).prompt == ChatPrompt(
        messages=(USER,), template_kwargs=kwargs
    )
    assert one(of_chat(reasoning_effort="high")).prompt == ChatPrompt(messages=(USER,))


# --- thinking ---------------------------------------------------------------------------------------------------------


def thinking_name(*template_fields: str, reasoning_format: str = "think") -> ModelName:
    model = served_model(reasoning_format=reasoning_format, template_fields=template_fields)
    return ModelName(requested=model.id, model=model)


def variables(name: ModelName, **fields: Any) -> Any:
    prompt = one(of_chat(name, **fields)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.template_kwargs


@pytest.mark.parametrize(
    ("fields", "sent", "expected"),
    [
        (("enable_thinking",), {"enable_thinking": False}, {"enable_thinking": False}),
        (("thinking",), {"enable_thinking": True}, {"thinking": True}),
        (("enable_thinking",), {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (("enable_thinking",), {"reasoning_effort": "low"}, {"enable_thinking": True}),
        (("enable_thinking", "reasoning_effort"), {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (("enable_thinking",), {}, {}),
        ((), {"enable_thinking": True}, {}),
    ],
)
def test_switches_of_thinking_reach_the_template_by_its_own_names(
    fields: tuple[str, ...], sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert variables(thinking_name(*fields), **sent) == expected


def test_a_template_that_reads_the_adapter_gets_its_name() -> None:
    name = ModelName(requested="formal", model=thinking_name("lora_name").model, lora_name="formal")
    assert variables(name, chat_template_kwargs={"lora_name": "mine", "a": 1}) == {"lora_name": "formal", "a": 1}


@pytest.mark.parametrize("sent", [{"enable_thinking": False}, {"reasoning_effort": "none"}])
def test_a_model_that_always_thinks_refuses_to_be_switched_off(sent: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedValue) as caught:
        of_chat(thinking_name(), **sent)
    assert caught.value.param == next(iter(sent))


@pytest.mark.parametrize(
    ("fields", "sent", "budget"),
    [
        ((), {"thinking_budget_tokens": 7}, 7),
        ((), {"thinking_token_budget": 0}, 0),
        ((), {"reasoning_effort": "medium", "max_tokens": 100}, 50),
        ((), {"reasoning_effort": "medium", "max_tokens": 100, "thinking_budget_tokens": 7}, 7),
        (("reasoning_effort",), {"reasoning_effort": "medium", "max_tokens": 100}, None),
        ((), {"reasoning_effort": "max"}, None),
        ((), {}, None),
    ],
)
def test_the_budget_of_the_thinking(fields: tuple[str, ...], sent: dict[str, Any], budget: int | None) -> None:
    assert params_of(of_chat(thinking_name(*fields), **sent)).thinking_budget == budget


def test_the_switches_are_ignored_by_a_model_that_does_not_think() -> None:
    sent: dict[str, Any] = {
        "reasoning_effort": "high",
        "enable_thinking": False,
        "thinking_budget_tokens": 5,
        "thinking_token_budget": 5,
        "include_reasoning": False,
    }
    name = thinking_name(reasoning_format="")
    assert params_of(of_chat(name, **sent)).thinking_budget is None
    assert ignored_fields(chat(**sent), name) == list(sent)
    assert ignored_fields(chat(**sent), thinking_name("enable_thinking")) == []


def test_the_chats_of_a_model_that_thinks_fill_the_window_by_default() -> None:
    parameters = served_model(reasoning_format="think").parameters
    assert parameters.request_defaults(DEFAULTS).chat_max_tokens is None
    assert parameters.request_defaults(DEFAULTS).completion_max_tokens == DEFAULTS.completion_max_tokens
    limited = served_model(reasoning_format="think", defaults={"chat_max_tokens": 9}).parameters
    assert limited.request_defaults(DEFAULTS).chat_max_tokens == 9
