"""The arithmetic and the table of `conch bench`, and its ends."""

from __future__ import annotations

import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from frontend.__main__ import main
from frontend.cli.bench import Answer, Figures, Load, Target, bench, figures, prompt, ratios, table
from frontend.cli.chat_client import ChatClient, ChatFailed, Piece, is_url

URL, DEADLINE_S = "http://a:1", 60
ONE_EACH_S = 1e-9  # each stream asks once


class Server(ChatClient):
    """Counts two prompt tokens for each word; what a test does instead comes before the answer of a measured chat.

    Args:
        limit: of the model's tokens; Conch states one.
    """

    def __init__(self, before: Callable[[], object] = lambda: None, limit: int = 0, bodies: list[Any] | None = None):
        super().__init__(URL)
        self._before, self._limit, self._bodies = before, limit, [] if bodies is None else bodies

    def models(self, model: str = "") -> dict[str, int]:
        return {"m": self._limit, "n": 0}

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        self._bodies.append(body)
        if body["max_tokens"] > 1:
            self._before()
        yield Piece("a")
        num_words = len(body["messages"][0]["content"].split())
        self.usage = {"prompt_tokens": 2 * num_words, "completion_tokens": body["max_tokens"]}


class Terminal(io.StringIO):
    """Ctrl-C is pressed as soon as one of these texts is shown; each is awaited after the one before it."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.is_pressed = threading.Event()
        self._texts = list(texts)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._texts and self._texts[0] in text:
            self._texts.pop(0)
            self.is_pressed.set()
            raise KeyboardInterrupt
        return super().write(text)


def load(*streams: int, seconds: float = ONE_EACH_S) -> Load:
    return Load(streams, seconds, prompt_tokens=100, tokens=9)


def measured(before: Callable[[], object], given: Load, err: io.StringIO) -> tuple[int, list[Any]]:
    """Return the status and the rows of a measurement."""
    out = io.StringIO()
    status = bench([Target(functools.partial(Server, before), "")], given, out, err, is_json=True)
    return status, json.loads(out.getvalue())["rows"]


def row(streams: int, failed: int, ttft_ms: float, p99: float, tokens_per_s: float, of_one: float | None) -> Figures:
    return Figures(URL, "m", streams, 7, ttft_ms, p99, tokens_per_s, of_one, 100, 9, failed)


def test_tokens_count_until_the_first_stream_has_ended() -> None:
    answers = [Answer(5, 6, 8, 10, 21), Answer(5, 7, 11, 12, 41), Answer(8, 9.5, 10, 11, 1)]
    assert figures(Target(Server, ""), 2, answers, 3, seconds=4) == Figures(
        url=URL,
        model="m",
        streams=2,
        requests=3,
        ttft_ms_median=1500,
        ttft_ms_p99=2000,
        tokens_per_s=(21 + 41 / 2 + 0) / 4,
        tokens_per_s_of_one=10,
        prompt_tokens=11,
        answer_tokens=21,
        failed=3,
    )


def test_prompts_differ_from_the_first_word_on_and_have_the_length_that_is_asked_for() -> None:
    one, other = (prompt(seed, 50).split() for seed in ("1", "2"))
    assert one[0] != other[0] and one[6:] != other[6:]
    assert len(one) == len(other) == 6 + 50
    bodies: list[Any] = []
    target = Target(functools.partial(Server, bodies=bodies), "")
    answer = target.ask(target.connect(), target.num_words(100), 9)
    assert (answer.num_prompt_tokens, answer.num_tokens) == (100, 9)
    assert len({body["messages"][0]["content"].split()[0] for body in bodies}) == 3


@pytest.mark.parametrize("limit", [0, 2048])
def test_answers_have_equal_lengths_where_the_server_is_conch(limit: int) -> None:
    bodies: list[Any] = []
    Target(functools.partial(Server, limit=limit, bodies=bodies), "")
    assert ["ignore_eos" in body for body in bodies] == [bool(limit)] * 2


def test_the_table_compares_two_servers() -> None:
    rows = [
        row(1, 0, 12.25, 30, 100, 50),
        row(1, 0, 24.5, 15, 40, None),
        row(16, 2, 5, 1234.5, 25, 9),
        row(16, 0, 5, 1, 200, 9),
    ]
    targets = [Target(Server, ""), Target(Server, "n")]
    assert (
        "\n".join(table(targets, rows, ratios(rows)))
        == """\
A: m at http://a:1
B: n at http://a:1
     streams  requests  TTFT ms   99 %  tokens/s  one stream  prompt  answer  failed
  A        1         7     12.2     30       100          50     100       9       0
  B        1         7     24.5     15        40           -     100       9       0
