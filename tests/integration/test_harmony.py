"""Harmony's messages on the real stack: the demo model with tokens and a template for them, which it never learned.

The grammar writes the heads, and the budget ends the thinking.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests import harmony
from tests.integration.api import CHAT, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import Stack, renamed_checkpoint
from tests.integration.test_grpc_tensors import inputs
from tests.model_repository.tokenizer.models import SPECIAL_IDS

MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CHANNEL = SPECIAL_IDS[f"<|reserved_{harmony.SPECIAL_TOKENS.index('<|channel|>')}|>"]
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("harmony")
    checkpoint = renamed_checkpoint(folder, harmony.SPECIAL_TOKENS, harmony.TEMPLATE)
    artifact = build(folder, "channels", "--checkpoint", str(checkpoint))
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


def fields(**others: Any) -> dict[str, Any]:
    return {"model": "channels", "messages": MESSAGES, "temperature": 0, "max_tokens": 200, **others}


def test_a_structured_output_follows_the_heads_behind_a_forced_end_of_the_thinking(stack: Stack) -> None:
    whole = Api(stack.url).post(CHAT, fields(response_format=FORM, thinking_budget_tokens=5, logprobs=True))
    message, usage = whole.choice["message"], whole.body["usage"]
    assert message["reasoning"] and message["reasoning"] == message["reasoning_content"]
    assert list(json.loads(message["content"])) == ["a"]
    assert 5 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    text = "".join(entry["token"] for entry in whole.choice["logprobs"]["content"])
    head = "<|start|>assistant<|channel|>final<|message|>"
    assert text == f"<|channel|>analysis<|message|>{message['reasoning']}<|end|>{head}{message['content']}"


def test_a_call_streams_behind_the_thinking_and_is_taken_back(stack: Stack) -> None:
    budget = {"extra_body": {"thinking_budget_tokens": 5, "reasoning_effort": "low"}}
    # The bias keeps the model from the other form of a call, which begins without a channel.
    forced = fields(tools=[TOOL], tool_choice="required", logit_bias={str(CHANNEL): 100}) | budget
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none") as client:
        choice = client.chat.completions.create(**forced).choices[0]
        [call] = choice.message.tool_calls or []
        assert (choice.finish_reason, choice.message.content, call.function.name) == ("tool_calls", None, "get_weather")
        assert set(json.loads(call.function.arguments)) == {"city"}
        reasoning = choice.message.model_dump()["reasoning_content"]
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**forced, stream=True)]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == reasoning != ""
        assert "".join(delta.content or "" for delta in deltas) == ""
        pieces = [piece.function.arguments for delta in deltas for piece in delta.tool_calls or []]
        assert "".join(pieces) == call.function.arguments and len(pieces) > 1
        messages = [*MESSAGES, {**choice.message.model_dump(exclude_none=True), "content": "I ask."}]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}]
        again = client.chat.completions.create(**fields(messages=messages, max_tokens=20) | budget)
        assert again.choices[0].finish_reason


def test_a_grpc_client_gets_the_text_whole_and_the_length_of_the_thinking(stack: Stack) -> None:
    schema = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)}
    asked = {"messages": json.dumps(MESSAGES), "text_input": None, "max_tokens": 200, "thinking_budget": 5, **schema}
    [output] = stack.infer("channels", inputs(**asked))
    text, num_thinking = output["text_output"].item().decode(), output["num_thinking_chars"].flat[0]
    assert text[:num_thinking].endswith("<|end|><|start|>assistant<|channel|>final<|message|>")
    assert list(json.loads(text[num_thinking:])) == ["a"]
