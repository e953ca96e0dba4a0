"""Images in requests: decoded from data URIs, never fetched."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from frontend.errors import APIError, InvalidRequest, UnsupportedValue
from frontend.translate.data_uris import image_from_data_uri
from frontend.translate.requests import chat_to_requests, completion_to_requests
from frontend.triton.models import ModelName
from model_repository.capabilities import Capability
from tests.fakes import served_model
from tests.frontend.bodies import chat, completion
from tests.frontend.translate.test_requests import DEFAULTS, NAME

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"


def uri(image: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{b64encode(image).decode()}"


def images_of(**fields: Any) -> tuple[bytes, ...]:
    (request,) = completion_to_requests(completion(**fields), NAME, DEFAULTS)
    return request.images


def refusal_of(text: str) -> APIError:
    with pytest.raises(APIError) as caught:
        image_from_data_uri(text, "images[0]")
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        uri(PNG),
        uri(PNG).removeprefix("data:"),
        f"image/png,{b64encode(PNG).decode()}",
        uri(PNG, "image/svg+xml"),
        uri(PNG)[:-6] + "\r\n\t \f" + uri(PNG)[-6:] + "\n",  # as `base64` breaks its lines
    ],
)
def test_an_image_is_a_data_uri_in_openais_spelling_or_fireworks(text: str) -> None:
    assert image_from_data_uri(text, "images[0]") == PNG


@pytest.mark.parametrize(
    "text",
    [
        "http://example.com/" + "x" * 100_000,
        "file:///etc/passwd",
        "data:text/plain;base64,eA==",
        "data:image/png;charset=x;base64,eA==",
        "",
    ],
)
def test_another_url_is_refused_and_shown_short(text: str) -> None:
    error = refusal_of(text)
    assert isinstance(error, UnsupportedValue)
    assert (error.status, error.param, error.code) == (400, "images[0]", "unsupported_value")
    assert len(error.message) < 300


@pytest.mark.parametrize("payload", ["%%%%", "eA", "eA==\v", "é", "", " ", "eA==eA=="])
def test_a_payload_that_is_empty_or_not_base64_is_refused(payload: str) -> None:
    error = refusal_of(f"data:image/png;base64,{payload}")
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, "images[0]")


def test_a_completion_has_its_images_in_order() -> None:
    assert images_of(prompt="<image> and <image>", images=[uri(PNG), uri(JPEG, "image/jpeg")]) == (PNG, JPEG)
    assert images_of(prompt="no <image> at all") == images_of(prompt="none", images=[]) == ()


def test_a_text_beside_images_has_no_place_for_another_one() -> None:
    message = {"role": "user", "content": [*parts(uri(PNG)), {"type": "text", "text": "an <image>"}]}
    with pytest.raises(InvalidRequest) as caught:
        chat_to_requests(chat(messages=[message]), NAME, DEFAULTS)
    assert caught.value.param == "messages[0].content[2].text"
    (request,) = chat_to_requests(chat(messages=[{"role": "user", "content": "an <image>"}]), NAME, DEFAULTS)
    assert request.images == ()


def parts(*urls: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "x"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def test_a_chats_images_come_in_the_order_of_its_parts() -> None:
    messages = [{"role": "user", "content": parts(uri(PNG), uri(JPEG))}, {"role": "user", "content": parts(uri(PNG))}]
    for request in chat_to_requests(chat(messages=messages, n=2), NAME, DEFAULTS):
        assert request.images == (PNG, JPEG, PNG)


def test_a_model_that_reads_no_images_is_named_with_the_place_of_the_first() -> None:
    model = served_model(capabilities=frozenset(Capability) - {Capability.IMAGES})
    name = ModelName(requested=model.id, model=model)
    with pytest.raises(UnsupportedValue) as caught:
        chat_to_requests(chat(messages=[{"role": "user", "content": parts(uri(PNG))}]), name, DEFAULTS)
    place = "messages[0].content[1].image_url.url"
    assert (caught.value.param, caught.value.message) == (place, f"{place}: the model {model.id} reads no images")


def test_a_bad_image_is_refused_by_place() -> None:
    with pytest.raises(UnsupportedValue) as caught:
        images_of(prompt="<image><image>", images=[uri(PNG), "http://x"])
    assert caught.value.param == "images[1]"
    with pytest.raises(UnsupportedValue) as caught:
        chat_to_requests(chat(messages=[{"role": "user", "content": parts(uri(PNG), "http://x")}]), NAME, DEFAULTS)
    assert caught.value.param == "messages[0].content[2].image_url.url"
