"""Generated conversations as Responses and Messages: the prompt of their chat, and answers of the right types."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.anthropic_types import checked_event, checked_message
from tests.frontend.translate import test_message_chat as of_messages
from tests.frontend.translate import test_responses_chat as of_responses
from tests.integration.api import CHAT, MESSAGES, RESPONSES, Api
from tests.pictures import circle, data_uri
from tests.responses_types import checked_response, checked_response_event

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MAX_PICTURES = 2  # the context window is small
PICTURE = data_uri(circle("red"))
DATA = PICTURE.partition(",")[2]
THINKER = "demo-thinking"


def shown(conversation: Any) -> Any:
    """Return a conversation with a picture where the generator has the bytes of none."""
    text = json.dumps(conversation)
    for mark, real in ((of_messages.PNG, PICTURE), ("data:image/gif;base64,eQ==", PICTURE), ('"eA=="', f'"{DATA}"')):
        text = text.replace(mark, real)
    text = text.replace('"eQ=="', f'"{DATA}"').replace("image/gif", "image/png")
    assume(text.count(DATA) <= MAX_PICTURES)
    return json.loads(text)


def num_prompt_tokens(api: Api, messages: list[Any], tools: list[Any], model: str) -> int:
    body = {"model": model, "messages": messages, "max_tokens": 1, "tools": tools}
    answer = api.post(CHAT, shown(body))
    assert answer.status == 200, answer.body
    return int(answer.body["usage"]["prompt_tokens"])


@given(
    turns=st.lists(st.tuples(of_responses.of_user(), of_responses.of_model()), max_size=2),
    last=of_responses.of_user(),
    model=st.sampled_from(["demo", THINKER]),
    max_output_tokens=st.integers(1, 40),
    summary=st.sampled_from([None, "auto"]),
)
@SETTINGS
def test_responses(
    api: Api, turns: list[Any], last: Any, model: str, max_output_tokens: int, summary: str | None
) -> None:
    user_and_model = [each for turn in turns for each in turn] + [last]
    items = [item for each in user_and_model for item in each[0]]
    messages = [message for each in user_and_model for message in each[1]]
    tools = [of_responses.TOOL, of_responses.CUSTOM_TOOL]
    body: dict[str, Any] = {"model": model, "tools": tools, "max_output_tokens": max_output_tokens}
    body |= {"input": items, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": summary}}
    body = shown(body)
    answer = api.post(RESPONSES, body)
    assert answer.status == 200, answer.body
    checked_response(answer.body)
    chat_tools = [of_responses.FUNCTION, of_responses.CUSTOM]
    assert answer.body["usage"]["input_tokens"] == num_prompt_tokens(api, messages, chat_tools, model)
    streamed = list(api.events(RESPONSES, body))
    for event in streamed:
        checked_response_event(event)
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    assert streamed[-1]["response"]["usage"]["input_tokens"] == answer.body["usage"]["input_tokens"]
    again = body | {"input": [*body["input"], *answer.body["output"], {"role": "user", "content": "a"}]}
    assert api.post(RESPONSES, again).status == 200


@given(
    said=st.lists(of_messages.of_user() | of_messages.of_assistant(), max_size=3),
    last=of_messages.of_user(),
    model=st.sampled_from(["demo", THINKER]),
    max_tokens=st.integers(1, 40),
)
@SETTINGS
def test_messages(api: Api, said: list[Any], last: Any, model: str, max_tokens: int) -> None:
    turns = [*said, last]
    messages = [message for each in turns for message in each[1]]
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "tools": [of_messages.TOOL]}
    body = shown(body | {"messages": [each[0] for each in turns]})
    answer = api.post(MESSAGES, body)
    assert answer.status == 200, answer.body
    usage = checked_message(answer.body).usage
    num_tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert num_tokens == num_prompt_tokens(api, messages, [of_messages.FUNCTION], model)
    streamed = list(api.events(MESSAGES, body))
    for event in streamed:
        checked_event(event)
    assert streamed[-1] == {"type": "message_stop"}
    again = {"role": "assistant", "content": answer.body["content"]}
    user = {"role": "user", "content": "a"}
    assert api.post(MESSAGES, body | {"messages": [*body["messages"], again, user]}).status == 200
