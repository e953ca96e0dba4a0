"""Admission, batches and prefix reuse, over a KV cache that is a list of token ids per slot."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.contract.marks import ENDS, marks_of
from model_repository.engine.prefill_budget import PrefillBudget
from model_repository.engine.scheduler import MAX_DECODED_TOKENS, MIN_COPIED_TOKENS, Chunk, Job, Scheduler

type CachedToken = tuple[int, tuple[str, str]]  # token id, and the adapter and salt under which it was computed

PROMPT = tuple(range(100, 200))


class FakeKVCache:
    """A KV cache of lists. Its operations take effect at once, as SlotCache's do on the real llama.cpp.

    What it cannot show (wrong values of the right tokens), `tests/exactness` does.
    """

    def __init__(self, num_slots: int) -> None:
        self.slots: list[list[CachedToken]] = [[] for _ in range(num_slots)]
        self.firsts = [0] * num_slots  # position of each slot's first token that is not gone
        self.copies: list[tuple[int, int]] = []
        self.is_recurrent = False
        self.window = 1000

    def read(self, slot: int) -> bytes:
        tokens = self.slots[slot]
        return pickle.dumps((slot, tokens, max(self.firsts[slot], len(tokens) - self.window)))

    def load(self, slot: int, state: bytes) -> None:
        source, self.slots[slot], self.firsts[slot] = pickle.loads(state)
        self.copies.append((source, slot))

    def can_trim(self, slot: int, num_tokens: int, *, is_copied: bool) -> bool:
        num_cached, first = len(self.slots[slot]), self.firsts[slot]
        if is_copied:
            first = max(first, num_cached - self.window)
        is_in_window = not self.is_recurrent and first <= max(0, num_tokens + 1 - self.window)
        return num_tokens == num_cached or is_in_window

    def trim(self, slot: int, num_tokens: int) -> None:
        assert num_tokens <= len(self.slots[slot])
        assert num_tokens == 0 or self.can_trim(slot, num_tokens, is_copied=False)
        del self.slots[slot][num_tokens:]
        if num_tokens == 0:
            self.firsts[slot] = 0

    def clear(self) -> None:
        self.slots = [[] for _ in self.slots]
        self.firsts = [0] * len(self.slots)


class FixedBudget(PrefillBudget):
    """A fixed number of tokens, at any cost."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        self._max_tokens = max_tokens

    @property
    def max_tokens(self) -> int:
        return self._max_tokens


