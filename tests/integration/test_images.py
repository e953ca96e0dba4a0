"""Images through the whole stack: the demo model says what it sees."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError, OpenAI

from model_repository.engine.images import MAX_SCANS
from tests.integration.api import CHAT, COMPLETIONS, Api
from tests.integration.operations import Server
from tests.integration.stack import PACED_MODEL, Stack
from tests.pictures import circle, data_uri, jpeg_of_scans, message_with

MODEL = "demo-pictures"
NUM_IMAGE_TOKENS = 36
QUESTION = "What colour is it?"


def messages(*files: bytes, question: str = QUESTION) -> list[Any]:
    return [message_with(*files, question=question)]


def ask(client: OpenAI, *files: bytes, **fields: Any) -> str:
    body: dict[str, Any] = {"model": MODEL, "messages": messages(*files), "temperature": 0, "max_tokens": 20}
    answer = client.chat.completions.create(**(body | fields))
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("colour", ["red", "green", "blue", "yellow"])
def test_the_openai_client_sends_a_picture_and_gets_the_right_word(client: OpenAI, colour: str) -> None:
    assert ask(client, circle(colour)) == f"It is {colour}."
    stream = client.chat.completions.create(
        model=MODEL, messages=messages(circle(colour)), temperature=0, max_tokens=20, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == f"It is {colour}."
    assert len(pieces) > 2


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_every_format_is_read(client: OpenAI, format: str) -> None:
    assert ask(client, circle("red", format)) == "It is red."


def test_the_text_may_come_first(client: OpenAI) -> None:
    message = message_with(circle("blue"), question=QUESTION)
    assert ask(client, messages=[message | {"content": message["content"][::-1]}]) == "It is blue."


def test_a_follow_up_is_about_the_same_picture(client: OpenAI) -> None:
    chat = [
        *messages(circle("green"), question="What shape is it?"),
        {"role": "assistant", "content": "It is a circle."},
        {"role": "user", "content": QUESTION},
    ]
    assert ask(client, messages=chat) == "It is green."


def test_an_image_counts_as_prompt_tokens_and_the_same_again_as_cached(client: OpenAI) -> None:
    usages = []
    for _ in range(2):
        answer = client.chat.completions.create(model=MODEL, messages=messages(circle("purple", side=99)), max_tokens=1)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        usages.append((answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens))
    [(num_tokens, first), (_, second)] = usages
    assert num_tokens > NUM_IMAGE_TOKENS
    assert (first or 0) < NUM_IMAGE_TOKENS
    assert second == num_tokens - 1
    twice = client.chat.completions.create(
        model=MODEL, messages=messages(circle("purple"), circle("red")), max_tokens=1
    )
    assert twice.usage is not None
    assert twice.usage.prompt_tokens == num_tokens + NUM_IMAGE_TOKENS + 1  # and the line break between them


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


def test_many_at_once_each_get_their_own_answer(client: OpenAI) -> None:
    colours = ["red", "green", "blue", "yellow", "black"] * 4
    with ThreadPoolExecutor(len(colours)) as pool:
        answers = list(pool.map(lambda colour: ask(client, circle(colour)), colours))
    assert answers == [f"It is {colour}." for colour in colours]


def refusal(client: OpenAI, **fields: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        ask(client, **fields)
    return caught.value


def test_what_cannot_be_served_is_refused_by_name(client: OpenAI) -> None:
    broken = refusal(client, messages=messages(circle("red"), b"no picture"))
    assert (broken.param, "images[1]: " in broken.message) == ("images[1]", True)
    text_only = refusal(client, messages=messages(circle("red")), model=PACED_MODEL)
    assert "cannot honour it" in text_only.message
    both = refusal(client, messages=messages(circle("red"), question="<image>?"))
    assert "`<image>` is the place of an image" in both.message
    long = refusal(client, messages=messages(circle("red"), question="a " * 2020), max_tokens=20)
    assert long.status_code == 400


@pytest.fixture
def image_process(stack: Stack) -> Iterator[int]:
    """The process that computes the demo model's images: the child of a child of the engine."""
    [engine] = stack.processes("demo__engine")
    found = [grandchild for child in children(engine) for grandchild in children(child)]
    assert found
    yield found[0]


def children(pid: int) -> Sequence[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_killed_process_for_images_is_replaced(client: OpenAI, image_process: int) -> None:
    os.kill(image_process, signal.SIGKILL)
    try:
        answer = ask(client, circle("red"))
    except InternalServerError:  # it was killed at work
        answer = ask(client, circle("red"))
    assert answer == "It is red."


def test_a_key_with_costly_jpegs_does_not_hold_up_the_pictures_of_another_key(server: Server) -> None:
    """6000 scans were computed for a minute, in which no other picture was."""
    slow, slower = (jpeg_of_scans(number, side=4096) for number in (MAX_SCANS, 6000))
    with server.client("admin") as attacker, server.client("everything") as client, ThreadPoolExecutor() as pool:
        refusals = [pool.submit(refusal, attacker, messages=messages(file)) for file in (slower, slow, slow, slow)]
        assert ask(client, circle("red")) == "It is red."
        assert not all(refusal.done() for refusal in refusals)
        rules = [refusal.result().message for refusal in refusals]
    assert "6000 scans: a JPEG may have 500" in rules[0]
    assert all("decoding them takes more than 4 s of processor time" in rule for rule in rules[1:])


def test_a_completion_has_a_place_for_each_image(api: Api) -> None:
    prompt = f"<|im_start|>user\n<image>{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    body = {"model": MODEL, "prompt": prompt, "images": [data_uri(circle("red"))], "temperature": 0, "max_tokens": 20}
    assert api.post(COMPLETIONS, body).text == "It is red."
    assert api.post(COMPLETIONS, body | {"prompt": "no place"}).error["param"] == "images"


def test_a_detail_that_the_model_does_not_know_is_listed_as_ignored(api: Api) -> None:
    image = {"type": "image_url", "image_url": {"url": data_uri(circle("red")), "detail": "low"}}
    chat = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    answer = api.post(CHAT, {"model": MODEL, "messages": chat, "max_tokens": 1})
    assert (answer.status, answer.headers["x-ignored-params"]) == (200, "messages[0].content[0].image_url.detail")
