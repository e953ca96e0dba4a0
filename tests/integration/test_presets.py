"""A preset of the demo model answers as the same request that is written out to the model."""

from __future__ import annotations

from typing import Any

from tests.integration.api import CHAT, COMPLETIONS, COUNT_TOKENS, INPUT_TOKENS, MESSAGES, RESPONSES, Api
from tests.integration.stack import PRESET, PRESET_NAME

QUESTION = {"role": "user", "content": "What is the capital of Italy?"}
SYSTEM = {"role": "system", "content": PRESET["system"]}
WRITTEN: dict[str, Any] = {"model": "demo", "temperature": 1.5, "seed": 7, "max_tokens": 20}
NAMED: dict[str, Any] = {"model": PRESET_NAME}


def test_all_apis_draw_the_tokens_of_the_request_that_is_written_out(api: Api) -> None:
    exact = {"return_token_ids": True}
    expected = api.post(CHAT, {**WRITTEN, "messages": [SYSTEM, QUESTION], **exact})
    other = api.post(CHAT, {**WRITTEN, "messages": [QUESTION], **exact, "temperature": 0})
    assert expected.text != other.text
    chat = api.post(CHAT, {**NAMED, "messages": [QUESTION], **exact})
    assert (chat.body["model"], chat.choice) == (PRESET_NAME, expected.choice)
    assert chat.body["prompt_token_ids"] == expected.body["prompt_token_ids"]
    response = api.post(RESPONSES, {**NAMED, "input": [QUESTION]}).body
    assert response["output"][-1]["content"][0]["text"] == expected.text
    message = api.post(MESSAGES, {**NAMED, "messages": [QUESTION], "max_tokens": 20}).body
    assert message["content"] == [{"type": "text", "text": expected.text}]
    usage = expected.body["usage"]
    assert response["usage"]["input_tokens"] == usage["prompt_tokens"]
    assert {each["usage"]["output_tokens"] for each in (response, message)} == {usage["completion_tokens"]}


def test_a_completion_has_the_parameters_alone(api: Api) -> None:
    prompt = {"prompt": "The capital of Italy is", "return_token_ids": True}
    assert api.post(COMPLETIONS, {**NAMED, **prompt}).choice == api.post(COMPLETIONS, {**WRITTEN, **prompt}).choice


def test_the_tokens_of_the_system_prompt_are_counted(api: Api) -> None:
    num_tokens = api.post("/tokenize", {"model": "demo", "messages": [SYSTEM, QUESTION]}).body["count"]
    assert api.post("/tokenize", {**NAMED, "messages": [QUESTION]}).body["count"] == num_tokens
    for path, field in ((COUNT_TOKENS, "messages"), (INPUT_TOKENS, "input")):
        assert api.post(path, {**NAMED, field: [QUESTION]}).body["input_tokens"] == num_tokens
