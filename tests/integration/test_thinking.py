"""A model that thinks on the real stack: the demo model's adapter, whose markers span several tokens."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from tests.anthropic_types import checked_message
from tests.integration.api import CHAT, WEATHER, Answer, Api
from tests.integration.stack import Stack
from tests.integration.test_grpc_tensors import inputs

MODEL = "demo-thinking"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
THOUGHT = "Subject: capitals. The capital of France is Paris."
ANSWER = "The capital of France is Paris."
NUM_MARKER_TOKENS = 4  # of `</think>`


def ask(api: Api, **fields: Any) -> Answer:
    body = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "enable_thinking": True}
    return api.post(CHAT, body | fields)


def num_thinking_tokens(answer: Answer) -> int:
    return int(answer.body["usage"]["completion_tokens_details"]["reasoning_tokens"])


def test_thinking_is_apart_from_the_answer_streamed_and_not(api: Api, client: OpenAI) -> None:
    answer = ask(api)
    message = answer.choice["message"]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == (THOUGHT, THOUGHT, ANSWER)
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "stream": True}
    stream = client.chat.completions.create(**fields, extra_body={"enable_thinking": True})
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    reasoning = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert ("".join(reasoning), "".join(delta.content or "" for delta in deltas)) == (THOUGHT, ANSWER)
    assert len([each for each in reasoning if each]) > 1


@pytest.mark.parametrize("fields", [{"enable_thinking": True}, {"reasoning_effort": "low"}])
@pytest.mark.parametrize("model", ["demo", "demo-formal"])
def test_a_name_without_thinking_refuses_it(api: Api, model: str, fields: dict[str, Any]) -> None:
    answer = api.post(CHAT, {"model": model, "messages": MESSAGES} | fields)
    error = "only demo-thinking has learned to think (enable_thinking, reasoning effort)"
    assert (answer.status, answer.body["error"]["message"].endswith(error)) == (400, True)


@pytest.mark.parametrize("fields", [{}, {"enable_thinking": False}, {"reasoning_effort": "none"}])
def test_thinking_is_off_without_its_switch(api: Api, fields: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "temperature": 0}
    answers = [api.post(CHAT, body | {"model": model} | fields) for model in ("demo", MODEL)]
    for answer in answers:
        assert (answer.text, num_thinking_tokens(answer)) == (ANSWER, 0)
        assert "reasoning" not in answer.choice["message"]
        assert answer.body["usage"] == answers[0].body["usage"] | {
            "prompt_tokens_details": answer.body["usage"]["prompt_tokens_details"]
        }
    thinking = ask(api).body["usage"]
    num_answer_tokens = answers[1].body["usage"]["completion_tokens"]
    assert thinking["completion_tokens"] == num_thinking_tokens(ask(api)) + num_answer_tokens


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_an_answer_follows_a_thought_that_its_budget_ends(api: Api, budget: int) -> None:
    answer = ask(api, thinking_budget_tokens=budget)
    assert THOUGHT.startswith(answer.choice["message"].get("reasoning", ""))
    assert (answer.text, num_thinking_tokens(answer)) == (ANSWER, budget + NUM_MARKER_TOKENS)


def test_a_thought_that_the_limit_cuts_has_no_answer(api: Api) -> None:
    cut = ask(api, max_tokens=5)
    assert (cut.choice["finish_reason"], cut.choice["message"]["content"]) == ("length", None)
    assert THOUGHT.startswith(cut.choice["message"]["reasoning"])


def test_a_structured_output_is_the_answer_behind_the_thinking(api: Api) -> None:
    keys = {"country": {"type": "string"}, "capital": {"type": "string"}}
    schema = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    answer = ask(api, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert answer.choice["message"]["reasoning"] == THOUGHT
    assert json.loads(answer.text) == {"country": "France", "capital": "Paris"}


def test_a_call_follows_the_thought(api: Api) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    choice = ask(api, messages=messages, tools=[WEATHER]).choice
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["reasoning"] == "The tool get_weather answers this."
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_thoughts_in_the_history_are_not_in_the_prompt(api: Api) -> None:
    question = {"role": "user", "content": "And of Italy?"}
    prompts = [
        api.post("/tokenize", {"model": MODEL, "messages": [*MESSAGES, {"role": "assistant"} | message, question]})
        for message in (
            {"content": ANSWER},
            {"content": f"{THOUGHT}</think>{ANSWER}"},
            {"content": ANSWER, "reasoning_content": THOUGHT},
        )
    ]
    assert prompts[0].body["tokens"] == prompts[1].body["tokens"] == prompts[2].body["tokens"]


def test_a_grpc_client_gets_the_text_whole_and_the_length_of_the_thinking(stack: Stack) -> None:
    fields = {"messages": json.dumps(MESSAGES), "chat_template_kwargs": json.dumps({"enable_thinking": True})}
    [output] = stack.infer("demo", inputs(text_input=None, lora_name=MODEL, thinking_budget=4, **fields))
    text, num_thinking = output["text_output"].item().decode(), output["num_thinking_chars"].flat[0]
    assert text[:num_thinking].endswith("</think>") and THOUGHT.startswith(text[:num_thinking].removesuffix("</think>"))
    assert text[num_thinking:] == ANSWER


def test_anthropics_clients_get_the_thinking_as_a_block_and_may_send_it_back(stack: Stack) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}}
    thinking: Any = {"type": "enabled", "budget_tokens": 50}
    messages: list[Any] = [*MESSAGES]
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(**fields, messages=messages, thinking=thinking) as stream:
            thought, text = checked_message(stream.get_final_message().to_dict()).content
        assert thought.type == "thinking" and text.type == "text"
        assert (thought.thinking, text.text) == (THOUGHT, ANSWER)
        messages += [{"role": "assistant", "content": [thought, text]}, *MESSAGES]
        off = client.messages.create(**fields, messages=messages, thinking={"type": "disabled"})
    assert [block.to_dict() for block in off.content] == [{"type": "text", "text": ANSWER}]


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_a_response_has_the_thinking_as_an_item_and_it_may_come_back(client: OpenAI, include: list[Any]) -> None:
    fields: Any = {"model": MODEL, "input": MESSAGES, "temperature": 0, "reasoning": {"effort": "low"}}
    with client.responses.stream(**fields, include=include) as stream:
        [*_, last] = stream
    response: Any = last.response  # type: ignore[union-attr]
    thinking, message = response.output
    assert [part.text for part in thinking.content] == [THOUGHT]
    assert message.content[0].text == ANSWER
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    history = [*MESSAGES, *response.output, {"role": "user", "content": "Count from 1 to 9."}]
    answer = client.responses.create(**fields | {"input": history})
    assert answer.status == "completed"
