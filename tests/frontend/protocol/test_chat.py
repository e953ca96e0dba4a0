"""The body of a chat completion's request."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, UnsupportedValue, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from tests.frontend.bodies import CHAT, USER, chat, refusal

CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("messages", "said"),
    [("hi", ["hi"]), (["a", "b"], ["a", "b"]), ("", [""])],
)
def test_a_text_is_a_message_of_the_user(messages: Any, said: list[str]) -> None:
    request = chat(messages=messages)
    assert [message.role for message in request.messages] == ["user"] * len(said)
    assert [part.text for message in request.messages for part in message.content or ()] == said


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([5], "messages[0]"),
        (["hi", USER], "messages[0]"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([user(5)], "messages[0].content[0]"),
        ([user({"type": "video"})], "messages[0].content[0].type"),
        ([user({"type": "text", "text": 5})], "messages[0].content[0].text"),
        ([user({"type": "image_url", "image_url": {}})], "messages[0].content[0].image_url.url"),
        (
            [user({"type": "image_url", "image_url": {"url": "x", "detail": "most"}})],
            "messages[0].content[0].image_url.detail",
        ),
        ([{"role": "assistant", "tool_calls": [CALL | {"type": "mcp"}]}], "messages[0].tool_calls[0].type"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call.arguments"),
    ],
)
def test_a_bad_message_is_refused_by_place(messages: Any, param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"messages": messages}, validation_status=422)
    assert isinstance(error, ValidationFailed)
    assert (error.status, error.param) == (422, param)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "content"),
        ({"role": "tool", "tool_call_id": "1"}, "content"),
        ({"role": "tool", "content": "4"}, "tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "user", "content": "x", "function_call": CALL["function"]}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}, "tool_calls[0].function"),
        ({"role": "user", "content": "x", "refusal": "no"}, "refusal"),
        (user({"type": "text"}), "content[0].text"),
        (user({"type": "refusal"}), "content[0].refusal"),
        (user({"type": "image_url"}), "content[0].image_url"),
        (user({"type": "text", "text": "x", "image_url": IMAGE["image_url"]}), "content[0].image_url"),
        (user(IMAGE | {"text": "x"}), "content[0].text"),
        (user({"type": "file"}), "content[0].file"),
        (user({"type": "file", "file": {"filename": "a"}}), "content[0].file.file_data"),
        (user({"type": "text", "text": "x", "file": {"file_data": "eA=="}}), "content[0].file"),
    ],
)
def test_contradicting_fields_of_a_message_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"messages": [message]}, validation_status=422)
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, f"messages[0].{param}")


@pytest.mark.parametrize("kind", ["input_audio", "video_url", "audio_url"])
def test_parts_that_are_not_served_are_refused_by_name(kind: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"messages": [user({"type": kind, kind: {}})]})
    assert isinstance(error, UnsupportedValue)
    assert error.param == "messages[0].content[0].type"
    assert kind in error.message


def test_a_stored_file_is_refused_by_name() -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"messages": [user({"type": "file", "file": {"file_id": "file-1"}})]})
    assert (type(error), error.param) == (UnsupportedValue, "messages[0].content[0].file.file_id")
    assert "no file is stored" in error.message


def test_an_image_is_a_url_or_an_object_with_one() -> None:
    url = IMAGE["image_url"]["url"]  # type: ignore[index]
    for image in (url, {"url": url}, {"url": url, "detail": "low"}):
        (message,) = chat(messages=[user({"type": "image_url", "image_url": image})]).messages
        assert message.content is not None
        assert message.content[0].image_url is not None
        assert message.content[0].image_url.url == url


@pytest.mark.parametrize("content", [None, "", "x", [], [{"type": "refusal", "refusal": "no"}]])
def test_an_assistant_may_be_silent_refuse_or_call(content: Any) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    assert chat(messages=[USER, message]).messages[1].tool_calls is not None
    assert chat(messages=[USER, {"role": "assistant"}]).messages[1].content is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_fields_that_need_others_are_refused_without_them(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, param)
