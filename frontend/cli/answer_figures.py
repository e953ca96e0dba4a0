"""One answer in figures, for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def answer_figures(
    times_s: Sequence[float], usage: Mapping[str, int], timing_ms: Mapping[str, float], window: int
) -> str:
    """Describe an answer, one fact in each line.

    Args:
        times_s: of the request, and of each piece.
        usage: token counts.
        timing_ms: `prefill` and `decode`, as the engine measures them; empty: unknown.
        window: tokens of the context window; 0: unknown.
    """
    lines = {"time to first token": f"{times_s[1] - times_s[0]:.2f} s"} if len(times_s) > 1 else {}
    if {"prompt_tokens", "completion_tokens"} <= usage.keys():
        num_prompt, num_completion = usage["prompt_tokens"], usage["completion_tokens"]
        num_cached = usage.get("cached_tokens")
        cached = "" if num_cached is None else f", {num_cached:,} of them cached"
        decode_s = timing_ms["decode"] / 1000 if timing_ms else times_s[-1] - times_s[min(1, len(times_s) - 1)]
        prefill = _rate("prefill", num_prompt - (num_cached or 0), timing_ms.get("prefill", 0) / 1000)
        lines["prompt"] = f"{num_prompt:,} tokens{cached}{prefill}"
        lines["completion"] = f"{num_completion:,} tokens{_rate('decode', num_completion - 1, decode_s)}"
        if window:
            num_used = num_prompt + num_completion
            lines["context window"] = f"{num_used:,} of {window:,} tokens ({num_used / window:.1%})"
    else:
        lines["tokens"] = "the server gives no counts"
    return "\n".join(f"{name:20} {text}" for name, text in lines.items())


def _rate(phase: str, num_tokens: int, seconds: float) -> str:
    return f"; {phase} {num_tokens / seconds:,.1f} tokens/s" if num_tokens > 0 and seconds > 0 else ""