A/B        1               0.50      2      2.50           -
  A       16         7        5  1,234        25           9     100       9       2
  B       16         7        5      1       200           9     100       9       0
A/B       16                  1  1,234      0.12           1

tokens/s by streams
A     1 |######################### 100
B     1 |========== 40
A    16 |###### 25
B    16 |================================================== 200"""
    )


def test_the_table_of_one_server_has_no_failures_and_no_ratios() -> None:
    rows = [row(1, 0, 12.25, 30, 99.96, 50)]
    assert list(table([Target(Server, "")], rows, [])) == [
        "m at http://a:1",
        "  streams  requests  TTFT ms  99 %  tokens/s  one stream  prompt  answer",
        "        1         7     12.2    30     100.0          50     100       9",
        "",
        "tokens/s by streams",
        f"      1 |{'#' * 50} 100.0",
    ]


def test_the_chats_of_a_step_run_at_the_same_time() -> None:
    status, rows = measured(threading.Barrier(3, timeout=DEADLINE_S).wait, load(3, 6), io.StringIO())
    assert status == 0
    assert [(each["streams"], each["requests"], each["answer_tokens"]) for each in rows] == [(3, 3, 9), (6, 6, 9)]


def test_errors_that_differ_in_numbers_are_shown_once_and_no_step_follows() -> None:
    numbers, err = iter(range(4)), io.StringIO()

    def fail() -> None:
        raise ChatFailed(f"overloaded: retry after {next(numbers)} s")

    status, rows = measured(fail, load(4, 8), err)
    assert (status, len(rows), rows[0]["requests"], rows[0]["failed"]) == (1, 1, 0, 4)
    assert err.getvalue() == "error: 4 x overloaded: retry after 0 s\n"


def test_ctrl_c_ends_the_measurement_after_the_running_answers() -> None:
    err = Terminal(" s left")
    status, rows = measured(lambda: err.is_pressed.wait(DEADLINE_S), load(2, 4, seconds=DEADLINE_S), err)
    assert (status, [each["requests"] for each in rows]) == (130, [2])


def test_a_second_ctrl_c_leaves_out_the_running_answers() -> None:
    is_over = threading.Event()
    err = Terminal(" s left", "waiting")
    try:
        status = measured(lambda: is_over.wait(DEADLINE_S), load(2, seconds=DEADLINE_S), err)
    finally:
        is_over.set()
    assert status == (130, [])


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 5, "completion_tokens": None}, {"prompt_tokens": 5}])
def test_a_server_must_count_tokens(usage: dict[str, Any]) -> None:
    class Careless(Server):
        def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
            yield from super().answer(body)
            self.usage = usage

    with pytest.raises(ChatFailed, match="usage"):
        Target(Careless, "")


def test_a_model_must_be_there() -> None:
    with pytest.raises(ChatFailed, match=r"model='mm': expected one of m, n; did you mean m\?$"):
        Target(Server, "mm")


@pytest.mark.parametrize(
    "option", ["--streams=0", "--streams=1,1025", "--seconds=nan", "--prompt-tokens=-1", "--tokens=0"]
)
def test_numbers_are_checked(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:9", option]) == 2
    assert capsys.readouterr().err.startswith(f"error: {option.partition('=')[0]}=")


def test_streams_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--streams=1,x"]) == 2
    assert "--streams: 1,x: expected numbers" in capsys.readouterr().err


def test_a_server_that_does_not_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["127.0.0.1:9"], ["9"], ["--url=9"]):
        assert main(["bench", *words]) == 1
        assert capsys.readouterr().err == "error: no server at http://127.0.0.1:9: `conch serve` starts one\n"
    assert main(["bench", "demo", "--url=9"]) == 2
    assert capsys.readouterr().err == "error: --url=9: not together with demo: write one of them\n"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8000/v1", True),
        ("[::1]:8000", True),
        ("8000", True),
        ("https://example.com/llm", True),
        ("ftp://h", True),  # refused as a URL
        ("demo", False),
        ("llama3.2:1b", False),
        ("org/model:Q4_K_M", False),
        ("models/model.gguf", False),
        ("https://huggingface.co/org/model", False),
        ("hf.co/org/model:Q8_0", False),
    ],
)
def test_a_url_is_told_from_a_model(text: str, is_one: bool) -> None:
    assert is_url(text) is is_one


def test_an_option_of_a_model_does_not_go_with_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "127.0.0.1:9", "--precision", "q8_0"]) == 2
    assert capsys.readouterr().err.startswith("error: --precision=q8_0: goes with a MODEL, which is served with it")
