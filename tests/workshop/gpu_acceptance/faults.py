"""Faults on the served model: files that disappear, and processes that are killed under streams."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import psutil
from openai import OpenAIError, Stream
from openai.types import Completion

from tests.workshop.gpu_acceptance.report import Check, Step
from tests.workshop.gpu_acceptance.servers import Served

_NUM_STREAMS = 4
_LONG: dict[str, Any] = {
    "prompt": "zq xv",
    "temperature": 0,
    "max_tokens": 1500,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
WHOLE = "whole"  # the end of a stream without an error
_BACK_S = 900.0  # until a killed engine must answer again
# Parts of command lines. The worker's is the module that mpi4py starts; another one is that of the test double.
ENGINE, WORKERS = "__engine/1/model.py", ("mpi4py.futures", "tensorrt_llm_double_worker")


def lose_adapter_files(step: Step, served: Served, adapter: str) -> None:
    """Move the files of an adapter away; its requests must be answered as before or refused, and the others go on."""

    def text(model: str) -> str:
        try:
            return repr(served.subject.complete(model=model, prompt="The sea", max_tokens=8, temperature=0)["text"])
        except OpenAIError as exc:
            return f"refused: {exc}"

    model, folder = served.manifest.model_id, served.artifact / served.manifest.adapters[adapter]
    before = {name: text(name) for name in (model, adapter)}
    hidden = folder.with_name(f".{folder.name}")
    folder.rename(hidden)
    try:
        beside = served.client.completions.create(model=model, **_LONG)
        after = {name: text(name) for name in (adapter, model)}
        end = end_of(beside)
    finally:
        hidden.rename(folder)
    is_right = after[model] == before[model] and end == WHOLE
    is_right &= not any(each.startswith("refused") for each in before.values())
    is_right &= after[adapter] == before[adapter] or after[adapter].startswith("refused")
    detail = f"the adapter: {before[adapter]}, then {after[adapter]}; a stream beside it: {end}"
    step.check("the files of an adapter are gone", is_right, detail)


def kill(step: Step, served: Served, name: str, parts: tuple[str, ...]) -> None:
    """Kill the processes with one of some parts in their command lines, under streams.

    Every stream must end with an error, and the model must answer again.
    """
    processes = _descendants(served.pid)
    victims = [pid for pid, (_, command) in processes.items() if any(part in command for part in parts)]
    # The engine stage forks processes that compile grammars, with its own command line.
    victims = [pid for pid in victims if processes[pid][0] not in victims]
    if not victims:
        names = "; ".join(sorted({command[:100] for _, command in processes.values()}))
        step.checks.append(Check(name, "skipped", f"no process with {' or '.join(parts)}; there are {names}", 0.0))
        return
    streams = [served.client.completions.create(model=served.manifest.model_id, **_LONG) for _ in range(_NUM_STREAMS)]
    for stream in streams:
        next(stream)  # it has begun
    started = time.monotonic()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    ends = [end_of(stream) for stream in streams]
    ended_s, back_s = time.monotonic() - started, _seconds_until_answered(served, started)
    is_right = WHOLE not in ends and back_s < _BACK_S
    detail = (
        f"{len(victims)} killed; {_NUM_STREAMS} streams ended within {ended_s:.1f} s: {'; '.join(sorted(set(ends)))}; "
    )
    step.check(name, is_right, f"{detail}answers again after {back_s:.1f} s", time.monotonic() - started)


def end_of(stream: Stream[Completion]) -> str:
    """Read a stream to its end, and return the error, or that it seems whole."""
    try:
        for _ in stream:
            pass
    except Exception as exc:  # a broken connection raises one of the SDK's HTTP library, which depends on its version
        return f"{type(exc).__name__}: {exc}"
    return WHOLE


def _descendants(pid: int) -> dict[int, tuple[int, str]]:
    """Return the parent and the command line of each process below another one, by its id."""
    found = {}
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            found[each.pid] = each.ppid(), " ".join(each.cmdline())
    return found


def _seconds_until_answered(served: Served, started: float) -> float:
    while (passed_s := time.monotonic() - started) < _BACK_S:
        try:
            served.subject.stream(prompt="Hello", max_tokens=1, temperature=0)
        except OpenAIError:
            time.sleep(0.5)
        else:
            break
    return passed_s
