"""A simulation of 100 replicas and 10,000 conversations. It tells the share of cached tokens, and the wait.

`python -m tests.workshop.load.routing` compares the frontend's own choice of a replica (frontend/triton/routing.py),
without names of conversations, with the fewest requests, consistent hashing of conversations and round robin. It prints
a table and writes a plot. A replica computes one prompt after the other, decodes all its sequences together, and keeps
KV tokens by GreedyDual, as the engine does. A frontend hears once a second what a replica keeps.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from frontend.triton.routing import Beginnings, Kept, Work, cheapest, num_missing
from model_repository.contract.marks import ENDS, MARK_BYTES
from tests.workshop.load.command import parsed, parser_of, say_heads, say_row
from tests.workshop.load.plots import routing_plot

_BYTES = 4  # of a token
_PREFILL, _STEP_S, _SEQUENCE_S = 10_000.0, 0.01, 0.0003  # tokens a second; of a step, and of each sequence in it
_NUM_SLOTS, _NUM_KV_TOKENS = 48, 700_000  # of a replica; an H100 with a model of 8 billion weights has about as many
_TOLD_S = 1.0  # between two polls of an engine


@dataclass(frozen=True, slots=True)
class Mix:
    """A kind of conversations. Numbers of tokens and turns are means of exponential distributions unless noted."""

    share: float  # of the conversations
    num_groups: int  # of conversations with the same first tokens
    num_shared: int  # of these tokens
    num_first: int  # further ones of the first prompt
    num_turns: int
    num_added: int  # of each further turn
    num_output: int
    gap_s: float


# Agents: Codex on SWE-bench Pro, 610 trials (Hugging Face, Inferact/codex_swebenchpro_traces): 33 calls, of 12,367 to
# 84,482 tokens, 522 of output each; all share the system prompt and the tools. Chats: LMSYS-Chat-1M (arXiv 2309.11998):
# 2.0 turns of 69.5 and 214.5 tokens. The gaps, the groups and the half of each kind are assumptions.
MIXES = (Mix(0.5, 4, 10_000, 2_400, 33, 1_700, 522, 4.0), Mix(0.5, 50, 300, 70, 2, 70, 215, 30.0))


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation, which grows."""

    number: int
    mix: Mix
    group: int
    num_tokens: int  # of the next prompt
    num_turns: int  # left
    marks: list[bytes] = field(default_factory=list)

    @property
    def shared(self) -> tuple[int, int]:
        """The name of its shared beginning."""
        return self.mix.num_shared, self.group

    def beginnings(self) -> Beginnings:
        """Return those of the next prompt; their hashes say the same as those of texts."""
        num_marks, num_shared = (bisect_right(ENDS, each * _BYTES) for each in (self.num_tokens, self.mix.num_shared))
        for index in range(len(self.marks), num_marks):
            own = self.shared if index < num_shared else self.number
            self.marks.append(blake2b(repr((own, index)).encode(), digest_size=MARK_BYTES).digest())
        return Beginnings(self.marks[:num_marks], self.num_tokens * _BYTES)


@dataclass(slots=True, eq=False)
class Replica:
    """A replica, and what the frontend knows of it."""

    number: int
    kept: Kept = field(default_factory=Kept)
    num_requests: int = 0
    num_waiting_bytes: int = 0
    queue: list[tuple[float, Conversation, int]] = field(default_factory=list)
    num_running: int = 0
    free_s: float = 0.0  # when the prompts that have a slot are computed
    num_served: int = 0
    tokens: dict[Conversation, int] = field(default_factory=dict)  # in the KV cache
    worths: dict[Conversation, int] = field(default_factory=dict)
    shared: Counter[tuple[int, int]] = field(default_factory=Counter)  # conversations with this beginning
    lost_worth: int = 0

    @property
    def work(self) -> Work:
        """What it has to do."""
        return Work(self.num_requests, self.num_requests, self.num_waiting_bytes)

    def num_cached(self, each: Conversation) -> int:
        """Return the tokens of a prompt that need no computation."""
        num_shared = each.mix.num_shared if self.shared[each.shared] else 0
        return min(max(num_shared, self.tokens.get(each, 0)), each.num_tokens - 1)

    def keep(self, each: Conversation) -> None:
        """Keep the tokens of a conversation, and overwrite others."""
        if each not in self.tokens:
            self.shared[each.shared] += 1
        self.tokens[each], self.worths[each] = each.num_tokens, self.lost_worth + each.num_tokens
        while sum(self.tokens.values()) > _NUM_KV_TOKENS and len(self.tokens) > 1:
            lost = min(self.tokens, key=lambda one: self.worths[one])
            self.lost_worth = max(self.lost_worth, self.worths.pop(lost))
            del self.tokens[lost]
            self.shared[lost.shared] -= 1

    def tell(self, now: float) -> None:
        """Tell the frontend which marks are kept."""
        kept = (each.marks[: bisect_right(ENDS, num * _BYTES)] for each, num in self.tokens.items())
        self.kept.told(b"".join(dict.fromkeys(itertools.chain.from_iterable(kept))), now)


type Choose = Callable[[Sequence[Replica], Conversation, Beginnings], Replica]


def _fewest(replicas: Sequence[Replica], each: Conversation, beginnings: Beginnings) -> Replica:
    return cheapest(replicas, None)


def _by_prompts(replicas: Sequence[Replica], each: Conversation, beginnings: Beginnings) -> Replica:
    return cheapest(replicas, beginnings)