class Fake:
    """A scheduler with instant steps: every drawn token is a new one, or with a period one of few, mostly in turn."""

    def __init__(self, num_slots: int = 2, *, max_prefill_tokens: int = 128, **limits: Any) -> None:
        self.cache = FakeKVCache(num_slots)
        self.max_step_tokens: int = limits.setdefault("max_step_tokens", 512)
        self.scheduler = Scheduler(num_slots, self.cache, prefill_budget=FixedBudget(max_prefill_tokens), **limits)
        self.texts: dict[int, list[CachedToken]] = {}  # prompt and drawn tokens of each sequence
        self.num_cached: dict[int, int] = {}
        self.num_computed: dict[int, int] = {}
        self._drawn = 0
        self.period: int | None = None
        self.max_tokens = 1000

    def submit(
        self,
        sequence: int,
        prompt: Sequence[int],
        adapter: str = "",
        cache_salt: str = "",
        *,
        is_scored: bool = False,
        queue_order_s: float = 0.0,
        **fields: Any,
    ) -> None:
        self.texts[sequence] = [(token_id, (adapter, cache_salt)) for token_id in prompt]
        job = Job(sequence, prompt, adapter, cache_salt, is_scored, queue_order_s, max_tokens=self.max_tokens, **fields)
        self.scheduler.submit(job)

    def draw(self, text: list[CachedToken], family: tuple[str, str]) -> int:
        self._drawn += 1
        drawn = 1000 + (len(text) % self.period if self.period and self._drawn % 37 else self._drawn)
        text.append((drawn, family))
        return drawn

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        self.scheduler.free(sequence, is_reusable=is_reusable)
        del self.texts[sequence]

    def step(self) -> list[Chunk]:
        """Compute a step and check it against the text of each sequence."""
        chunks = self.scheduler.next_step()
        assert sum(len(chunk.token_ids) for chunk in chunks) <= self.max_step_tokens
        slots = [chunk.running.slot.index for chunk in chunks]
        assert slots == sorted(slots)
        if len(chunks) == self.scheduler.num_running > 0:
            assert slots == list(range(slots[0], slots[0] + len(slots))), "a gap between slots"
        for chunk in chunks:
            running, cached = chunk.running, self.cache.slots[chunk.running.slot.index]
            sequence, adapter = running.job.sequence, running.job.adapter
            family = adapter, running.job.cache_salt
            text = self.texts[sequence]
            self.num_cached.setdefault(sequence, running.num_cached_tokens)
            self.num_computed[sequence] = self.num_computed.get(sequence, 0) + len(chunk.token_ids)
            assert chunk.token_ids, "an empty chunk"
            assert adapter == chunks[0].running.job.adapter, "two adapters in one step"
            assert chunk.position == len(cached)
            cached.extend((token_id, family) for token_id in chunk.token_ids)
            assert chunk.is_sampled == (len(cached) - chunk.num_drafted == len(text))
            next_token_id, num_accepted = None, 0
            if chunk.is_sampled:
                next_token_id = self.draw(text, family)
                for token_id in chunk.token_ids[len(chunk.token_ids) - chunk.num_drafted :]:
                    if token_id != next_token_id:
                        break
                    num_accepted += 1
                    next_token_id = self.draw(text, family)
            self.scheduler.record(chunk, next_token_id, num_accepted)
            assert cached == text[: len(text) - 1 if chunk.is_sampled else len(cached)]
        return chunks

    def run(self, sequence: int, prompt: Sequence[int], *family: str, num_steps: int = 3, **fields: Any) -> int:
        """Run one sequence for some steps and free it; return the number of reused tokens."""
        self.submit(sequence, prompt, *family, **fields)
        for _ in range(num_steps):
            self.step()
        self.free(sequence)
        return self.num_cached[sequence]


@pytest.mark.parametrize("num_known", [0, 1, 511, 512, 513, 1024, 1300])
def test_the_known_beginning_of_a_long_prompt_ends_at_the_first_other_token(num_known: int) -> None:
    prompt = tuple(range(1400))
    job = Job(0, prompt)
    assert job.num_reusable([*prompt[:num_known], -1, *prompt[num_known + 1 :]]) == num_known
    assert job.num_reusable(prompt[:num_known]) == num_known
    assert job.num_reusable([*prompt, 5]) == 1399  # the last token is computed for its logits


def sequences(chunks: Sequence[Chunk]) -> list[int]:
    return sorted(chunk.running.job.sequence for chunk in chunks)


def test_sequences_wait_in_order_for_a_slot() -> None:
    fake = Fake(num_slots=2)
    for sequence in (1, 2, 3, 4):
        fake.submit(sequence, (sequence,))
    assert sequences(fake.step()) == [1, 2]
    assert (fake.scheduler.num_running, fake.scheduler.num_waiting) == (2, 2)
    fake.free(2)
    assert sequences(fake.step()) == [1, 3]
    fake.free(1)
    assert sequences(fake.step()) == [3, 4]


def test_the_sequences_around_one_that_ends_move_together() -> None:
    fake = Fake(num_slots=4)
    for sequence in (1, 2, 3):
        fake.submit(sequence, (sequence,) * 5)
    fake.step()
    fake.free(2)
    assert len(fake.step()) == 2  # the fake checks that their slots are adjacent, with their tokens


def test_a_sequence_earlier_in_queue_order_passes_waiting_ones() -> None:
    fake = Fake(num_slots=1)
    for sequence, queue_order_s in ((1, 10.0), (2, 10.0), (3, 5.0), (4, 10.0)):
        fake.submit(sequence, (5, 6), queue_order_s=queue_order_s)
        fake.step()
    for sequence in (3, 2, 4):  # the first of them runs already
        fake.free(fake.step()[0].running.job.sequence)
        assert sequences(fake.step()) == [sequence]


