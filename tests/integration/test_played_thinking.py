"""A model that writes markers and calls in odd places, on the real stack: each API, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import anthropic
import pytest
from openai import OpenAI

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.render import ServeOptions, render_artifacts, write_repository
from frontend.settings import Settings
from model_repository.runtimes import RUNTIMES
from tests import played_runtime
from tests.integration.api import WEATHER
from tests.integration.stack import DEMO_CHECKPOINT, renamed_checkpoint
from tests.launching import launched, launcher_settings

pytestmark = pytest.mark.faults
FUNCTION: Any = WEATHER["function"]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = [("get_weather", {"city": "Paris"})]
# A completion, whether its prompt opens the thinking, and its thinking, content and calls.
CASES = [
    (f"I call it now.\n{CALL}", True, "I call it now.", "", CALLED),
    (f"Maybe {CALL}? No.</think>{CALL}", True, f"Maybe {CALL}? No.", "", CALLED),
    ("Sure.\n<think>One.</think>Hello\n<think>Two.</think>Bye", False, "One.\n\nTwo.", "Sure.\n\nHello\n\nBye", []),
    ("</think>Hello</think>", False, "", "Hello", []),
    ("<think>See </th~ink>.</think>`<th~ink>`", False, "See </think>.", "`<think>`", []),
    (CALL.replace("Paris", "a <think> b"), False, "", "", [("get_weather", {"city": "a <think> b"})]),
]


@pytest.fixture(scope="module")
def url(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("played")
    template = json.loads((DEMO_CHECKPOINT / "tokenizer_config.json").read_text())["chat_template"]
    thinks = "{%- set lora_name = 'demo-thinking' %}"  # for which the template opens thinking
    checkpoint = renamed_checkpoint(folder, ("<think>", "</think>"), thinks + template)
    spec = CpuSpec(model_id="played", runtime=played_runtime.NAME, checkpoint=checkpoint)
    with mock.patch.dict(RUNTIMES):
        played_runtime.register()
        files = render_artifacts({build(spec, folder / "built"): ServeOptions()})
    write_repository(files, folder / "repository")
    settings = launcher_settings(folder / "repository", Settings())
    with launched(settings, folder / "state", folder / "serve.log") as launcher:
        door = folder / "repository" / "played__engine" / "1" / "model.py"  # the launcher has compared it with ours
        door.write_text(f"{door.read_text()}\nfrom tests import played_runtime\nplayed_runtime.register()\n")
        launcher.start()
        launcher.wait_until_ready()
        yield launcher.url


type Answer = tuple[str, str, list[tuple[str, Any]]]


def of_chat(url: str, text: str, *, is_open: bool, is_stream: bool) -> Answer:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "played", "messages": [{"role": "user", "content": text}], "tools": [WEATHER]}
        asked["extra_body"] = {"enable_thinking": is_open}
        if not is_stream:
            message = client.chat.completions.create(**asked).choices[0].message
            functions: Any = [call.function for call in message.tool_calls or []]
        else:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
            functions = [call.function for call in message.tool_calls or []]
        calls = [(each.name, json.loads(each.arguments)) for each in functions]
        return getattr(message, "reasoning_content", None) or "", message.content or "", calls


def of_messages(url: str, text: str, *, is_open: bool, is_stream: bool) -> Answer:
    tools: Any = [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "played", "max_tokens": 300, "messages": [{"role": "user", "content": text}]}
        asked |= {"tools": tools, "extra_body": {"thinking": {"type": "adaptive" if is_open else "disabled"}}}
        if is_stream:
            with client.messages.stream(**asked) as stream:
                blocks: Any = stream.get_final_message().content
        else:
            blocks = client.messages.create(**asked).content
    texts = ["".join(getattr(block, kind, "") for block in blocks) for kind in ("thinking", "text")]
    return texts[0], texts[1], [(each.name, each.input) for each in blocks if each.type == "tool_use"]


def of_responses(url: str, text: str, *, is_open: bool, is_stream: bool) -> Answer:
    tools: Any = [{"type": "function", **FUNCTION}]
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        effort: Any = {"effort": "low" if is_open else "none"}
        asked: Any = {"model": "played", "input": text, "tools": tools, "reasoning": effort}
        if is_stream:
            [*_, last] = client.responses.create(**asked, stream=True)
            items: Any = last.response.output
        else:
            items = client.responses.create(**asked).output
    texts = [
        "".join(part.text for item in items if item.type == kind for part in item.content)
        for kind in ("reasoning", "message")
    ]
    return texts[0], texts[1], [(each.name, json.loads(each.arguments)) for each in items if hasattr(each, "arguments")]


@pytest.mark.parametrize("api", [of_chat, of_messages, of_responses])
@pytest.mark.parametrize(("text", "is_open", "thinking", "content", "calls"), CASES)
def test_markers_and_calls_in_odd_places(
    url: str, api: Any, text: str, is_open: bool, thinking: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    for is_stream in (False, True):
        answer = api(url, played_runtime.prompt_of(text), is_open=is_open, is_stream=is_stream)
        assert answer == (thinking, content, calls)
