"""Several callers together want more than a model can serve: each one's share, with real keys and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.gateway.key_file import KeyLimits
from tests.frontend.gateway.key_files import KeyFile
from tests.integration.replicas import Frontend, frontend_of, until
from tests.integration.stack import MAX_SEQUENCES_ALONE, PACED_MODEL, Stack
from tests.overload import Phase, ask, bodies_of, client_of, closed_loop

pytestmark = pytest.mark.alone

BODY = {"model": PACED_MODEL, "prompt": "a", "max_tokens": 40, "ignore_eos": True}
ADMISSION = (f"--max-in-flight={MAX_SEQUENCES_ALONE}", "--max-queue-wait-s=60")  # all may wait
NUM_FLOOD, NUM_FEW = 64, 4  # requests at a time


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    key_file = KeyFile(tmp_path / "keys.json")
    for name in ("flood", "few"):
        key_file.add(name, limits=KeyLimits(max_priority=1))
    return key_file


@pytest.fixture
def frontend(paced_stack: Stack, tmp_path: Path, key_file: KeyFile) -> Iterator[Frontend]:
    """The frontend of two workers, whose admission process decides."""
    with frontend_of([paced_stack], tmp_path, *ADMISSION, f"--key-file={key_file.path}", "--workers=2") as frontend:
        yield frontend


async def contend(
    frontend: Frontend, key_file: KeyFile, loads: dict[str, tuple[str, int, dict[str, Any]]], duration_s: float
) -> dict[str, int]:
    """Return how many requests of each load were served while all loads wanted more than there is.

    The first requests do not count, since they found the model idle: they may all be of one load.

    Args:
        loads: by any name: of which key, how many at a time, and the fields of their own.
    """
    bodies = bodies_of(PACED_MODEL, range(20, 61))  # those of one length would end together, and wait for each other

    async def load(key: str, num_streams: int, fields: dict[str, Any]) -> Phase:
        async with client_of(frontend.url, key_file.headers(key)) as http:
            return await closed_loop(http, (body | fields for body in bodies), num_streams, duration_s)

    phases = await asyncio.gather(*(load(*each) for each in loads.values()))
    assert {answer.status for phase in phases for answer in phase.answers} == {200}
    begin_s = sorted(answer.ended_s for phase in phases for answer in phase.answers)[MAX_SEQUENCES_ALONE - 1]
    end_s = min(max(answer.started_s for answer in phase.answers) for phase in phases)
    return {
        name: sum(begin_s < answer.ended_s <= end_s for answer in phase.answers)
        for name, phase in zip(loads, phases, strict=True)
    }


async def test_a_key_that_floods_leaves_another_key_its_share(frontend: Frontend, key_file: KeyFile) -> None:
    served = await contend(
        frontend, key_file, {"flood": ("flood", NUM_FLOOD, {}), "few": ("few", NUM_FEW, {})}, duration_s=4
    )
    # In order of arrival it would be 4 of 68; it may have half, and asks for 4 places of 12. On a busy machine a client
    # asks again late, and so for less.
    assert served["few"] / sum(served.values()) > 0.5 * NUM_FEW / MAX_SEQUENCES_ALONE, served


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