def test_a_prompt_is_prefilled_in_chunks_beside_decoding_sequences() -> None:
    fake = Fake(max_step_tokens=64, max_prefill_tokens=16)
    fake.submit(1, (5,))
    fake.step()
    fake.submit(2, PROMPT)
    steps = [[(chunk.running.job.sequence, len(chunk.token_ids)) for chunk in fake.step()] for _ in range(7)]
    assert steps == [[(1, 1), (2, 16)]] * 6 + [[(1, 1), (2, 4)]]
    assert sequences(fake.step()) == [1, 2]


def test_a_short_prompt_does_not_wait_for_the_long_ones_of_another_sender() -> None:
    """Seven prompts of a whole context window delayed the first token of everybody by 18 s."""
    fake = Fake(4, max_step_tokens=100)
    for sequence in (0, 1, 2):
        fake.submit(sequence, range(1000 * sequence, 1000 * sequence + 90), sender="a")
    fake.submit(3, range(5000, 5010), sender="b")
    steps = [{chunk.running.job.sequence: len(chunk.token_ids) for chunk in fake.step()} for _ in range(2)]
    assert steps[0] == {3: 10, 0: 90}
    assert steps[1] == {0: 1, 3: 1, 1: 90, 2: 8}


def test_long_prompts_of_two_senders_are_prefilled_together() -> None:
    fake = Fake(4, max_step_tokens=100)
    for sequence, sender in enumerate("aab"):
        fake.submit(sequence, range(1000 * sequence, 1000 * sequence + 90), sender=sender)
    assert {chunk.running.job.sequence: len(chunk.token_ids) for chunk in fake.step()} == {0: 50, 2: 50}


def test_alone_a_prompt_fills_the_step() -> None:
    fake = Fake(max_step_tokens=64, max_prefill_tokens=16)
    fake.submit(1, PROMPT)
    assert [len(chunk.token_ids) for _ in range(3) for chunk in fake.step()] == [64, 36, 1]


@pytest.mark.parametrize(
    ("first", "second", "num_reused"),
    [
        (PROMPT, (*PROMPT, 7, 8), len(PROMPT)),
        (PROMPT[:4], (*PROMPT[:4], 7, 8), 4),
        (PROMPT, PROMPT, len(PROMPT) - 1),  # the last token of a prompt is always computed
    ],
)
def test_the_next_sequence_reuses_the_tokens_of_a_finished_one_where_they_are(
    first: Sequence[int], second: Sequence[int], num_reused: int
) -> None:
    fake = Fake()
    fake.run(1, first)
    assert fake.scheduler.num_kv_tokens_used == 0
    assert fake.run(2, second) == num_reused
    assert fake.cache.copies == []


def test_a_continued_conversation_reuses_the_answer_too() -> None:
    fake = Fake()
    fake.submit(1, PROMPT)
    for _ in range(4):
        fake.step()
    answered = [token_id for token_id, _ in fake.texts[1][:-1]]  # the last token drawn was never computed
    fake.free(1)
    assert fake.run(2, (*answered, 7, 8)) == len(answered)


def test_the_tokens_of_a_running_sequence_are_copied() -> None:
    fake = Fake()
    fake.submit(1, PROMPT)
    fake.step()
    assert fake.scheduler.num_kv_tokens_used == len(PROMPT)
    fake.submit(2, (*PROMPT, 7))
    fake.step()
    assert (fake.num_cached[2], fake.cache.copies) == (len(PROMPT), [(0, 1)])
    fake.submit(4, PROMPT)  # waits
    fake.step()  # checks that both went their own way
    fake.scheduler.forget_all()
    assert (fake.scheduler.num_running, fake.scheduler.num_waiting, fake.cache.slots) == (0, 0, [[], []])
    assert fake.run(3, PROMPT) == 0


def test_a_short_common_beginning_is_neither_waited_for_nor_copied() -> None:
    fake = Fake(max_step_tokens=110)
    fake.submit(1, PROMPT)
    fake.submit(2, (*PROMPT[: MIN_COPIED_TOKENS - 1], 7))
    assert sequences(fake.step()) == [1, 2]
    assert (fake.num_cached[2], fake.cache.copies) == (0, [])


def test_reuse_does_not_throw_away_a_long_conversation_for_a_few_tokens() -> None:
    fake = Fake(num_slots=2)
    fake.run(1, PROMPT)
    fake.run(2, PROMPT[:10])  # uses the other slot, although the first has the same beginning
    assert fake.run(3, (*PROMPT, 7)) == len(PROMPT)


