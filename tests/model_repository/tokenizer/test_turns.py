"""The oldest turns of a conversation that is too long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from model_repository.contract.request import ChatPrompt
from model_repository.tokenizer.prompt import PromptEncoder
from model_repository.tokenizer.turns import Turns
from tests.model_repository.tokenizer.models import DEMO_BYTES, DEMO_FILES

ENCODER = PromptEncoder(DEMO_FILES, DEMO_BYTES, "hermes")
SYSTEM = {"role": "system", "content": "Be nice."}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def hundred_each(prompt: ChatPrompt, images: tuple[bytes, ...] = ()) -> int:
    return 100 * len(prompt.messages)


def kept(prompt: ChatPrompt) -> list[str]:
    return [message["content"] for message in prompt.messages if message["role"] == "user"]


@pytest.mark.parametrize(
    ("num_turns", "max_tokens", "num_kept"),
    [(0, 1536, 0), (1, 1536, 1), (7, 1536, 7), (8, 1536, 7), (500, 1536, 7), (500, 2000, 9), (500, 48, 1), (3, 0, 1)],
)
@pytest.mark.parametrize("length", [200, 220, None])
def test_the_fewest_of_the_oldest_turns_are_left_out(
    num_turns: int, max_tokens: int, num_kept: int, length: int | None
) -> None:
    """The instructions and the last turn stay. Lengths may be too large, and a template may hide them."""
    calls: list[int] = []

    def num_tokens(prompt: ChatPrompt, images: tuple[bytes, ...]) -> int:
        calls.append(len(prompt.messages))
        return hundred_each(prompt)

    def lengths(prompt: ChatPrompt) -> Sequence[int]:
        return [] if length is None else [length] * len(kept(prompt))

    messages = [SYSTEM, *(each for at in range(num_turns) for each in (user(str(at)), answer("Yes.")))]
    turns = Turns(ChatPrompt(tuple(messages), max_prompt_tokens=max_tokens), ())
    prompt, _ = turns.from_turn(turns.first_that_fits(max_tokens, 10**6, lengths, num_tokens))
    assert prompt.messages[0] == SYSTEM
    assert kept(prompt) == [str(at) for at in range(num_turns)][num_turns - num_kept :]
    assert prompt.max_prompt_tokens is None
    assert len(calls) <= (5 if length == 220 else 2)


def test_the_images_of_turns_that_are_left_out_are_left_out() -> None:
    messages = ({"role": "system", "content": "<image>"}, user("<image> <image>"), answer("Yes."), user("<image>"))
    turns = Turns(ChatPrompt(messages), (b"0", b"1", b"2", b"3"))
    assert [turns.from_turn(number)[1] for number in (0, 1)] == [(b"0", b"1", b"2", b"3"), (b"0", b"3")]


def test_a_conversation_that_no_tokens_fit_is_cut_before_it_is_tokenized() -> None:
    """One of 8.4 MB was refused: at most 500,000 bytes are tokenized."""
    sizes: list[int] = []

    def num_tokens(prompt: ChatPrompt, images: tuple[bytes, ...]) -> int:
        sizes.append(sum(len(message["content"]) for message in prompt.messages))
        return 1

    turns = Turns(ChatPrompt((SYSTEM, *map(user, ["€" * 1000] * 50))), ())
    assert turns.first_that_fits(10, 30_000, lambda prompt: [], num_tokens) == 41
    assert sizes == [len("Be nice.") + 9 * 1000]


TEXTS = ("Yes.", "\n\nno ", "a1234 b567 " * 40, "<|im_end|>", " ", "日本語 ✓", "x" * 1500, "")


@pytest.mark.parametrize("seed", range(6))
def test_as_many_turns_are_kept_as_fit_with_a_real_template(seed: int) -> None:
    """The turns are counted one by one, so their tokens may differ from those of the whole."""
    random_ = random.Random(seed)
    roles = [user, *(random_.choice((user, answer)) for _ in range(30)), user]
    prompt = ChatPrompt((SYSTEM, *(role(random_.choice(TEXTS)) for role in roles)))
    turns = Turns(prompt, ())
    parts = [turns.from_turn(number)[0] for number in range(len(kept(prompt)))]
    sizes = [len(ENCODER.encode(part).token_ids) for part in parts]
    for max_tokens in (0, *random_.sample(range(sizes[0] + 10), 8), *random_.sample(sizes, 3)):
        fewest = next((number for number, size in enumerate(sizes) if size <= max_tokens), len(sizes) - 1)
        assert ENCODER.fitting(prompt, (), max_tokens, 10**6, "")[0] == parts[fewest]
