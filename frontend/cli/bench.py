"""Measures how fast the models of running servers answer chats, on the machines on which they run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import re
import secrets
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from frontend.cli.chat_client import ChatClient, ChatFailed, chosen
from frontend.settings import SettingsError
from frontend.terminal import print_error
from model_repository.system.terminal_text import escaped, unescaped

_MAX_STREAMS = 1024  # each is a thread
_PAUSE_S = 0.2  # of a stream, after a failure
_SHOW_S = 0.2
_COMPARED = ("ttft_ms_median", "ttft_ms_p99", "tokens_per_s", "tokens_per_s_of_one")
_BAR = 50  # characters of the plot's longest bar
_MARKS = "#="
_HEADS = ("streams", "requests", "TTFT ms", "99 %", "tokens/s", "one stream", "prompt", "answer", "failed")
_ADJECTIVES, _NOUNS, _VERBS = (
    words.split()
    for words in (
        "old young green quiet broken heavy golden distant friendly narrow wooden early",
        "teacher river garden letter captain window village horse market lamp forest doctor",
        "finds carries paints remembers follows repairs watches sells opens describes leaves visits",
    )
)


@dataclasses.dataclass(frozen=True)
class Load:
    """The chats of a measurement.

    Raises:
        SettingsError: a number is too small or too large.
    """

    streams: Sequence[int]  # that run at the same time, in each step
    seconds: float  # of a step; the chats that run then are waited for
    prompt_tokens: int  # of a chat, about
    tokens: int  # of an answer, at most

    def __post_init__(self) -> None:
        """Check the numbers."""
        for num_streams in self.streams:
            if not 1 <= num_streams <= _MAX_STREAMS:
                raise SettingsError(f"--streams={num_streams}: must be 1 to {_MAX_STREAMS}")
        for name in ("seconds", "prompt_tokens", "tokens"):
            if not (number := getattr(self, name)) > 0:
                raise SettingsError(f"--{name.replace('_', '-')}={number:g}: must be greater than 0")


class Answer(NamedTuple):
    """One answer; the times are those of one clock."""

    sent_s: float
    first_s: float  # the first text
    end_s: float
    num_prompt_tokens: int
    num_tokens: int


class Figures(NamedTuple):
    """What a step has measured; None: no answer has it."""

    url: str
    model: str
    streams: int
    requests: int
    ttft_ms_median: float | None
    ttft_ms_p99: float | None
    tokens_per_s: float | None  # of all streams
    tokens_per_s_of_one: float | None  # from its first token on, median
    prompt_tokens: float | None  # median
    answer_tokens: float | None  # median
    failed: int


class Target:
    """A model of a server, which has answered two short chats.

    Args:
        connect: makes a client of the server.
        model: empty: the server's first.

    Raises:
        ChatFailed: the server cannot be reached, does not have the model, or does not count tokens.
    """

    def __init__(self, connect: Callable[[], ChatClient], model: str) -> None:
        client = connect()
        models = client.models(model)
        self.connect, self.url = connect, client.url
        self.model = chosen(model, models)
        self._ignore_eos = {"ignore_eos": True} if models[self.model] else {}  # only Conch states a limit of tokens
        short, long = (self.ask(client, num_words, 1).num_prompt_tokens for num_words in (20, 60))
        if short >= long:
            raise ChatFailed(f"{self.url}: its usage has {short} prompt tokens for 20 words, and {long} for 60")
        self._tokens_per_word, self._other_tokens = (long - short) / 40, (3 * short - long) / 2

    def num_words(self, num_tokens: int) -> int:
        """Return the number of words with which a prompt has about this number of tokens."""
        return max(1, round((num_tokens - self._other_tokens) / self._tokens_per_word))

    def ask(self, client: ChatClient, num_words: int, num_tokens: int) -> Answer:
        """Return the answer to a prompt that no server has seen before.

        Raises:
            ChatFailed: the answer failed, or the server has not counted its tokens.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt(secrets.token_hex(8), num_words)}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        sent_s, first_s = time.monotonic(), math.inf
        for _ in client.answer(body | self._ignore_eos):
            first_s = min(first_s, time.monotonic())
        end_s, usage = time.monotonic(), client.usage
        try:
            num_prompt_tokens, num_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        except (LookupError, TypeError, ValueError) as exc:
            raise ChatFailed(f"{self.url}: its stream ends without the counts of tokens (usage)") from exc
        return Answer(sent_s, min(first_s, end_s), end_s, num_prompt_tokens, num_tokens)


