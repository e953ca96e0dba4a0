"""A request's completions in figures, and streams that no engine may send."""

from __future__ import annotations

import pytest

from frontend.stream_record import StreamRecord
from model_repository.contract.output import FinishReason, GenerationChunk, Timing
from model_repository.contract.request import GenerationRequest, Params, TextPrompt
from tests.fakes import USAGE, FakeTriton, Script
from tests.frontend.answers import error_of
from tests.frontend.conftest import Serve

BODY = {"model": "org/demo", "prompt": "x", "max_tokens": 10}
STOP = FinishReason.STOP


def record_of(num_completions: int, num_per_prompt: int, *times: float) -> StreamRecord:
    clock = iter(times)
    request = GenerationRequest(prompt=TextPrompt("x"), params=Params(max_tokens=10, is_stream=True))
    return StreamRecord([request] * num_completions, num_per_prompt, clock=lambda: next(clock))


def test_gaps_are_counted_by_bucket_and_phases_follow_each_other() -> None:
    record = record_of(1, 1, 0.0, 0.5, 0.5005, 0.52)
    timing = Timing(
        arrival_time_ns=1_000_000_000,
        first_scheduled_time_ns=1_100_000_000,
        first_token_time_ns=1_300_000_000,
        last_token_time_ns=1_400_000_000,
    )
    record.add(0, GenerationChunk(text="a"))
    record.add(0, GenerationChunk(text="b"))
    record.add(0, GenerationChunk(text="c", finish_reason=STOP, usage=USAGE, timing=timing))
    assert (sum(record.gap_counts), record.gap_counts[0]) == (2, 1)  # the first gap is half a millisecond
    assert record.gaps_s == pytest.approx(0.02)
    phases = record.slowest
    assert phases is not None
    lengths_s = (phases.tokenization_s, phases.queue_s, phases.prefill_s, phases.decode_s)
    assert lengths_s == pytest.approx((0.2, 0.1, 0.2, 0.1))


BROKEN: dict[str, Script] = {
    "no finish": [GenerationChunk(text="a")],
    "half a surrogate pair": [GenerationChunk(text="a"), GenerationChunk(text="\ud83d", finish_reason=STOP)],
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_a_broken_stream_ends_with_an_error_and_never_with_a_finish(serve: Serve, script: Script) -> None:
    http = await serve(FakeTriton(script))
    text = await (await http.post("/v1/completions", json=BODY | {"stream": True})).text()
    assert '"code":"internal_error"' in text and '"finish_reason":"stop"' not in text
    assert text.endswith("data: [DONE]\n\n")
    assert (await error_of(await http.post("/v1/completions", json=BODY)))["code"] == "internal_error"
