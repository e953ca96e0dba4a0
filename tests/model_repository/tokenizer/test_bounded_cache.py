"""The last few results of costly work."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.contract.request import ChatPrompt
from model_repository.tokenizer.bounded_cache import MAX_BYTES, BoundedCache


def no_bytes(result: object) -> int:
    return 0


class Counted:
    """Makes something new each time."""

    def __init__(self) -> None:
        self.num = 0

    def __call__(self) -> int:
        self.num += 1
        return self.num


def test_a_result_of_the_same_inputs_is_computed_once() -> None:
    recent, make = BoundedCache[int](no_bytes), Counted()
    chats = [ChatPrompt(({"role": "user", "content": "a"},), template_kwargs={"b": [1]}) for _ in range(3)]
    assert [recent.get((chat, True), make) for chat in chats] == [1, 1, 1]
    assert recent.get((chats[0], False), make) == 2


@pytest.mark.parametrize("other", [{"a": True}, {"a": 1.0}, {"a": "1"}, {"b": 2, "a": 1}])
def test_equal_inputs_of_other_types_have_their_own_results(other: dict[str, Any]) -> None:
    recent, make = BoundedCache[int](no_bytes), Counted()
    first = {"a": 1, "b": 2} if "b" in other else {"a": 1}
    assert recent.get(ChatPrompt((), template_kwargs=first), make) == 1
    assert recent.get(ChatPrompt((), template_kwargs=other), make) == 2


def test_the_least_recently_used_result_is_dropped_first() -> None:
    recent, make = BoundedCache[int](lambda result: MAX_BYTES // 9), Counted()
    for number in range(8):
        recent.get(number, make)
    assert recent.get(0, make) == 1
    assert recent.get("one more", make) == 9
    assert recent.get(0, make) == 1
    assert recent.get(1, make) == 10


@pytest.mark.parametrize("max_bytes", [MAX_BYTES, 1_000_000])
def test_many_results_stay_within_the_bytes_of_the_cache(max_bytes: int) -> None:
    recent, make = BoundedCache[int](lambda result: 10_000, max_bytes=max_bytes), Counted()
    for number in range(2_000):
        recent.get(number, make)
        assert recent.num_bytes <= max_bytes
    assert recent.num_bytes > max_bytes // 2


@pytest.mark.parametrize(("key", "num_bytes"), [("a" * MAX_BYTES, 0), ("a", MAX_BYTES)])
def test_a_large_result_is_not_kept(key: str, num_bytes: int) -> None:
    recent, make = BoundedCache[int](lambda result: num_bytes), Counted()
    assert [recent.get(key, make) for _ in range(2)] == [1, 2]
    assert recent.num_bytes == 0


def test_an_old_result_is_computed_again() -> None:
    now = 0.0
    recent, make = BoundedCache[int](no_bytes, 5, lambda: now), Counted()
    results = []
    for now in (0.0, 4.0, 5.0, 5.5, 10.0, 11.0):  # noqa: B007 (the clock reads it)
        results.append(recent.get("a", make))
    assert results == [1, 1, 1, 2, 2, 3]


def test_a_result_slower_than_its_lifetime_is_kept() -> None:
    now = 0.0

    def make() -> float:
        nonlocal now
        now += 9.0
        return now

    recent = BoundedCache[float](no_bytes, 5, lambda: now)
    assert [recent.get("a", make) for _ in range(2)] == [9.0, 9.0]


def deep_list() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("inputs", [deep_list(), 2**64, "\ud800"], ids=["deep", "large", "surrogate"])
def test_a_result_of_inputs_without_a_text_is_not_kept(inputs: object) -> None:
    recent, make = BoundedCache[int](no_bytes), Counted()
    assert [recent.get(inputs, make) for _ in range(2)] == [1, 2]
