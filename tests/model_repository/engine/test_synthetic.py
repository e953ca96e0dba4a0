"""The runtime without weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_repository.contract.request import EngineRequest
from model_repository.engine.queue_order import HEAD_START_S
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.synthetic import SyntheticRuntime
from tests.model_repository.engine.engine_requests import changed

EOS = 9
REQUEST = EngineRequest(prompt_token_ids=(1, 2, 3), max_tokens=100)
# Plain ASCII letters are tokens 1, 3 and 5.
BYTE_TABLE = [b"", b"a", b"1", b"bc", b"\xc3\xa9", b"D", b" e", b"", b"", b""]


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def runtime(folder: Path, time: FakeTime, *, max_sequences: int = 2, **options: str) -> SyntheticRuntime:
    config = EngineConfig(
        runtime="synthetic",
        artifact_dir=folder,
        context_window=50,
        eos_token_ids=frozenset([EOS]),
        max_sequences=max_sequences,
        options=options,
    )
    return SyntheticRuntime(config, BYTE_TABLE, clock=time.clock, sleep=time.sleep)


def tokens(runtime: SyntheticRuntime, num_steps: int) -> list[list[tuple[int, int | None]]]:
    return [[(output.sequence, output.token_id) for output in runtime.step()] for _ in range(num_steps)]


def test_every_sequence_gets_the_plain_ascii_tokens_in_order(tmp_path: Path, time: FakeTime) -> None:
    synthetic = runtime(tmp_path, time)
    synthetic.submit(1, REQUEST)
    assert tokens(synthetic, 2) == [[(1, 1)], [(1, 3)]]
    synthetic.submit(2, REQUEST)
    assert tokens(synthetic, 2) == [[(1, 5), (2, 1)], [(1, 1), (2, 3)]]


def test_the_end_of_generation_waits_for_min_tokens(tmp_path: Path, time: FakeTime) -> None:
    synthetic = runtime(tmp_path, time, num_tokens="1")
    synthetic.submit(1, changed(REQUEST, min_tokens=3))
    assert [output[0][1] for output in tokens(synthetic, 4)] == [1, 3, 5, EOS]


def test_steps_keep_the_set_pace(tmp_path: Path, time: FakeTime) -> None:
    synthetic = runtime(tmp_path, time, itl_ms="20")
    synthetic.submit(1, REQUEST)
    tokens(synthetic, 3)
    assert time.slept_s == pytest.approx([0.02, 0.02])
    time.now_s += 0.015  # of other work
    tokens(synthetic, 1)
    assert time.slept_s[-1] == pytest.approx(0.005)
    time.now_s += 1.0
    tokens(synthetic, 1)
    assert len(time.slept_s) == 3


def test_urgent_requests_pass_waiting_ones_except_after_a_long_wait(tmp_path: Path, time: FakeTime) -> None:
    synthetic = runtime(tmp_path, time, max_sequences=1)
    patient, normal, urgent = (changed(REQUEST, priority=priority) for priority in (1, 0, -1))
    synthetic.submit(1, patient)
    time.now_s += 2 * HEAD_START_S + 1
    for sequence, request in ((2, normal), (3, patient), (4, urgent), (5, normal)):
        synthetic.submit(sequence, request)
    order = []
    while synthetic.has_work:
        [[(sequence, _)]] = tokens(synthetic, 1)
        order.append(sequence)
        synthetic.free(sequence)
    assert order == [1, 4, 2, 5, 3]


def test_a_long_prompt_is_read_for_several_steps_before_the_first_token(tmp_path: Path, time: FakeTime) -> None:
    synthetic = runtime(tmp_path, time, prefill_tokens="2")
    synthetic.submit(1, REQUEST)
    synthetic.submit(2, changed(REQUEST, prompt_token_ids=(1, 2)))
    assert tokens(synthetic, 3) == [[(2, 1)], [(1, 1), (2, 3)], [(1, 3), (2, 5)]]
