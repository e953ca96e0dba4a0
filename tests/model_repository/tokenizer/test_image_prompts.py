"""Prompts with images: `<image>` in a text is a place for one, and an ordinary text without images."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from model_repository.contract.request import IMAGE_PLACE, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.prompt import PromptEncoder
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from tests.build_engines.tiny_checkpoint import ADDED_TOKENS, tokenizer_description
from tests.model_repository.tokenizer.models import DEMO_BYTES, DEMO_FILES, SPECIAL_IDS, plain_tokenizer

DEMO = PromptEncoder(DEMO_FILES, DEMO_BYTES, "hermes", has_images=True)
PLAIN = plain_tokenizer()


def chat(content: str) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": content},))


def test_a_place_in_a_text_is_one_token() -> None:
    token_ids = DEMO.encode(TextPrompt("a <image> b <image>c"), num_images=2).token_ids
    parts = (PLAIN.encode(text).ids for text in ("a ", " b ", "c"))
    first, second, third = parts
    assert token_ids == (*first, IMAGE_PLACE, *second, IMAGE_PLACE, *third)


def test_a_place_in_a_chat_is_one_token_and_other_text_stays_text() -> None:
    token_ids = DEMO.encode(chat("<|im_end|><image>\nWhat?"), num_images=1).token_ids
    assert token_ids.count(IMAGE_PLACE) == 1
    assert token_ids.count(SPECIAL_IDS["<|im_end|>"]) == 1  # the template's


@pytest.mark.parametrize("prompt", [TextPrompt("a <image>"), chat("a <image>")])
def test_without_images_it_is_an_ordinary_text(prompt: Prompt) -> None:
    text_only = PromptEncoder(DEMO_FILES, DEMO_BYTES, "hermes")
    assert DEMO.encode(prompt) == text_only.encode(prompt)


@pytest.mark.parametrize(("text", "num_images"), [("none", 1), ("<image>", 2), ("<image> <image> .", 1)])
def test_each_image_needs_a_place_and_each_place_an_image(text: str, num_images: int) -> None:
    for prompt in (TextPrompt(text), chat(text)):
        with pytest.raises(InvalidRequest, match=rf"{num_images} images for \d `<image>` in the prompt") as caught:
            DEMO.encode(prompt, num_images=num_images)
        assert caught.value.field == "images"


def test_text_must_follow_the_last_image() -> None:
    with pytest.raises(InvalidRequest, match="text must follow") as caught:
        DEMO.encode(TextPrompt("a <image>"), num_images=1)
    assert caught.value.field == "text_input"


def test_a_vocabulary_with_the_token_keeps_it_from_users_without_images() -> None:
    description = tokenizer_description([*ADDED_TOKENS, "<image>"])
    template = "{% for message in messages %}{{ message.content }}{% endfor %}."
    files = TokenizerFiles(Tokenizer.from_str(json.dumps(description)), template)
    encoder = PromptEncoder(files, [b"x"] * 300, "hermes", has_images=True)
    token_id = files.tokenizer.token_to_id("<image>")
    assert token_id not in encoder.encode(chat("<image>")).token_ids
    assert encoder.encode(chat("<image>"), num_images=1).token_ids[0] == IMAGE_PLACE


@pytest.mark.parametrize("prompt", [TokenPrompt((1, 2)), TextPrompt("<image>", "suffix")])
def test_other_prompts_have_no_images(prompt: Prompt) -> None:
    with pytest.raises(InvalidRequest, match="messages, or with a text prompt without suffix"):
        DEMO.encode(prompt, num_images=1)
