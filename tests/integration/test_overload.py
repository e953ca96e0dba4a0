"""More requests than the engine can serve: some are served as if nothing were, the others are refused at once."""

from __future__ import annotations

import asyncio
import statistics

from tests.benchmarks.overload import closed_loop, compare, frontend
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL, Stack

BODY = {"model": PACED_MODEL, "prompt": "a", "max_tokens": 40, "ignore_eos": True}


async def test_at_five_times_its_capacity_a_model_serves_as_much_and_as_fast_as_before(stack: Stack) -> None:
    limits = {"max_in_flight": MAX_SEQUENCES, "max_queue_wait_s": 0.4}
    async with frontend(stack.endpoint, **limits) as http:
        unloaded, overloaded = await compare(http, BODY, MAX_SEQUENCES, seconds=4)
    assert {answer.status for answer in unloaded.answers} == {200}
    assert {answer.status for answer in overloaded.answers} == {200, 503}
    refused = [answer for answer in overloaded.answers if answer.status == 503]
    assert all(answer.has_retry_after for answer in refused)
    assert statistics.median(overloaded.latencies_s(503)) < statistics.median(unloaded.latencies_s(200)) / 4
    assert overloaded.p99_s(200) < 2.5 * unloaded.p99_s(200)
    assert overloaded.rate_per_s > 0.8 * unloaded.rate_per_s
    stack.wait_until_idle(PACED_MODEL)


async def test_a_key_that_floods_does_not_keep_another_from_its_share(stack: Stack) -> None:
    """The keys are two classes of urgency here: what tells flows apart is the same."""
    async with frontend(stack.endpoint, max_in_flight=MAX_SEQUENCES, max_queue_wait_s=30) as http:
        flood, few = await asyncio.gather(
            closed_loop(http, BODY, 8 * MAX_SEQUENCES, 3),
            closed_loop(http, BODY | {"service_tier": "priority"}, 2, 3),
        )
    assert statistics.median(few.latencies_s(200)) < statistics.median(flood.latencies_s(200)) / 2
