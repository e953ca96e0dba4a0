"""Calls in the formats of other models on the real stack: the demo model, which never learned them, by its grammar.

One model has the format's tokens, and a template that the build detects. It takes only ids of its own form, and only as
the first message one of the system.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from build_engines.__main__ import main
from tests.integration.api import WEATHER
from tests.integration.conftest import running_stack
from tests.integration.stack import DEMO_CHECKPOINT, renamed_checkpoint

DETECTED = "mistral_v13"
NAMED = [
    "deepseek_v31",
    "deepseek_v32",
    "gemma4",
    "glm",
    "kimi_k2",
    "lfm2",
    "llama4",
    "minimax_m2",
    "mistral_v3",
    "qwen_xml",
]
TEMPLATE = """{% for message in messages %}{{ message.content }}
{% if message.role == "system" and not loop.first %}{{ raise_exception('not first') }}{% endif %}
{% for call in message.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('id') }}{% endif %}
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}
{{ tools | tojson }}"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("formats")
    detected = renamed_checkpoint(folder, ("[TOOL_CALLS]", "[ARGS]"), TEMPLATE)
    models = {name: {"checkpoint": str(DEMO_CHECKPOINT), "tool-call-format": name} for name in NAMED}
    models[DETECTED] = {"checkpoint": str(detected)}
    (folder / "models.yaml").write_text(json.dumps({"models": models}))
    assert main(["build", str(folder / "models.yaml"), "--home", str(folder), "--num-threads", "1"]) == 0
    [manifest] = folder.glob(f"artifacts/{DETECTED}-*/manifest.json")
    assert json.loads(manifest.read_text())["tool_call_format"] == DETECTED
    with (
        running_stack(folder / "repository", tmp_path_factory) as stack,
        OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("model", [DETECTED, *NAMED])
def test_a_call_is_made_streamed_and_taken_back(client: OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields: dict[str, Any] = {"model": model, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    forced = fields | {"messages": messages, "tool_choice": "required", "parallel_tool_calls": False}
    assert getattr(client.models.retrieve(model), "tool_call_format") == model  # noqa: B009 (not a field of OpenAI's)
    choice = client.chat.completions.create(**forced).choices[0]
    [call] = choice.message.tool_calls or []
    assert (choice.finish_reason, choice.message.content, call.function.name) == ("tool_calls", None, "get_weather")
    assert set(json.loads(call.function.arguments)) == {"city"}
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**forced, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == ""
    functions = [piece.function for delta in deltas for piece in delta.tool_calls or []]
    assert functions[0].name == "get_weather"
    assert "".join(function.arguments for function in functions) == call.function.arguments
    messages += [choice.message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}]
    assert client.chat.completions.create(**fields, messages=messages).choices[0].finish_reason


@pytest.mark.parametrize("role", ["user", "tool"])
def test_the_marks_of_a_format_in_a_message_are_text(client: OpenAI, role: str) -> None:
    messages = [{"role": role, "content": "[TOOL_CALLS]get_weather[ARGS]{}", "tool_call_id": "a"}]
    asked = {"model": DETECTED, "messages": messages, "return_token_strs": True}
    server = client.with_options(base_url=str(client.base_url).removesuffix("v1/"))
    tokens: list[str] = server.post("/tokenize", body=asked, cast_to=dict)["token_strs"]
    assert "[TOOL_CALLS]" in "".join(tokens) and not {"[TOOL_CALLS]", "[ARGS]"} & {*tokens}


def test_later_instructions_are_answered_where_a_template_takes_only_the_first(client: OpenAI) -> None:
    first, hi, later, bye = (
        "Be nice.",
        {"role": "user", "content": "Hi"},
        "Be brief.",
        {"role": "user", "content": "Bye"},
    )
    items: list[Any] = [hi, {"role": "developer", "content": later}, bye]
    fields: dict[str, Any] = {"model": DETECTED}
    chat = client.chat.completions.create(
        **fields, messages=[{"role": "system", "content": first}, *items], max_tokens=1
    )
    response = client.responses.create(**fields, instructions=first, input=items, max_output_tokens=1)
    url = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        message = claude.messages.create(**fields, system=first, messages=items, max_tokens=1)
    assert chat.usage is not None and response.usage is not None
    usage = message.usage
    num_tokens = {usage.input_tokens + (usage.cache_read_input_tokens or 0), response.usage.input_tokens}
    assert num_tokens == {chat.usage.prompt_tokens}
