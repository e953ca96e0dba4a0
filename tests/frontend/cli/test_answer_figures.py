"""The figures of an answer."""

from __future__ import annotations

import pytest

from frontend.cli.answer_figures import answer_figures

USAGE = {"prompt_tokens": 1200, "completion_tokens": 11, "cached_tokens": 200}
FIRST, PROMPT = "time to first token  0.50 s", "prompt               1,200 tokens, 200 of them cached"


def test_the_engines_times_come_before_the_clients() -> None:
    assert answer_figures([0.0, 0.5, 4.0], USAGE, {"prefill": 400.0, "decode": 2000.0}, 2048).splitlines() == [
        "time to first token  0.50 s",
        "prompt               1,200 tokens, 200 of them cached; prefill 2,500.0 tokens/s",
        "completion           11 tokens; decode 5.0 tokens/s",
        "context window       1,211 of 2,048 tokens (59.1%)",
    ]


FIRST, PROMPT = "time to first token  0.50 s", "prompt               1,200 tokens, 200 of them cached"


@pytest.mark.parametrize(
    ("times_s", "usage", "figures"),
    [
        ([0.0, 0.5], {}, [FIRST, "tokens               the server gives no counts"]),
        ([0.0], USAGE | {"completion_tokens": 0}, [PROMPT, "completion           0 tokens"]),
        ([0.0, 0.5], USAGE | {"completion_tokens": 1}, [FIRST, PROMPT, "completion           1 tokens"]),
        ([0.0, 0.5, 2.5], USAGE, [FIRST, PROMPT, "completion           11 tokens; decode 5.0 tokens/s"]),
    ],
)
def test_unknown_figures_are_left_out(times_s: list[float], usage: dict[str, int], figures: list[str]) -> None:
    assert answer_figures(times_s, usage, {}, 0).splitlines() == figures
