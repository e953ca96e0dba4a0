"""Every kind of prompt to token ids, with the tokenizer of the demo model."""

from __future__ import annotations

import pytest

from model_repository.contract.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.tokenizer.prompt import EncodedPrompt, PromptEncoder
from tests.model_repository.tokenizer.models import (
    DEMO_BYTES,
    DEMO_FILES,
    SPECIAL_IDS,
    plain_tokenizer,
)

DEMO = PromptEncoder(DEMO_FILES, DEMO_BYTES, "hermes")
PLAIN = plain_tokenizer()
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))


def test_special_tokens_in_a_text_prompt_are_tokens() -> None:
    token_ids = DEMO.encode(TextPrompt("<|im_start|>user\n")).token_ids
    assert token_ids == (SPECIAL_IDS["<|im_start|>"], *PLAIN.encode("user\n").ids)


def test_special_tokens_in_a_prompt_with_a_suffix_are_text() -> None:
    encoded = DEMO.encode(TextPrompt("a<|im_end|>", "<|fim_middle|>b"))
    assert encoded.token_ids == (
        SPECIAL_IDS["<|fim_prefix|>"],
        *PLAIN.encode("a<|im_end|>").ids,
        SPECIAL_IDS["<|fim_suffix|>"],
        *PLAIN.encode("<|fim_middle|>b").ids,
        SPECIAL_IDS["<|fim_middle|>"],
    )
    assert encoded.end_token_ids == (SPECIAL_IDS["<|endoftext|>"],)


@pytest.mark.parametrize("is_echo", [False, True])
@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt("<|im_end|>"), "text_input"),
        (CHAT, "messages"),
        (TokenPrompt((SPECIAL_IDS["<|im_end|>"],)), "input_ids"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(prompt: Prompt, field: str, is_echo: bool) -> None:
    num_tokens = min(SPECIAL_IDS.values())
    encoder = PromptEncoder(DEMO_FILES, DEMO_BYTES[:num_tokens], "hermes")
    with pytest.raises(InvalidRequest, match=f"is not a token: they are 0 to {num_tokens - 1}") as caught:
        encoder.encode(prompt, is_echo=is_echo)
    assert caught.value.field == field
    with pytest.raises(Unsupported):  # nor has it those before a prefix, a suffix and a middle
        encoder.encode(TextPrompt("a", "b"), is_echo=is_echo)


def test_a_text_is_echoed_without_its_suffix() -> None:
    encoded = DEMO.encode(TextPrompt("def f(", "):"), is_echo=True)
    assert b"".join(encoded.echo) == b"def f("
    assert len(encoded.echo) == len(encoded.token_ids)
    assert encoded.echo[0] == encoded.echo[-1] == encoded.echo[-2] == b""


def test_token_ids_are_echoed_as_their_bytes() -> None:
    (a,) = PLAIN.encode(" a").ids
    assert DEMO.encode(TokenPrompt((a, SPECIAL_IDS["<|im_end|>"])), is_echo=True).echo == (b" a", b"")


def test_a_chat_is_echoed_without_its_special_tokens() -> None:
    encoded = DEMO.encode(CHAT, is_echo=True)
    assert b"".join(encoded.echo) == b"user\nhi\nassistant\n"


def test_a_truncated_text_whose_first_token_stood_for_all_is_echoed_as_the_bytes_of_the_rest() -> None:
    byte_table = (b"a", b"b", b"c")
    encoder = PromptEncoder(DEMO_FILES, byte_table, "hermes")
    whole = EncodedPrompt(token_ids=(0, 1, 2), echo=(b"A\xcc\x81c", b"", b""))
    assert encoder.truncated(whole, 2) == EncodedPrompt(token_ids=(1, 2), echo=(b"b", b"c"))
    assert encoder.truncated(whole, 3) == whole