def test_without_reuse_the_least_recently_used_of_equal_slots_is_claimed() -> None:
    fake = Fake(num_slots=2)
    fake.run(1, (7, 8, 9))
    fake.run(2, (1, 2, 3))
    fake.run(3, (4, 5, 6))  # uses the slot of 1
    assert fake.run(4, (1, 2, 3, 9)) == 3
    assert fake.run(5, PROMPT) == 0


def test_a_sequence_freed_in_prefill_leaves_its_computed_tokens() -> None:
    fake = Fake(max_step_tokens=60)
    assert fake.run(1, PROMPT, num_steps=1) == 0
    assert fake.run(2, PROMPT) == 60


def test_a_slot_that_can_be_reused_is_chosen_before_one_with_more_tokens_that_cannot() -> None:
    """A recurrent model has one state for all tokens of a slot."""
    fake = Fake(num_slots=2)
    fake.cache.is_recurrent = True
    fake.run(1, (*PROMPT, 7), num_steps=1)
    fake.run(2, PROMPT[:40], num_steps=1)
    assert fake.run(3, (*PROMPT, 8)) == 40
    assert fake.run(4, (*PROMPT, 7, 8)) == len(PROMPT) + 1


def test_the_tokens_before_a_sliding_window_are_reused_only_where_they_are() -> None:
    fake = Fake(num_slots=2)
    fake.cache.window = 8
    fake.submit(1, PROMPT)
    fake.step()
    fake.submit(2, (*PROMPT[:60], 7))
    fake.step()
    assert (fake.num_cached[2], fake.cache.copies) == (0, [])
    fake.free(1)
    assert fake.run(3, (*PROMPT[:60], 8)) == 60


# --- prompts that begin alike and come together ----------------------------------------------------------------------


@pytest.mark.parametrize(("is_recurrent", "window"), [(False, 1000), (True, 1000), (False, 8)])
def test_sequences_with_one_prompt_compute_it_once(is_recurrent: bool, window: int) -> None:
    """The `n` completions of a request: the first computes the prompt, the others copy its KV tokens."""
    fake = Fake(num_slots=8, max_step_tokens=30)
    fake.cache.is_recurrent, fake.cache.window = is_recurrent, window
    for sequence in range(8):
        fake.submit(sequence, PROMPT)
    while len(fake.num_computed) < 8:
        fake.step()
    assert fake.num_cached == {0: 0} | dict.fromkeys(range(1, 8), len(PROMPT) - 1)
    assert len(fake.cache.copies) == 7


def test_others_pass_sequences_that_wait_for_a_prompt() -> None:
    fake = Fake(num_slots=3, max_step_tokens=60, max_prefill_tokens=60)
    for sequence, prompt in ((1, PROMPT), (2, PROMPT), (3, (7, 8))):
        fake.submit(sequence, prompt)
    assert sequences(fake.step()) == [1]
    assert fake.scheduler.num_waiting == 1
    assert sequences(fake.step()) == [1, 3]
    assert sequences(fake.step()) == [1, 2, 3]


def test_only_the_beginning_that_is_shared_is_waited_for() -> None:
    fake = Fake(max_step_tokens=50)
    fake.submit(1, tuple(range(1000, 2000)))
    fake.submit(2, (*range(1000, 1040), 5))
    assert [len(chunk.token_ids) for chunk in fake.step()] == [40]  # some KV caches copy no part of a slot
    assert sequences(fake.step()) == [1]  # a full step
    assert fake.scheduler.num_waiting == 0
    assert len(fake.cache.copies) == 1


def test_a_sequence_does_not_wait_for_a_beginning_that_it_can_reuse_now() -> None:
    fake = Fake(num_slots=3, max_step_tokens=110)
    fake.run(1, PROMPT[:80])
    fake.submit(2, PROMPT)  # goes on in the slot of 1
    fake.submit(3, PROMPT)
    assert sequences(fake.step()) == [2, 3]


