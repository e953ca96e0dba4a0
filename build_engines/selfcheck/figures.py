"""A few figures of the running server: enough to see that nothing is badly wrong, no benchmark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from build_engines.selfcheck.client import Client, TimedStream
from build_engines.selfcheck.report import Finding, Verdict

NUM_STREAMS = (1, 8)
_NUM_TOKENS = 128
_PROMPT = "The sea, the sky and the mountains"


def smoke_figures(client: Client) -> list[Finding]:
    """Return time to first token and tokens per second at each number of streams."""
    client.timed(**_request(0))  # what the first request warms up is not measured
    return [_measured(client, num_streams) for num_streams in NUM_STREAMS]


def _measured(client: Client, num_streams: int) -> Finding:
    with ThreadPoolExecutor(num_streams) as pool:
        streams = list(pool.map(lambda number: client.timed(**_request(number)), range(num_streams)))
    return Finding(f"{num_streams} streams" if num_streams > 1 else "1 stream", Verdict.OBSERVED, _text(streams))


def _request(number: int) -> dict[str, object]:
    # Each prompt begins otherwise, so that none is in the cache of another.
    prompt = f"{number}: {_PROMPT}"
    return {"prompt": prompt, "max_tokens": _NUM_TOKENS, "ignore_eos": True, "temperature": 1, "seed": number}


def _text(streams: list[TimedStream]) -> str:
    waits = sorted(stream.first_token_s for stream in streams)
    num_tokens = sum(stream.num_tokens for stream in streams)
    duration_s = max(stream.last_token_s for stream in streams)
    return (
        f"first token after {1000 * waits[len(waits) // 2]:.1f} ms (median), {1000 * waits[-1]:.1f} ms (longest); "
        f"{num_tokens} tokens in {duration_s:.2f} s: {num_tokens / duration_s:,.0f} tokens/s in all"
    )