def prompt(seed: str, num_words: int) -> str:
    """Return a text of its own for each seed: a server that keeps the KV cache of earlier prompts cannot reuse it."""
    rng = random.Random(seed)

    def words() -> Iterator[str]:
        while True:
            yield from ("The", rng.choice(_ADJECTIVES), rng.choice(_NOUNS), rng.choice(_VERBS))
            yield from ("the", rng.choice(_ADJECTIVES), f"{rng.choice(_NOUNS)}.")

    return f"{seed}: Go on with this story. {' '.join(itertools.islice(words(), num_words))}"


def figures(target: Target, num_streams: int, answers: Sequence[Answer], failed: int, seconds: float) -> Figures:
    """Return the figures of a step.

    Args:
        seconds: for which all streams ran, after the first request. Of an answer that ends later, the tokens until
            then count, as if they had come evenly.
    """
    start_s = min((answer.sent_s for answer in answers), default=0.0)

    def share(answer: Answer) -> float:
        part = (start_s + seconds - answer.first_s) / max(answer.end_s - answer.first_s, 1e-9)
        return answer.num_tokens * min(1.0, max(0.0, part))

    ttfts_ms = sorted((answer.first_s - answer.sent_s) * 1e3 for answer in answers)
    rates = [(each.num_tokens - 1) / (each.end_s - each.first_s) for each in answers if each.end_s > each.first_s]
    return Figures(
        url=target.url,
        model=target.model,
        streams=num_streams,
        requests=len(answers),
        ttft_ms_median=_median(ttfts_ms),
        ttft_ms_p99=ttfts_ms[math.ceil(len(ttfts_ms) * 0.99) - 1] if ttfts_ms else None,
        tokens_per_s=sum(map(share, answers)) / seconds if answers else None,
        tokens_per_s_of_one=_median([rate for rate in rates if rate]),
        prompt_tokens=_median([answer.num_prompt_tokens for answer in answers]),
        answer_tokens=_median([answer.num_tokens for answer in answers]),
        failed=failed,
    )


def bench(targets: Sequence[Target], load: Load, out: TextIO, err: TextIO, *, is_json: bool = False) -> int:
    """Measure one or two targets in turns, print the figures, and return the exit status: 1 if an answer failed.

    Ctrl-C ends the measurement once the running answers have ended, and a second one at once. The status is 130 then.
    """
    num_words, status = targets[0].num_words(load.prompt_tokens), 0
    rows: list[Figures] = []
    errors: dict[str, list[str]] = {}  # that differ in numbers only

    def show(text: str) -> None:
        if err.isatty():
            unescaped(err).write(f"\r\x1b[K{escaped(text)}")
            err.flush()

    try:
        for num_streams, target in itertools.product(load.streams, targets):
            step = _Step(target, num_words, load)
            step.run(num_streams, show)
            rows.append(figures(target, num_streams, step.answers, len(step.errors), step.full_s))
            for error in step.errors:
                errors.setdefault(re.sub(r"\d+", "", error), []).append(error)
            if step.is_interrupted:
                raise KeyboardInterrupt
            if not step.answers:
                break  # more streams will not help
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    show("")
    pairs = ratios(rows) if len(targets) > 1 else []
    if is_json:
        print(json.dumps({"rows": [row._asdict() for row in rows], "ratios": pairs}, indent=1), file=out)
    else:
        print(*table(targets, rows, pairs), sep="\n", file=out)
    for each in errors.values():
        print_error(f"{len(each)} x {each[0]}", err)
    return status or int(bool(errors))


