"""Calls off the norm, through the real Triton: a played model writes them, and needs no agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from model_repository.tool_formats import QWEN_XML
from tests.integration.stack import DEMO_CHECKPOINT
from tests.workshop.agents import reply_runtime
from tests.workshop.agents.played import MODEL, serving

QUESTION = {"role": "user", "content": "Which Markdown files are there?"}  # in replies.yaml
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    spec = CpuSpec(
        model_id=MODEL, runtime=reply_runtime.NAME, checkpoint=DEMO_CHECKPOINT, tool_call_format=QWEN_XML.name
    )
    with serving([build(spec, folder / "artifacts")], folder) as url:
        yield url


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_without_its_outer_marker_is_a_call(url: str, is_stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "Glob", "parameters": SCHEMA}}
    client: Any = OpenAI(base_url=f"{url}/v1", api_key="none")
    if is_stream:
        request = client.chat.completions.stream(model=MODEL, messages=[QUESTION], tools=[tool])
        with request as stream:
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(model=MODEL, messages=[QUESTION], tools=[tool]).choices[0]
    called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert (choice.message.content, called) == ("I will look.", [("Glob", '{"text": "*.md"}')])
    assert choice.finish_reason == "tool_calls"


def test_messages_have_it_too(url: str) -> None:
    client: Any = Anthropic(base_url=url, api_key="none")
    tool = {"name": "Glob", "input_schema": SCHEMA}
    message = client.messages.create(model=MODEL, max_tokens=200, messages=[QUESTION], tools=[tool])
    text, use = message.content
    assert (text.text, use.name, use.input) == ("I will look.", "Glob", {"text": "*.md"})
    assert message.stop_reason == "tool_use"