def test_a_leader_may_be_freed() -> None:
    fake = Fake(num_slots=3, max_step_tokens=40)
    for sequence in (1, 2, 3):
        fake.submit(sequence, PROMPT)
    fake.step()
    fake.free(1)
    assert sequences(fake.step()) == [2]
    assert fake.num_cached[2] == 40
    fake.step()
    fake.step()
    assert fake.num_cached[3] == len(PROMPT) - 1


@pytest.mark.parametrize("others", [("b", ""), ("a", "salt")])
def test_a_prompt_under_another_adapter_or_salt_is_neither_waited_for_nor_reused(others: tuple[str, str]) -> None:
    fake = Fake(num_slots=3)
    fake.submit(1, PROMPT, "a")
    fake.submit(2, PROMPT, *others)
    fake.step()
    assert fake.scheduler.num_waiting == 0
    for _ in range(4):
        fake.step()
    fake.run(3, PROMPT, *others)
    assert (fake.num_cached[1], fake.num_cached[2], fake.num_cached[3]) == (0, 0, len(PROMPT) - 1)


def test_a_scored_prompt_neither_waits_nor_reuses() -> None:
    fake = Fake(num_slots=3, max_step_tokens=250, max_scored_tokens=250)
    fake.run(1, PROMPT)
    fake.submit(2, PROMPT, is_scored=True)
    fake.submit(3, PROMPT, is_scored=True)
    assert sequences(fake.step()) == [2, 3]
    assert (fake.num_cached[2], fake.num_cached[3]) == (0, 0)


def test_scored_prompts_are_computed_in_smaller_pieces_beside_others() -> None:
    """The logits of a whole step, read one row after the other, would have stopped everybody for seconds."""
    fake = Fake(num_slots=3, max_step_tokens=90, max_scored_tokens=16)
    fake.submit(1, PROMPT[:20], is_scored=True)
    fake.submit(2, PROMPT[::-1], is_scored=True)
    fake.submit(3, PROMPT)
    steps = [[(chunk.running.job.sequence, len(chunk.token_ids)) for chunk in fake.step()] for _ in range(2)]
    assert steps == [[(1, 16), (3, 74)], [(1, 4), (2, 12), (3, 26)]]


# --- adapters --------------------------------------------------------------------------------------------------------


def test_adapters_alternate() -> None:
    fake = Fake(num_slots=4)
    for sequence, adapter in ((1, ""), (2, "b"), (3, "a"), (4, "b")):
        fake.submit(sequence, (5, 6), adapter)
    assert [sequences(fake.step()) for _ in range(4)] == [[3], [2, 4], [1], [3]]


def test_a_prompt_of_one_adapter_is_limited_beside_decoding_under_another() -> None:
    fake = Fake(max_step_tokens=64, max_prefill_tokens=16)
    fake.submit(1, (5,), "a")
    fake.step()
    fake.submit(2, PROMPT, "b")
    assert [len(chunk.token_ids) for _ in range(4) for chunk in fake.step()] == [16, 1, 16, 1]


# --- drafts ----------------------------------------------------------------------------------------------------------


def drafting(num_slots: int = 2, period: int | None = 5) -> Fake:
    fake = Fake(num_slots, has_drafts=True)
    fake.period = period
    return fake


def test_drafted_tokens_that_are_drawn_need_no_step_of_their_own() -> None:
    fake = drafting()
    fake.submit(1, PROMPT)
    sizes = [len(chunk.token_ids) for _ in range(30) for chunk in fake.step()]
    assert max(sizes[1:]) == MAX_DECODED_TOKENS
    assert len(fake.texts[1]) - len(PROMPT) == 30 + fake.scheduler.num_accepted_tokens > 40
    assert fake.scheduler.num_draft_tokens == sum(sizes[1:]) - 29


def test_many_sequences_draft_less_and_each_as_much_as_the_others() -> None:
    """llama.cpp computed the second tokens of some in a pass of their own: four streams made 0.78 of their tokens."""
    for num_slots, most in ((2, 4), (3, 2), (4, 2), (5, 1), (9, 1)):
        fake = drafting(num_slots)
        for sequence in range(num_slots):
            fake.submit(sequence, (sequence,) * (1 + sequence))
        fake.step()
        sizes = [{len(chunk.token_ids) for chunk in fake.step()} for _ in range(40)]
        assert {len(each) for each in sizes} == {1}
        assert max(max(each) for each in sizes) == most


