"""What a probe says of engines that work, and of others."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec.structs
import pytest

from frontend.errors import APIError, EngineFailed, QueueFull, StageUnhealthy, TritonUnreachable
from frontend.triton.health_checks import check_health
from frontend.triton.models import ModelSnapshot, ServedModel
from model_repository.contract.output import EngineStats
from tests.fakes import DEMO, FakeTriton, chunks, served_model


async def answer(triton: FakeTriton, *, model: str = "", is_generating: bool = False) -> tuple[bool, str]:
    return (await check_health(triton, model=model, deadline_s=10.0, stall_s=60.0, is_generating=is_generating))[:2]


async def test_engines_that_answer_are_named() -> None:
    triton = FakeTriton(models=[DEMO, served_model("org/other")])
    assert await answer(triton) == (True, "org--demo answers, org--other answers")
    assert await answer(triton, model="org/other") == (True, "org--other answers")
    assert await answer(triton, model="org/none") == (False, "org/none: not served")
    assert triton.requests == []


async def test_each_replica_of_a_model_is_checked() -> None:
    triton = FakeTriton(chunks("x"), models=[DEMO, served_model(replica=2)])
    for model in ("", DEMO.id):
        assert await answer(triton, model=model) == (True, "org--demo answers, org--demo@2 answers")
    assert await answer(triton, is_generating=True) == (True, "org--demo made a token, org--demo@2 made a token")
    assert triton.asked == ["org--demo", "org--demo@2"]


async def test_a_token_is_asked_for_where_it_is_wanted() -> None:
    triton = FakeTriton(chunks("x"))
    assert await answer(triton, is_generating=True) == (True, "org--demo made a token")
    [request] = triton.requests
    assert (request.params.max_tokens, request.params.priority) == (1, -1), "one token, before those that wait"
    triton.script = [EngineFailed()]
    assert (await answer(triton, is_generating=True))[0] is False


class Busy(FakeTriton):
    """An engine at which others wait; it makes some tokens for them between two looks."""

    def __init__(self, script: list[Any], tokens_per_look: int) -> None:
        super().__init__(script)
        self.tokens_per_look = tokens_per_look
        self.num_step_tokens = 0

    async def engine_stats(self, ensemble: str, timeout_s: float) -> EngineStats:
        """Answer, a look later."""
        self.num_step_tokens += self.tokens_per_look
        stats = await super().engine_stats(ensemble, timeout_s)
        return msgspec.structs.replace(stats, num_waiting=3, num_step_tokens=self.num_step_tokens)


@pytest.mark.parametrize("obstacle", [QueueFull("The model's queue is full."), asyncio.Event()])
async def test_an_engine_that_is_too_busy_for_a_probe_is_well_while_it_makes_tokens(
    obstacle: APIError | asyncio.Event,
) -> None:
    async def result(tokens_per_look: int) -> tuple[bool, str]:
        triton = Busy([obstacle], tokens_per_look)
        return (await check_health(triton, model="", deadline_s=1.0, stall_s=60.0, is_generating=True))[:2]

    assert await result(2) == (True, "org--demo is busy")
    assert (await result(0))[0] is False


async def test_an_idle_engine_whose_tokens_do_not_arrive_is_a_failure() -> None:
    triton = FakeTriton([asyncio.Event()])
    assert (await check_health(triton, model="", deadline_s=1.0, stall_s=60.0, is_generating=True)).is_well is False


async def test_nothing_served_is_a_failure() -> None:
    assert await answer(FakeTriton(models=[])) == (False, "no model is ready")


@pytest.mark.parametrize("models", [[], [served_model("org/other", aliases=("short",)), DEMO]])
async def test_all_names_of_served_models_are_known_after_a_check_of_all(models: list[ServedModel]) -> None:
    triton = FakeTriton(chunks("x"), models=models)
    result = await check_health(triton, model="", deadline_s=10.0, stall_s=60.0, is_generating=True)
    assert result.names == tuple(sorted(ModelSnapshot(ready={model.id: model for model in models}).names()))
    triton.script = [EngineFailed()]
    result = await check_health(triton, model="", deadline_s=10.0, stall_s=60.0, is_generating=True)
    assert result.names == (None if models else ())


async def test_an_engine_that_is_down_or_in_one_step_for_too_long_is_a_failure() -> None:
    triton = FakeTriton()
    triton.step_age_ms = 61_000
    assert (await answer(triton))[0] is False
    triton.step_age_ms, triton.stats_error = 0, StageUnhealthy("org--demo__engine")
    result = await check_health(triton, model="", deadline_s=10.0, stall_s=60.0, is_generating=False)
    assert (result.is_well, result.is_silent) == (False, False)


async def test_one_that_says_nothing_fails_at_the_deadline() -> None:
    class Silent(FakeTriton):
        async def engine_stats(self, ensemble: str, timeout_s: float) -> EngineStats:
            await asyncio.Event().wait()
            raise AssertionError

    result = await check_health(Silent(), model="", deadline_s=0.01, stall_s=1.0, is_generating=False)
    assert result == (False, "no answer within 0.01 s", True, None)


async def test_one_that_is_not_there_is_silent() -> None:
    triton = FakeTriton()
    triton.snapshot_error = TritonUnreachable()
    assert (await check_health(triton, model="", deadline_s=10.0, stall_s=60.0, is_generating=False)).is_silent
