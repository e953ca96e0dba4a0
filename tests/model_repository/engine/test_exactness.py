"""Each answer beside other requests is the answer alone. The check itself is tested with planted faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from model_repository.engine import scheduler
from model_repository.engine.llama_cpp import context
from model_repository.engine.llama_cpp.context import SlotCache
from model_repository.runtimes import NGRAM
from tests.exactness.answers import Difference
from tests.exactness.mix import Mix, build_demo

pytestmark = pytest.mark.usefixtures("servers")

NUM_REQUESTS = 60


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo(tmp_path_factory.mktemp("demo"))


@pytest.mark.parametrize(("num_contexts", "speculative"), [(1, None), (2, None), (1, NGRAM)])
def test_answers_beside_other_requests_are_those_alone(
    artifact: Path, num_contexts: int, speculative: str | None, record_property: Callable[[str, object], None]
) -> None:
    with closing(Mix(artifact, num_contexts=num_contexts, speculative=speculative)) as mix:
        mix.run(seed=num_contexts, num_requests=NUM_REQUESTS)
        assert (mix.num_accepted_tokens > 0) == (speculative is not None)
    record_property("differ by rounding", mix.comparison.exceptions)
    assert mix.comparison.num_equal > 0.9 * NUM_REQUESTS


# --- planted faults -------------------------------------------------------------------------------------------------


class _Copy(bytes):
    """Tokens that are copied by the library itself."""

    slot: int


class LateCache(SlotCache):
    """Copies as llama.cpp's own function does: at the next decode."""

    def read(self, slot: int) -> bytes:
        copy = _Copy(super().read(slot))
        copy.slot = slot
        return copy

    def load(self, slot: int, state: bytes) -> None:
        if not isinstance(state, _Copy):
            super().load(slot, state)
            return
        self._context.memory_seq_rm(slot, -1, -1)
        self._context.memory_seq_cp(state.slot, slot, -1, -1)


def copy_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "SlotCache", LateCache)


def reuse_tokens_of_other_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler._Slot, "num_common", lambda slot, job: job.num_reusable(slot.token_ids))


def take_one_image_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "blake2b", lambda *_, **__: hashlib.sha256())


def forget_to_move_the_tokens_of_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    close_gaps = scheduler.Scheduler._close_gaps

    def forgetful(each: scheduler.Scheduler) -> None:
        kept = {slot.index: list(slot.token_ids) for slot in each._slots if slot.sequence is None}
        close_gaps(each)
        for slot in each._slots:
            if slot.sequence is None and kept.get(slot.index) != slot.token_ids:
                each._kv_cache.trim(slot.index, 0)

    monkeypatch.setattr(scheduler.Scheduler, "_close_gaps", forgetful)


@pytest.mark.parametrize(
    "plant",
    [copy_late, reuse_tokens_of_other_adapters, take_one_image_for_another, forget_to_move_the_tokens_of_a_gap],
)
def test_the_check_sees_a_planted_fault(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with closing(Mix(artifact)) as mix, pytest.raises(Difference):
        for seed in range(20):  # threads decide what meets in a step
            mix.run(seed, NUM_REQUESTS)