def test_a_completion_is_not_drafted_beyond_its_end() -> None:
    """Its tokens would not fit in the slot, and llama.cpp would refuse the step of all."""
    for max_tokens in range(1, 40):
        fake = drafting()
        fake.max_tokens = max_tokens
        fake.submit(1, PROMPT)
        while len(fake.texts[1]) < len(PROMPT) + max_tokens:
            fake.step()
            assert len(fake.cache.slots[0]) < len(PROMPT) + max_tokens
        assert len(fake.texts[1]) == len(PROMPT) + max_tokens


def test_a_kv_cache_that_cannot_forget_gets_no_drafts(caplog: pytest.LogCaptureFixture) -> None:
    fake = drafting()
    fake.cache.is_recurrent = True
    fake.submit(1, PROMPT)
    fake.submit(2, PROMPT)
    assert all(len(chunk.token_ids) == 1 for _ in range(20) for chunk in fake.step()[-1:] if chunk.position >= 100)
    assert caplog.text.count("speculation is off") == 1


# --- any order -------------------------------------------------------------------------------------------------------

# Prompts with long and short common beginnings: how much of PROMPT, then a tail.
PROMPTS = st.tuples(st.integers(0, len(PROMPT)), st.lists(st.integers(0, 2), min_size=1, max_size=3)).map(
    lambda parts: (*PROMPT[: parts[0]], *parts[1])
)
JOBS = st.tuples(
    PROMPTS,
    st.sampled_from(["", "", "a", "b"]),
    st.sampled_from(["", "", "salt"]),
    st.sampled_from([False, False, True]),
)
ACTIONS = st.lists(st.one_of(st.just("step"), st.integers(0, 3), JOBS), max_size=60)


@given(ACTIONS, st.booleans(), st.sampled_from([8, 1000]), st.sampled_from([None, 3]))
def test_tokens_are_always_the_tokens_of_their_sequence(
    actions: list[str | int | tuple], is_recurrent: bool, window: int, period: int | None
) -> None:
    """Submit, free and step in any order: `Fake.step` checks every cached token against the text of its sequence."""
    fake = Fake(num_slots=3, max_step_tokens=48, max_prefill_tokens=24, has_drafts=period is not None)
    fake.cache.is_recurrent, fake.cache.window, fake.period = is_recurrent, window, period
    for number, action in enumerate(actions):
        if isinstance(action, tuple):
            prompt, adapter, cache_salt, is_scored = action
            fake.submit(number, prompt, adapter, cache_salt, is_scored=is_scored)
        elif action == "step":
            fake.step()
        elif fake.texts:
            fake.free(sorted(fake.texts)[int(action) % len(fake.texts)])
    while len(fake.texts) > fake.scheduler.num_running:  # every queued sequence gets a slot
        if fake.scheduler.num_running == 3:
            fake.free(min(set(fake.texts) & set(fake.num_computed)))
        fake.step()
    assert fake.scheduler.num_waiting == 0


@given(st.lists(JOBS, min_size=1, max_size=12))
def test_every_sequence_gets_a_token_in_time(jobs: list[tuple]) -> None:
    """Waiting for a shared prompt, or for an adapter's turn, neither starves nor blocks anybody."""
    fake = Fake(num_slots=4, max_step_tokens=48, max_prefill_tokens=24)
    waiting = set(range(len(jobs)))
    for number, (prompt, adapter, cache_salt, is_scored) in enumerate(jobs):
        fake.submit(number, prompt, adapter, cache_salt, is_scored=is_scored)
    # Each prompt needs at most 5 steps of its adapter, and each round over the adapters computes one of them.
    for _ in range(3 * 5 * len(jobs)):
        for chunk in fake.step():
            if chunk.is_sampled and chunk.running.job.sequence in waiting:
                waiting.remove(chunk.running.job.sequence)
                fake.free(chunk.running.job.sequence)
    assert not waiting


