"""More requests than the engine can serve: some are served as if nothing were, the others are refused at once."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from frontend.settings import Settings
from tests.integration.replicas import frontend_of
from tests.integration.stack import MAX_SEQUENCES_ALONE, PACED_MODEL, Stack
from tests.overload import bodies_of, client_of, compare

pytestmark = pytest.mark.alone

NUM_TOKENS = range(20, 61)
QUEUE_WAIT_S = 0.5
SECONDS = 3.0  # of each phase; `python -m tests.workshop.load.overload` takes a minute


BY_DEFAULT = f"--max-in-flight={Settings().max_in_flight}"


async def test_at_five_times_its_capacity_a_model_serves_as_much_and_as_fast_as_before(
    paced_stack: Stack, tmp_path: Path
) -> None:
    # A request takes about a second. One that would wait longer than half of that is refused.
    with frontend_of([paced_stack], tmp_path, BY_DEFAULT, f"--max-queue-wait-s={QUEUE_WAIT_S}") as frontend:
        bodies = bodies_of(PACED_MODEL, NUM_TOKENS)
        async with client_of(frontend.url) as http:
            found = await compare(http, bodies, MAX_SEQUENCES_ALONE, SECONDS)
            memory_bytes = psutil.Process(frontend.process.pid).memory_info().rss
            again = await compare(http, bodies, MAX_SEQUENCES_ALONE, SECONDS / 5)
            grown_bytes = psutil.Process(frontend.process.pid).memory_info().rss - memory_bytes
    assert {answer.status for answer in (*found.unloaded.answers, *found.full.answers)} == {200}
    assert {answer.status for answer in (*found.overloaded.answers, *again.overloaded.answers)} == {200, 503}
    assert all(answer.has_retry_after for answer in found.overloaded.answers if answer.status == 503)
    # On a busy machine single answers take any time, so medians are compared. Refusals take much of its CPU time.
    # The load generator's own `overload` has sharper bounds.
    assert found.overloaded.percentile_s(503, 50) < found.unloaded.percentile_s(200, 50)  # at once
    assert found.overloaded.percentile_s(200, 50) < 2 * found.full.percentile_s(200, 50) + QUEUE_WAIT_S
    assert found.overloaded.rate_per_s > 0.3 * found.full.rate_per_s
    assert grown_bytes < memory_bytes / 20
    paced_stack.wait_until_idle(PACED_MODEL)
