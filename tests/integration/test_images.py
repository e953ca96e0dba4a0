"""Images through the whole stack: the demo model says what it sees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from model_repository.engine.images import MAX_SCANS
from tests.integration.api import CHAT, Api
from tests.integration.operations import Server
from tests.integration.stack import PACED_MODEL
from tests.pictures import circle, data_uri, jpeg_of_scans, message_with

MODEL = "demo-pictures"
QUESTION = "What colour is it?"


def messages(*files: bytes, question: str = QUESTION) -> list[Any]:
    return [message_with(*files, question=question)]


def ask(client: OpenAI, *files: bytes, **fields: Any) -> str:
    body: dict[str, Any] = {"model": MODEL, "messages": messages(*files), "temperature": 0, "max_tokens": 20}
    answer = client.chat.completions.create(**(body | fields))
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize(("colour", "format"), [("red", "PNG"), ("green", "JPEG"), ("blue", "WEBP"), ("yellow", "GIF")])
def test_the_openai_client_sends_a_picture_and_gets_the_right_word(client: OpenAI, colour: str, format: str) -> None:
    picture = circle(colour, format)
    assert ask(client, picture) == f"It is {colour}."
    stream = client.chat.completions.create(
        model=MODEL, messages=messages(picture), temperature=0, max_tokens=20, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == f"It is {colour}."
    assert len(pieces) > 2


def test_an_image_goes_with_everything_else(client: OpenAI) -> None:
    red = circle("red")
    assert ask(client, red, stop=["red"]) == "It is "
    choice = {"structured_outputs": {"choice": ["blue", "red", "green"]}}
    assert ask(client, red, extra_body=choice) == "red"
    answer = client.chat.completions.create(
        model=MODEL, messages=messages(red), n=3, seed=5, temperature=0.1, max_tokens=20, logprobs=True
    )
    assert [each.message.content for each in answer.choices] == ["It is red."] * 3
    assert all(each.logprobs is not None and each.logprobs.content for each in answer.choices)


def refusal(client: OpenAI, **fields: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        ask(client, **fields)
    return caught.value


def test_what_cannot_be_served_is_refused_by_name(client: OpenAI) -> None:
    broken = refusal(client, messages=messages(circle("red"), b"no picture"))
    place = "messages[0].content[1].image_url.url"
    assert (broken.param, f"{place}: " in broken.message) == (place, True)
    text_only = refusal(client, messages=messages(circle("red")), model=PACED_MODEL)
    assert (text_only.param, "reads no images" in text_only.message) == ("messages[0].content[0].image_url.url", True)
    both = refusal(client, messages=messages(circle("red"), question="<image>?"))
    assert "`<image>` is the place of an image" in both.message
    long = refusal(client, messages=messages(circle("red"), question="a " * 2020), max_tokens=20)
    assert long.status_code == 400


def test_a_key_with_costly_jpegs_does_not_hold_up_the_pictures_of_another_key(server: Server) -> None:
    """6000 scans were computed for a minute, in which no other picture was."""
    slow, slower = (jpeg_of_scans(number, side=4096) for number in (MAX_SCANS, 6000))
    with server.client("admin") as attacker, server.client("everything") as client, ThreadPoolExecutor() as pool:
        refusals = [pool.submit(refusal, attacker, messages=messages(file)) for file in (slower, slow, slow)]
        assert ask(client, circle("red")) == "It is red."
        assert not all(refusal.done() for refusal in refusals)
        rules = [refusal.result().message for refusal in refusals]
    assert "6000 scans: a JPEG may have 500" in rules[0]
    assert "decoding them takes more than 4 s of processor time" in rules[1]


def test_a_detail_that_the_model_does_not_know_is_listed_as_ignored(api: Api) -> None:
    image = {"type": "image_url", "image_url": {"url": data_uri(circle("red")), "detail": "low"}}
    chat = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    answer = api.post(CHAT, {"model": MODEL, "messages": chat, "max_tokens": 1})
    assert (answer.status, answer.headers["x-ignored-params"]) == (200, "messages[0].content[0].image_url.detail")