def test_the_marks_of_a_prompt_are_kept_as_long_as_its_tokens() -> None:
    fake, marks = Fake(num_slots=2), [marks_of(b"k", bytes([number]) * ENDS[19]) for number in range(3)]
    fake.submit(1, PROMPT, marks=marks[0])
    fake.step()
    assert fake.scheduler.kept_marks() == [marks[0], b""]
    fake.free(1)
    fake.submit(2, tuple(range(1000)), marks=marks[1])  # a long prompt: 128 tokens in a step beside another one
    fake.submit(3, PROMPT, marks=marks[0])
    fake.step()
    assert sorted(fake.scheduler.kept_marks()) == sorted(marks[:2])
    fake.free(2)
    assert sorted(map(len, fake.scheduler.kept_marks())) < sorted(map(len, marks[:2]))  # it was not computed to its end
    fake.free(3, is_reusable=False)
    assert fake.scheduler.kept_marks() == [b"", b""]


def test_a_long_prompt_outlives_short_ones_in_proportion_to_its_length() -> None:
    fake, long_prompt = Fake(num_slots=2), tuple(range(1000, 1100))
    fake.run(1, long_prompt)
    for number in range(2, 12):
        fake.run(number, tuple(range(20 * number, 20 * number + 20)))
        if number == 5:
            assert fake.run(100, long_prompt) == 99
    assert fake.run(101, long_prompt) == 0


def test_a_kept_prompt_outlives_any_number_of_others_until_its_time_is_over() -> None:
    now = 0.0
    fake = Fake(num_slots=4, clock=lambda: now)
    fake.run(1, PROMPT, sender="a", keep_s=60.0)
    for number in range(1000):
        fake.run(2 + number, tuple(range(2000 + 200 * number, 2150 + 200 * number)), sender="b")
    assert fake.run(2000, (*PROMPT, 1)) == len(PROMPT)
    assert fake.run(2001, PROMPT[:40]) == 39  # a copy of its beginning
    now = 61.0
    for number in range(8):
        fake.run(2100 + number, tuple(range(9000 + 200 * number, 9150 + 200 * number)))
    assert fake.run(2200, PROMPT) == 0


def test_half_of_the_slots_at_most_are_kept_in_equal_shares() -> None:
    now = 0.0
    fake = Fake(num_slots=8, clock=lambda: now)
    prompts = {
        (sender, number): tuple(range(base := 1000 * ord(sender) + 100 * number, base + 90))
        for sender in "abc"
        for number in range(6)
    }
    numbers = iter(range(1000))

    def kept(sender: str) -> list[int]:
        slots = [slot for slot in fake.scheduler._slots if slot.kept_until_s > now]
        texts = {tuple(slot.token_ids[:90]) for slot in slots}
        return [number for number in range(6) if prompts[sender, number] in texts]

    for number in range(6):
        now += 1
        fake.run(next(numbers), prompts["a", number], sender="a", keep_s=100.0)
    assert kept("a") == [2, 3, 4, 5]
    for number in range(3):
        now += 1
        fake.run(next(numbers), prompts["b", number], sender="b", keep_s=100.0)
    assert (kept("a"), kept("b")) == ([4, 5], [1, 2])
    fake.run(next(numbers), prompts["c", 0], sender="c", keep_s=100.0)
    assert sorted(map(len, map(kept, "abc"))) == [1, 1, 2]


def test_all_slots_serve_beside_kept_ones_and_a_single_slot_keeps_nothing() -> None:
    fake = Fake(num_slots=2)
    fake.run(1, PROMPT, keep_s=60.0)
    for sequence in (2, 3):
        fake.submit(sequence, (sequence,))
    fake.step()
    assert (fake.scheduler.num_running, fake.scheduler.num_waiting) == (1, 1)  # the other slot is kept
    fake.free(2)
    fake.step()
    assert fake.scheduler.num_waiting == 0
    fake.submit(4, (*PROMPT, 1))
    fake.step()
    assert (fake.scheduler.num_running, fake.num_cached[4]) == (2, len(PROMPT))
    fake.free(3)
    fake.free(4, is_reusable=False)
    for sequence in (5, 6):
        fake.submit(sequence, (sequence,))
    fake.step()
    assert fake.scheduler.num_running == 2  # the kept tokens are gone
    single = Fake(num_slots=1)
    single.run(1, PROMPT, keep_s=60.0)
    assert single.run(2, (1, 2)) == 0