def _hashed(num_replicas: int) -> Choose:
    points = sorted((hash((number, copy)), number) for number in range(num_replicas) for copy in range(100))

    def choose(replicas: Sequence[Replica], each: Conversation, beginnings: Beginnings) -> Replica:
        return replicas[points[bisect_right(points, (hash(("conversation", each.number)), 0)) % len(points)][1]]

    return choose


def _in_turns() -> Choose:
    turns = itertools.count()
    return lambda replicas, each, beginnings: replicas[next(turns) % len(replicas)]


@dataclass(slots=True)
class Outcome:
    """What a way to choose leads to."""

    first_token_s: list[float] = field(default_factory=list)
    choice_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_cached: int = 0
    nums_served: list[int] = field(default_factory=list)

    def row(self) -> list[str]:
        """Return the figures of the table."""
        median_s, late_s = np.quantile(self.first_token_s, [0.5, 0.99])
        balance = max(self.nums_served) / float(np.mean(self.nums_served))
        choice_us = 1e6 * float(np.median(self.choice_s))
        cached = f"{self.num_cached / self.num_tokens:.3f}"
        return [cached, f"{balance:.2f}", f"{median_s:.2f} s", f"{late_s:.2f} s", f"{choice_us:.0f} us"]


class Simulation:
    """The replicas and conversations, event by event."""

    def __init__(self, options: argparse.Namespace, choose: Choose) -> None:
        self._draws, self._choose = random.Random(options.seed), choose
        self._replicas = [Replica(number) for number in range(options.replicas)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._num_open = options.conversations
        self.outcome = Outcome()
        now = 0.0
        for number in range(options.conversations):
            now += self._draws.expovariate(options.rate)
            self._at(now, self._arrive, self._conversation(number))

    def run(self) -> Outcome:
        """Run to the end of the last conversation."""
        self._at(_TOLD_S, self._tell)
        while self._events:
            now, _, happen, arguments = heapq.heappop(self._events)
            happen(now, *arguments)
        self.outcome.nums_served = [each.num_served for each in self._replicas]
        return self.outcome

    def _conversation(self, number: int) -> Conversation:
        [mix] = self._draws.choices(MIXES, [each.share for each in MIXES])
        num_tokens = mix.num_shared + self._about(mix.num_first)
        return Conversation(number, mix, self._draws.randrange(mix.num_groups), num_tokens, self._about(mix.num_turns))

    def _about(self, mean: float) -> int:
        return 1 + int(self._draws.expovariate(1 / mean))

    def _at(self, time_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), happen, arguments))

    def _tell(self, now: float) -> None:
        for replica in self._replicas:
            replica.tell(now)
        if self._num_open:
            self._at(now + _TOLD_S, self._tell)

    def _arrive(self, now: float, each: Conversation) -> None:
        beginnings = each.beginnings()
        started_s = time.perf_counter()
        replica = self._choose(self._replicas, each, beginnings)
        self.outcome.choice_s.append(time.perf_counter() - started_s)
        num_bytes = num_missing(beginnings, replica.kept)
        replica.kept.sent(beginnings, now)
        replica.num_requests += 1
        replica.num_served += 1
        replica.num_waiting_bytes += num_bytes
        replica.queue.append((now, each, num_bytes))
        self._start(now, replica)

    def _start(self, now: float, replica: Replica) -> None:
        while replica.queue and replica.num_running < _NUM_SLOTS:
            (arrived_s, each, num_bytes), *replica.queue = replica.queue
            replica.num_running += 1
            num_cached, step_s = replica.num_cached(each), _STEP_S + _SEQUENCE_S * replica.num_running
            first_s = max(now, replica.free_s) + (each.num_tokens - num_cached) / _PREFILL + step_s
            replica.free_s = first_s
            self.outcome.first_token_s.append(first_s - arrived_s)
            self.outcome.num_tokens += each.num_tokens
            self.outcome.num_cached += num_cached
            replica.keep(each)
            num_output = self._about(each.mix.num_output)
            self._at(first_s, self._computed, replica, num_bytes)
            self._at(first_s + num_output * step_s, self._finish, replica, each, num_output)

    def _computed(self, now: float, replica: Replica, num_bytes: int) -> None:
        replica.num_waiting_bytes -= num_bytes

    def _finish(self, now: float, replica: Replica, each: Conversation, num_output: int) -> None:
        replica.num_requests -= 1
        replica.num_running -= 1
        each.num_tokens += num_output
        replica.keep(each)
        each.num_turns -= 1
        if each.num_turns:
            each.num_tokens += self._about(each.mix.num_added)
            self._at(now + self._draws.expovariate(1 / each.mix.gap_s), self._arrive, each)
        else:
            self._num_open -= 1
        self._start(now, replica)


def main() -> int:
    """Run the command line."""
    parser = parser_of("routing", __doc__)
    parser.add_argument("--replicas", type=int, default=100, metavar="N", help="(%(default)s)")
    parser.add_argument("--conversations", type=int, default=10_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=6.0, metavar="R", help="new ones a second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    options = parsed(parser)
    ways: dict[str, Choose] = {
        "by prompts": _by_prompts,
        "fewest requests": _fewest,
        "consistent hashing": _hashed(options.replicas),
        "round robin": _in_turns(),
    }
    outcomes: dict[str, Outcome] = {}
    say_heads(["", "cached", "most requests / mean", "first token (median)", "99 %", "choice (median)"])
    for name, choose in ways.items():
        outcomes[name] = Simulation(options, choose).run()
        say_row([name, *outcomes[name].row()])
    first_token_s = {name: each.first_token_s for name, each in outcomes.items()}
    routing_plot(
        options.output / "routing.svg", first_token_s, {name: each.nums_served for name, each in outcomes.items()}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
