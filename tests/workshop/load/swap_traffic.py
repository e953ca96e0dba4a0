"""Clients that want one model after the other from a server with room for one, and their waits."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.workshop.load.http_stream import Exchange, connect
from tests.workshop.load.load import Load, Target, requests
from tests.workshop.load.stream_record import read_embeddings, read_stream

_NUM_TOKENS = 32  # of a completion
_LONGEST_S = 300.0  # from a request to its end
_AFTER_ERROR_S = 0.1  # pause of a client; else a server that refuses at once would be flooded
_CODE = re.compile(r'"code": ?"?(\w+)')


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and the API that the clients call."""

    name: str
    api: Literal["chat/completions", "completions", "embeddings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A request and its end. Times are of time.monotonic()."""

    model: str
    sent_s: float
    first_s: float  # the first token, or the vector; of a failed request its end
    ended_s: float
    error: str = ""  # empty: a correct answer
    is_broken: bool = False  # the error came after the status 200

    @property
    def wait_s(self) -> float:
        """Until the first token."""
        return self.first_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Alone:
    """A model with one client. Seconds."""

    warm_s: float  # until the first token, of a loaded model
    swap_s: float  # the same, of a model in whose place another one is loaded

    @property
    def load_s(self) -> float:
        """The share of the swap: the other model's unload, and the load."""
        return max(0.0, self.swap_s - self.warm_s)


async def measure_alone(url: str, models: Sequence[Model], num_rounds: int = 4) -> dict[str, Alone]:
    """Send two requests to each model in turn; the first round, which may read files, does not count.

    Raises:
        RuntimeError: a request failed.
    """
    senders = [_Sender(url, model, seed) for seed, model in enumerate(models)]
    swap_s, warm_s = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for number in range(num_rounds):
        for sender, times_s in itertools.product(senders, (swap_s, warm_s)):
            answer = await sender.send()
            if answer.error:
                raise RuntimeError(f"{url}: {answer.error}")
            if number:
                times_s[answer.model].append(answer.wait_s)
    return {name: Alone(statistics.median(warm_s[name]), statistics.median(swap_s[name])) for name in swap_s}


async def traffic(url: str, clients: Sequence[Sequence[Model]], seconds: float, seed: int) -> list[Answer]:
    """Return the answers to clients that each send one request after the other until the time is over.

    Args:
        clients: the models that each client picks from at random.
    """
    until_s = time.monotonic() + seconds

    async def client(number: int, models: Sequence[Model]) -> list[Answer]:
        choices = random.Random(f"{seed} {number}")
        senders = [_Sender(url, model, choices.randrange(1 << 30)) for model in models]
        answers: list[Answer] = []
        while time.monotonic() < until_s:
            answers.append(await choices.choice(senders).send())
            if answers[-1].error:
                await asyncio.sleep(_AFTER_ERROR_S)
        return answers

    return list(itertools.chain(*await asyncio.gather(*(client(*each) for each in enumerate(clients)))))


class _Sender:
    """Sends requests to one model, each on a new connection."""

    def __init__(self, url: str, model: Model, seed: int) -> None:
        self._model = model
        target, load = Target(url=url, model=model.name), Load(api=model.api, num_tokens=_NUM_TOKENS, seed=seed)
        self._address, self._requests = target.address, requests(load, target)

    async def send(self) -> Answer:
        sent_s, stream = time.monotonic(), None
        try:
            async with asyncio.timeout(_LONGEST_S):
                stream = await connect(*self._address)
                exchange = await stream.exchange(next(self._requests))
        except OSError as exc:  # TimeoutError too
            exchange = Exchange(sent_s, ended_s=time.monotonic(), error=f"{type(exc).__name__}: {exc}")
        finally:
            if stream is not None:
                stream.close()
        return answer_of(self._model, sent_s, exchange)


def answer_of(model: Model, sent_s: float, exchange: Exchange) -> Answer:
    """Read an exchange."""
    if model.api == "embeddings":
        record = read_embeddings(exchange, 1)
    else:
        record = read_stream(exchange, _NUM_TOKENS, may_stop_early=False)
    error = record.error
    if exchange.status not in (0, 200):
        codes = _CODE.findall(b"".join(piece for _, piece in exchange.pieces).decode("utf-8", "replace"))
        error = " ".join([str(exchange.status), *codes])
    return Answer(
        model=model.name,
        sent_s=sent_s,
        first_s=record.chunk_times_s[0] if record.chunk_times_s else exchange.ended_s,
        ended_s=exchange.ended_s,
        error=error,
        is_broken=bool(error) and exchange.status == 200,
    )


def swaps(answers: Sequence[Answer]) -> list[Answer]:
    """Return each correct answer whose model differs from that of the answer before it, in the order of first tokens.

    A model that is loaded and answers nothing is not seen.
    """
    in_order = sorted((each for each in answers if not each.error), key=lambda each: each.first_s)
    return [after for before, after in itertools.pairwise(in_order) if before.model != after.model]


def fair_wait_s(answer: Answer, answers: Sequence[Answer], alone: Mapping[str, Alone]) -> float:
    """Return the share of an answer's wait that loads and answers before it explain, as far as a client sees them.

    A load takes as long as with one client. Answers, its own among them, count from the beginning of their prompt's
    computation; several at the same time count once.
    """
    seen_s, end_s = answer.sent_s, answer.first_s
    seconds = sum(alone[swap.model].load_s for swap in swaps(answers) if seen_s < swap.first_s <= end_s)
    for begun_s, ended_s in sorted((each.first_s - alone[each.model].warm_s, each.ended_s) for each in answers):
        seconds += max(0.0, min(ended_s, end_s) - max(begun_s, seen_s))
        seen_s = max(seen_s, ended_s)
    return seconds


def num_overtaking(answer: Answer, answers: Sequence[Answer]) -> int:
    """Return how many requests for other models were sent later than an answer's, and had a first token before it."""
    others = (each for each in answers if each.model != answer.model)
    return sum(answer.sent_s < each.sent_s and each.first_s < answer.first_s for each in others)


def figures(answers: Sequence[Answer], alone: Mapping[str, Alone]) -> dict[str, str]:
    """Return a row of figures of one traffic, by their heads. Errors have their status and code."""
    good = [each for each in answers if not each.error]
    errors = Counter(each.error[:60] for each in answers if each.error and not each.is_broken)
    broken = Counter(each.error[:60] for each in answers if each.is_broken)
    by_model = Counter(each.model for each in good)
    beyond_s = max((each.wait_s - fair_wait_s(each, good, alone) for each in good), default=0.0)
    overtaking = max((num_overtaking(each, good) for each in good), default=0)
    return {
        "errors": _counts(errors),
        "broken streams": _counts(broken),
        "answers": _counts(by_model),
        "first token p50, p95, longest": _times([each.wait_s for each in good]),
        "whole answer p50, p95, longest": _times([each.ended_s - each.sent_s for each in good]),
        "swaps": str(len(swaps(good))),
        "longest wait beyond loads and answers before it": f"{beyond_s:.2f} s",
        "most later requests for other models answered before one": str(overtaking),
    }


def _counts(counter: Counter[str]) -> str:
    return f"{counter.total()}: {', '.join(f'{count} {name}' for name, count in counter.items())}" if counter else "0"


def _times(values_s: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in np.percentile(values_s or [0.0], (50, 95, 100))) + " s"
