"""Which replica a prompt costs least at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from frontend.triton import routing
from frontend.triton.routing import Beginnings, Kept, Work, cheapest, num_missing
from model_repository.contract.marks import ENDS, num_known
from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    PairPrompt,
    Params,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)

KEY = b"k"
WORDS = "What is it? " * 200


IDLE = Work(0, 0, 0)


@dataclass(frozen=True)
class Played:
    """A replica."""

    name: str
    work: Work = IDLE
    kept: Kept = field(default_factory=Kept, hash=False)

    def __str__(self) -> str:
        return self.name


def said(*texts: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"role": "user", "content": text} for text in texts)


def of(prompt: Prompt, images: Sequence[bytes] = (), **params: Any) -> Beginnings:
    return Beginnings.of(KEY, GenerationRequest(prompt=prompt, params=Params(**params), images=tuple(images)))


def sent(*found: Beginnings) -> Kept:
    kept = Kept()
    for each in found:
        kept.sent(each, 0.0)
    return kept


CHAT = of(ChatPrompt(said(WORDS)))


def test_the_next_turn_of_a_conversation_has_all_marks_of_the_turn_before() -> None:
    later = of(ChatPrompt(said(WORDS, "Why?", WORDS)))
    assert len(CHAT.marks) > 8
    assert later.marks[: len(CHAT.marks)] == CHAT.marks
    assert num_missing(later, sent(CHAT)) == later.num_bytes - ENDS[len(CHAT.marks) - 1]


@pytest.mark.parametrize(
    "other",
    [
        of(ChatPrompt(said(WORDS)), lora_name="formal"),
        of(ChatPrompt(said(WORDS)), cache_salt="another key"),
        of(ChatPrompt(said(WORDS), ToolUse(tools=({"type": "function"},)))),
        of(ChatPrompt(said(WORDS), template_kwargs={"enable_thinking": False})),
        of(TextPrompt(WORDS)),
        Beginnings.of(b"other", GenerationRequest(prompt=ChatPrompt(said(WORDS)), params=Params())),
    ],
)
def test_a_prompt_of_other_tokens_or_of_another_tenant_has_no_mark_in_common(other: Beginnings) -> None:
    assert not set(CHAT.marks) & set(other.marks)


def test_a_mark_behind_an_image_stands_for_the_image_too() -> None:
    chat = ChatPrompt(said(WORDS, "<image>", WORDS))
    first, second = (of(chat, [bytes(9) + end]) for end in (b"a", b"b"))
    num_before = num_known(of(ChatPrompt(said(WORDS))).marks, set(first.marks))
    assert num_known(second.marks, set(first.marks)) == num_before < len(first.marks)


def test_tokens_have_marks_and_a_pair_of_texts_has_none() -> None:
    longer = of(TokenPrompt(tuple(range(300))))
    assert longer.marks[:3] == of(TokenPrompt(tuple(range(100)))).marks
    assert not of(PairPrompt((WORDS, WORDS))).marks


def test_what_was_sent_counts_until_the_engine_has_told_what_it_keeps() -> None:
    kept, marks = Kept(), set(CHAT.marks)
    kept.sent(CHAT, 10.0)
    kept.told(b"x" * 8, 11.0)  # it may not have the request yet
    assert num_known(CHAT.marks, kept) == len(marks)
    kept.told(b"x" * 8, 13.0)
    assert num_known(CHAT.marks, kept) == 0
    kept.told(b"".join(CHAT.marks[:5]), 14.0)
    assert (num_known(CHAT.marks, kept), len(kept)) == (5, 5)
    kept.sent(CHAT, 20.0)
    kept.told(b"", 300.0)  # an engine that does not tell
    assert num_known(CHAT.marks, kept) == len(marks)
    kept.told(b"", 321.0)
    assert num_known(CHAT.marks, kept) == 0


def test_marks_that_were_sent_long_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_MAX_SENT", 2 * len(CHAT.marks))
    kept = sent(CHAT)
    for number in range(9):
        kept.sent(of(TextPrompt(f"{number} {WORDS}")), 1000.0)
    assert num_known(CHAT.marks, kept) == 0


def test_a_conversation_goes_where_its_beginning_is_unless_that_replica_has_too_much_to_do() -> None:
    num_bytes = CHAT.num_bytes
    for work, expected in (
        (Work(0, 0, 0), "a"),
        (Work(2, 2, 0), "a"),
        (Work(9, 9, 0), "a"),
        (Work(9, 9, 3 * num_bytes), "b"),
        (Work(1, 1, 5 * num_bytes), "b"),
    ):
        replicas = [Played("a", work, sent(CHAT)), Played("b", Work(work.num_requests // 3, 0, 0)), Played("c", work)]
        assert cheapest(replicas, CHAT).name == expected, work


def test_new_conversations_spread_by_requests_and_then_by_what_is_kept() -> None:
    other, full = of(TextPrompt("x" * 9000)), Kept()
    full.told(b"".join(other.marks), 0.0)
    assert cheapest([Played("a", Work(1, 1, 0)), Played("b")], CHAT).name == "b"
    assert cheapest([Played("a", Work(0, 1, 0)), Played("b")], CHAT).name == "b"  # requests to other models
    assert cheapest([Played("a", kept=full), Played("b")], CHAT).name == "b"
    assert {cheapest([Played("a"), Played("b")], CHAT).name for _ in range(99)} == {"a", "b"}
    assert cheapest([Played("a", Work(1, 1, 0)), Played("b")], None).name == "b"


def test_all_frontends_send_a_group_to_the_same_replica_and_groups_spread() -> None:
    replicas = [Played(name) for name in "abcd"]
    chosen = {}
    for number in range(200):
        mine = replace(CHAT, group=f"session-{number}")
        chosen[number] = {cheapest(order, mine).name for order in (replicas, replicas[::-1])}
        assert len(chosen[number]) == 1
    counts = [sum(name in each for each in chosen.values()) for name in "abcd"]
    assert min(counts) > 25
    busy = [Played(name, Work(9, 9, 0)) if {name} == chosen[1] else Played(name, Work(3, 3, 0)) for name in "abcd"]
    assert {cheapest(busy, replace(CHAT, group="session-1")).name} != chosen[1]
