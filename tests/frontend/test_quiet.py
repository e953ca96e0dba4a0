"""Waiting until nothing is under way."""

from __future__ import annotations

from frontend.errors import EngineFailed
from frontend.quiet import wait_until_quiet
from tests.fakes import FakeTriton


async def test_it_ends_when_the_last_sequence_has() -> None:
    triton = FakeTriton()
    triton.num_active = [2, 1, 1]
    assert await wait_until_quiet(triton, pause_s=0.01, timeout_s=60) == (True, "nothing is under way")
    assert triton.num_active == []


async def test_it_gives_up_when_the_time_is_over() -> None:
    triton = FakeTriton()
    triton.num_active = [7] * 1000
    is_quiet, why = await wait_until_quiet(triton, pause_s=0, timeout_s=0.01)
    assert (is_quiet, why) == (False, "7 sequences are under way after 0.01 s")


async def test_for_a_triton_that_does_not_answer_there_is_nothing_to_wait() -> None:
    triton = FakeTriton()
    triton.stats_error = EngineFailed()
    assert (await wait_until_quiet(triton, pause_s=0, timeout_s=60))[0]
