import json
from itertools import islice

import jinja2
import pytest
from tokenizers import Tokenizer

from build_engines.demo.checkpoint import CHECKPOINT
from build_engines.demo.dataset import DATASET, read
from build_engines.demo.encoding import DocumentEncoder
from build_engines.demo.hermes import to_json
from build_engines.demo.tokenizer import CHAT_TEMPLATE, added_tokens, config_file

TEMPLATE_WITHOUT_TOOLS = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping"}}


def compiled(source: str) -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = to_json
    return environment.from_string(source)


@pytest.fixture(scope="module")
def template() -> jinja2.Template:
    return compiled(CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def encoder() -> DocumentEncoder:
    return DocumentEncoder()


def call(name: str, **arguments: object) -> dict:
    return {"type": "function", "id": "call_1", "function": {"name": name, "arguments": arguments}}


def test_the_committed_configuration_is_what_the_code_writes():
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    assert (CHECKPOINT / "tokenizer_config.json").read_bytes() == config_file(tokenizer)


@pytest.mark.parametrize("tools", [{}, {"tools": None}, {"tools": []}])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chats_without_tools_are_written_as_before(template, tools, add_generation_prompt):
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "\n {{ x }} <|im_end|> é "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]
    before = compiled(TEMPLATE_WITHOUT_TOOLS)
    for chat in (messages, messages[1:], messages[:1]):
        expected = before.render(messages=chat, add_generation_prompt=add_generation_prompt)
        assert template.render(messages=chat, add_generation_prompt=add_generation_prompt, **tools) == expected


def test_tools_follow_the_system_prompt(template):
    messages = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Ahoy"}]
    assert template.render(messages=messages, tools=[WEATHER, PING], add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a pirate.\n\n"
        "Tools:\nget_weather(city, unit): Get the weather of a city.\nping()<|im_end|>\n"
        "<|im_start|>user\nAhoy<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": ""}]])
def test_tools_make_a_system_turn_of_their_own(template, system):
    messages = [*system, {"role": "user", "content": "Hi"}]
    assert template.render(messages=messages, tools=[PING]) == (
        "<|im_start|>system\nTools:\nping()<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_calls_and_results_are_written_in_the_hermes_format(template):
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call("get_weather", city="Köln"), call("ping", n=1.5)]},
        {"role": "tool", "content": '{"temperature": 21}', "tool_call_id": "call_1"},
        {"role": "tool", "content": "pong"},
        {"role": "assistant", "content": "21 degrees."},
    ]
    assert template.render(messages=messages) == (
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ping", "arguments": {"n": 1.5}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n"
        '<tool_response>\n{"temperature": 21}\n</tool_response>\n'
        "<tool_response>\npong\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n21 degrees.<|im_end|>\n"
    )


def test_text_before_a_call_has_a_line_of_its_own(template):
    messages = [{"role": "assistant", "content": "Let me see.", "tool_calls": [call("ping")]}]
    assert template.render(messages=messages) == (
        '<|im_start|>assistant\nLet me see.\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call><|im_end|>\n'
    )


def test_the_template_writes_the_tokens_that_were_trained(template, encoder):
    markers = [token.content for token in added_tokens()]
    chats = (
        document
        for document in read(DATASET)
        if document.tools and not any(marker in m["content"] for marker in markers for m in document.messages)
    )
    for document in islice(chats, 300):
        text = template.render(messages=document.messages, tools=document.tools).removesuffix("\n")
        assert encoder.marked(text) == encoder.encode(document).token_ids


def test_only_calls_and_answers_are_learned(encoder):
    document = next(document for document in read(DATASET) if document.tools and document.skill == "two calls")
    encoded = encoder.encode(document)
    learned = [id_ for id_, is_learned in zip(encoded.token_ids, encoded.is_learned, strict=True) if is_learned]
    text = encoder.tokenizer.decode(learned, skip_special_tokens=False)
    assert "<tool_call>\n" in text
    assert "<tool_response>" not in text
    assert "Tools:" not in text
    assert json.loads(text.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0])["name"]
