"""In which order completions go on after a death: simulated engines, which some of the requests end."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.triton.generating import MAX_RESUMPTIONS
from frontend.triton.resuming import MAX_ALONE_S, PAUSE_S, PROOF_TOKENS, Line, Suspect, Waiting

STEP_S = 0.05
TOKENS_PER_STEP = 2
RELOAD_S = 2.0


@dataclass(eq=False)
class Engine:
    world: World
    ready_s: float = 0.0
    begun_s: float = -math.inf
    running: set[Stream] = field(default_factory=set)

    @property
    def quiet_s(self) -> float:
        return self.world.now - self.begun_s

    def was_seen_after(self, time_s: float) -> bool:
        return self.world.now >= self.ready_s > time_s


@dataclass(eq=False)
class Stream:
    suspect: Suspect
    num_left: int
    ends_engine_after: int | None = None  # tokens at an engine; None: it never does
    num_deaths: int = 0
    died_s: float = 0.0
    longest_s: float = 0.0  # from a death to its next beginning
    is_found: bool = False


class World:
    """Engines and streams in steps of time."""

    def __init__(self, num_engines: int) -> None:
        self.now = 100.0
        self.engines = [Engine(self) for _ in range(num_engines)]
        self.line: Line[Engine] = Line(self.ready, lambda: self.now)
        self.by_suspect: dict[Suspect, Stream] = {}
        self.num_deaths = 0

    def ready(self) -> list[Engine]:
        return [each for each in self.engines if self.now >= each.ready_s]

    def begin(self, stream: Stream, engine: Engine) -> None:
        stream.suspect.num_tokens, engine.begun_s = 0, self.now
        if stream.num_deaths:
            stream.longest_s = max(stream.longest_s, self.now - stream.died_s)
        self.by_suspect[stream.suspect] = stream
        engine.running.add(stream)

    def step(self) -> None:
        self.now += STEP_S
        for entry, engine in self.line.assign():
            self.begin(self.by_suspect[entry.suspect], engine)
        for engine in self.ready():
            for stream in tuple(engine.running):
                stream.suspect.num_tokens += TOKENS_PER_STEP
                stream.num_left -= TOKENS_PER_STEP
                if stream.num_left <= 0:
                    stream.suspect.is_over = True
                    engine.running.remove(stream)
            if any(
                each.ends_engine_after is not None and each.suspect.num_tokens > each.ends_engine_after
                for each in engine.running
            ):
                self.kill(engine)

    def kill(self, engine: Engine) -> None:
        self.num_deaths += 1
        engine.ready_s = self.now + RELOAD_S
        dead, engine.running = engine.running, set()
        for stream in dead:
            stream.num_deaths, stream.died_s = stream.num_deaths + 1, self.now
            stream.is_found = self.line.died(stream.suspect, engine)
            if stream.is_found:
                stream.suspect.is_over = True
            else:
                self.line.waiting.append(Waiting(stream.suspect, lambda engine: True))

    def run_until_all_end(self, within_s: float) -> None:
        end_s = self.now + within_s
        while self.line.waiting or any(each.running for each in self.engines):
            assert self.now < end_s, [each.suspect for each in self.line.waiting]
            self.step()


@settings(deadline=None, max_examples=150)
@given(
    num_streams=st.integers(1, 40),
    num_engines=st.integers(1, 3),
    poisons=st.lists(st.tuples(st.integers(0, 39), st.integers(0, PROOF_TOKENS - 2 * TOKENS_PER_STEP)), max_size=3),
    num_senders=st.integers(1, 40),
)
def test_only_the_requests_that_end_engines_fail(
    num_streams: int, num_engines: int, poisons: list[tuple[int, int]], num_senders: int
) -> None:
    world = World(num_engines)
    streams = [Stream(Suspect(str(number % num_senders)), 400) for number in range(num_streams)]
    for number, delay in poisons:
        streams[number % num_streams].ends_engine_after = delay
    for number, stream in enumerate(streams):
        world.begin(stream, world.engines[number % num_engines])
    world.run_until_all_end(1000.0)
    harmless = [each for each in streams if each.ends_engine_after is None]
    assert [each for each in streams if each.is_found] == [each for each in streams if each not in harmless]
    assert world.num_deaths <= 4 * len(poisons)
    assert max((each.num_deaths for each in harmless), default=0) <= MAX_RESUMPTIONS
    if len(poisons) == 1:
        assert max((each.longest_s for each in harmless), default=0.0) < 20.0


def test_new_requests_keep_away_for_seconds_and_longer_pauses_follow() -> None:
    """A sender whose requests end engines must not keep others waiting."""
    world, quarantines = World(1), list[tuple[float, float]]()
    [engine] = world.engines
    for _ in range(40_000):
        for _ in range(3 - len(engine.running) - len(world.line.waiting)):
            world.begin(Stream(Suspect("bad"), 400, ends_engine_after=0), engine)
        was_open = world.line.takes_new(engine)
        world.step()
        if was_open and not world.line.takes_new(engine):
            quarantines.append((world.now, world.now))
        elif not was_open and quarantines:
            quarantines[-1] = quarantines[-1][0], world.now
    assert all(end - begin <= MAX_ALONE_S + RELOAD_S + 1.0 for begin, end in quarantines), quarantines
    pauses = [after[0] - before[1] for before, after in itertools.pairwise(quarantines)]
    assert len(pauses) >= 2 and all(pause >= PAUSE_S for pause in pauses), pauses
    assert pauses[1] > pauses[0]
