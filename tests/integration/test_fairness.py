"""Two frontends send more than their engine can serve; the engine knows which requests are urgent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.replicas import frontend_of, until
from tests.integration.stack import MAX_SEQUENCES_ALONE, PACED_MODEL, Stack
from tests.overload import ask, client_of

pytestmark = pytest.mark.alone

BODY = {"model": PACED_MODEL, "prompt": "a", "max_tokens": 40, "ignore_eos": True}


async def test_between_frontends_the_engine_lets_the_urgent_go_first(paced_stack: Stack, tmp_path: Path) -> None:
    def are_waiting(number: int) -> bool:
        stats = paced_stack.stats(PACED_MODEL)
        return (stats.num_active, stats.num_waiting) == (MAX_SEQUENCES_ALONE, number)

    with frontend_of([paced_stack], tmp_path) as first, frontend_of([paced_stack], tmp_path) as second:
        async with client_of(first.url) as http, client_of(second.url) as other_http:
            long = [BODY | {"max_tokens": 1900}] * (MAX_SEQUENCES_ALONE - 1)
            occupants = [asyncio.create_task(ask(http, body)) for body in [BODY | {"max_tokens": 200}, *long]]
            await until(lambda: are_waiting(0), "the engine is full")
            patient = asyncio.create_task(ask(http, BODY | {"service_tier": "flex"}))
            await until(lambda: are_waiting(1), "one waits")
            urgent = asyncio.create_task(ask(other_http, BODY | {"priority": -1}))
            await until(lambda: are_waiting(2), "two wait")
            answers = await asyncio.gather(occupants[0], urgent, patient)
            for occupant in occupants:
                occupant.cancel()
    assert [answer.status for answer in answers] == [200] * 3
    assert list(answers) == sorted(answers, key=lambda answer: answer.ended_s)