class _Step:
    """Streams that run at the same time. Each one asks again when it has its answer."""

    def __init__(self, target: Target, num_words: int, load: Load) -> None:
        self.answers: list[Answer] = []
        self.errors: list[str] = []
        self.is_interrupted = False
        self.full_s = 0.0  # until the first stream has ended
        self._target, self._num_words, self._num_tokens = target, num_words, load.tokens
        self._start_s = time.monotonic()
        self._end_s = self._start_s + load.seconds

    def run(self, num_streams: int, show: Callable[[str], None]) -> None:
        """Return after the last answer."""
        # A daemon ends with the process, also while it waits for a server that hangs.
        threads = [threading.Thread(target=self._stream, daemon=True) for _ in range(num_streams)]
        for thread in threads:
            thread.start()
        try:
            self._wait_for(threads, show)
        except KeyboardInterrupt:
            self.is_interrupted, self._end_s = True, time.monotonic()
            self._wait_for(threads, show)

    def _wait_for(self, threads: Sequence[threading.Thread], show: Callable[[str], None]) -> None:
        for thread in threads:
            while thread.is_alive():
                left_s = self._end_s - time.monotonic()
                left = f"{left_s:.0f} s left" if left_s > 0 else "waiting for the last answers; Ctrl-C leaves them out"
                show(f"{self._target.url}, streams: {len(threads)}, {left}")
                thread.join(_SHOW_S)

    def _stream(self) -> None:
        client = self._target.connect()
        while True:
            try:
                self.answers.append(self._target.ask(client, self._num_words, self._num_tokens))
            except ChatFailed as exc:
                self.errors.append(str(exc))
                time.sleep(_PAUSE_S)
            if time.monotonic() >= self._end_s:
                break
        self.full_s = self.full_s or time.monotonic() - self._start_s


def ratios(rows: Sequence[Figures]) -> list[dict[str, Any]]:
    """Return the figures of the first target divided by those of the second one, for each number of streams."""
    return [
        {"streams": first.streams}
        | {name: a / b if (a := getattr(first, name)) and (b := getattr(second, name)) else None for name in _COMPARED}
        for first, second in zip(rows[::2], rows[1::2], strict=False)
    ]


def table(targets: Sequence[Target], rows: Sequence[Figures], pairs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table, and of a plot of tokens/s against streams."""
    names = ("A", "B") if len(targets) > 1 else ("",)
    for name, target in zip(names, targets, strict=True):
        yield f"{name}{': ' if name else ''}{target.model} at {target.url}"
    lines = [["", *_HEADS]]
    for index, row in enumerate(rows):
        lines.append([names[index % len(names)], *map(_number, row[2:])])
        if index % 2 and pairs:
            lines.append(["A/B", str(row.streams), "", *(_number(pairs[index // 2][key], 2) for key in _COMPARED)])
    num_columns = len(lines[0]) - (not any(row.failed for row in rows))
    columns = list(itertools.zip_longest(*lines, fillvalue=""))[:num_columns]
    widths = [max(map(len, column)) for column in columns]
    for cells in zip(*columns, strict=True):
        yield "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield ""
    yield "tokens/s by streams"
    scale = _BAR / (max((row.tokens_per_s or 0.0 for row in rows), default=0.0) or 1.0)
    for index, row in enumerate(rows):
        number = index % len(names)
        bar = _MARKS[number] * round((row.tokens_per_s or 0.0) * scale)
        yield f"{names[number]:1} {row.streams:5} |{bar} {_number(row.tokens_per_s)}"


def _number(number: float | None, num_digits: int = 1) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.{num_digits}f}"


def _median(numbers: Sequence[float]) -> float | None:
    return statistics.median(numbers) if numbers else None
