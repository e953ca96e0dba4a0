"""A model that thinks on the real stack: the demo model with a template and tokens for it, which it never learned.

Its budget ends the thinking, so that an answer follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.integration.api import CHAT, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import DEMO_CHECKPOINT, Stack, renamed_checkpoint
from tests.integration.test_grpc_tensors import inputs

OPENING = "{{- '<|im_start|>assistant\\n' }}\n"
THINKING = OPENING + "{{- '<think>\\n' if enable_thinking is not defined or enable_thinking else '<think></think>' }}\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("thinking")
    template = json.loads((DEMO_CHECKPOINT / "tokenizer_config.json").read_text())["chat_template"]
    assert OPENING in template
    checkpoint = renamed_checkpoint(folder, ("<think>", "</think>"), template.replace(OPENING, THINKING))
    artifact = build(folder, "thinker", "--checkpoint", str(checkpoint))
    run_build("render", artifact, "--repository", str(folder / "repository"))
    with running_stack(folder / "repository", tmp_path_factory) as stack:
        yield stack


def ask(api: Api, **fields: Any) -> Any:
    body = {"model": "thinker", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    return api.post(CHAT, body | {"temperature": 0, "max_tokens": 60} | fields)


def test_thinking_streams_apart_from_the_answer_and_ends_after_its_budget(stack: Stack) -> None:
    api = Api(stack.url)
    whole = ask(api, thinking_budget_tokens=5, return_token_ids=True)
    message, usage = whole.choice["message"], whole.body["usage"]
    assert message["reasoning"] and message["reasoning"] == message["reasoning_content"]
    assert "think>" not in message["reasoning"] + (message["content"] or "")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 6  # and the end marker
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="thinker",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=60,
            stream=True,
            extra_body={"thinking_budget_tokens": 5},
        )
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == (message["content"] or "")


def test_a_structured_output_is_the_answer_behind_the_thinking(stack: Stack) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(Api(stack.url), thinking_budget_tokens=7, response_format=form, max_tokens=100)
    assert answer.choice["message"]["reasoning"]
    assert list(json.loads(answer.choice["message"]["content"])) == ["a"]


def test_thinking_can_be_cut_or_switched_off(stack: Stack) -> None:
    cut = ask(Api(stack.url), max_tokens=5, thinking_budget_tokens=50)
    assert (cut.choice["finish_reason"], cut.choice["message"]["content"]) == ("length", None)
    off = ask(Api(stack.url), enable_thinking=False)
    assert "reasoning" not in off.choice["message"] and off.choice["message"]["content"]
    assert off.body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_grpc_client_gets_the_text_whole_and_the_length_of_the_thinking(stack: Stack) -> None:
    messages = json.dumps([{"role": "user", "content": "What is the capital of France?"}])
    fields = {"messages": messages, "text_input": None, "max_tokens": 60, "thinking_budget": 5}
    [output] = stack.infer("thinker", inputs(**fields))
    text, num_thinking = output["text_output"].item().decode(), output["num_thinking_chars"].item()
    assert text[:num_thinking].endswith("</think>") and text.count("</think>") == 1
    message = ask(Api(stack.url), thinking_budget_tokens=5).choice["message"]
    assert text[:num_thinking].removesuffix("</think>").strip() == message["reasoning"]
    assert text[num_thinking:].lstrip() == (message["content"] or "")
