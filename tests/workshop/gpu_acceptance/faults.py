"""Faults on the served model: files that disappear, and processes that are killed under streams."""

from __future__ import annotations

import math
import os
import re
import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from openai import APITimeoutError, OpenAIError, Stream
from openai.types import Completion
from tritonclient.grpc import service_pb2

from model_repository.contract.tensors import model_id_to_ensemble, stage_name
from tests.grpc_client import generation
from tests.waiting import wait_until
from tests.workshop.gpu_acceptance.reference import TOLERANCE, Case, lacks
from tests.workshop.gpu_acceptance.report import Check, Step
from tests.workshop.gpu_acceptance.servers import Served
from tests.workshop.gpu_acceptance.subject import MAX_SEQUENCES

_NUM_STREAMS = 4
_NUM_QUEUED = 32
_ASKS_STAGES = 2, 67  # Triton's version from which it calls is_ready(): that of the image 26.03
_LONG: dict[str, Any] = {
    "prompt": "zq xv",
    "temperature": 0,
    "max_tokens": 1500,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
WHOLE = "whole"  # the end of a stream without an error
_STOP_S, _LEFT_S = 120.0, 10.0  # until the server, and then its other processes, must have ended
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
    victims = _victims(step, served, name, parts)
    if not victims:
        return
    streams = [served.client.completions.create(model=served.manifest.model_id, **_LONG) for _ in range(_NUM_STREAMS)]
    for stream in streams:
        next(stream)  # it has begun
    started = _killed(victims)
    ends = [end_of(stream) for stream in streams]
    ended_s, back_s = time.monotonic() - started, _seconds_until_answered(served, started)
    is_right = WHOLE not in ends and back_s < _BACK_S
    detail = (
        f"{len(victims)} killed; {_NUM_STREAMS} streams ended within {ended_s:.1f} s: {'; '.join(sorted(set(ends)))}; "
    )
    step.check(name, is_right, f"{detail}answers again after {back_s:.1f} s", time.monotonic() - started)


def watch_readiness(step: Step, served: Served) -> None:
    """Kill the workers of the idle model: Triton must say that its engine stage is not ready, until it works again."""
    name, stub = "a killed worker, and Triton's word that the stage is ready", served.triton.grpc_stub
    victims = _victims(step, served, name, WORKERS)
    if not victims:
        return
    stage = stage_name(model_id_to_ensemble(served.manifest.model_id), "engine")
    version = stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=_LEFT_S).version

    def is_ready() -> bool:
        return bool(stub.ModelReady(service_pb2.ModelReadyRequest(name=stage), timeout=_LEFT_S).ready)

    def num_reloads() -> int:
        return len(served.lines_with(f"reloading {stage}"))

    was_ready, before, started = is_ready(), num_reloads(), _killed(victims)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(served.subject.complete, prompt="Hello", max_tokens=1)  # 1.2.1 finds it by a request
        wait_until(lambda: not is_ready(), "Triton says that the stage is not ready", _BACK_S, pause_s=0.001)
        lost_s, is_before = time.monotonic() - started, num_reloads() == before
    wait_until(is_ready, "Triton says that the stage is ready", _BACK_S)
    detail = (
        f"Triton {version}: ready: {was_ready}; not ready after {lost_s:.2f} s, {'before' if is_before else 'in'} the "
        f"reload; ready again after {time.monotonic() - started:.1f} s"
    )
    if tuple(map(int, version.split(".")[:2])) < _ASKS_STAGES:
        step.checks.append(Check(name, "skipped", f"it does not ask stages before 26.03. {detail}", 0.0))
    else:
        step.check(name, was_ready and is_before, detail, time.monotonic() - started)


def cancel_queued(step: Step, served: Served) -> None:
    """Cancel requests in the engine's queue: they must leave it at once, and compute nothing."""
    triton, model, started = served.triton, served.manifest.model_id, time.monotonic()
    request = generation(max_tokens=_LONG["max_tokens"])
    before = triton.stats(model)
    running, queued = (
        [triton.stream(model_id_to_ensemble(model), request) for _ in range(number)]
        for number in (MAX_SEQUENCES, _NUM_QUEUED)
    )
    wait_until(lambda: triton.stats(model).num_waiting == _NUM_QUEUED, "the engine's queue has them")
    for call in queued:
        call.cancel()
    wait_until(lambda: not triton.stats(model).num_waiting, "they have left the queue")
    num_ended = triton.stats(model).num_finished - before.num_finished
    errors = {each.error_message for call in running for each in call} - {""}
    after = triton.stats(model)
    num_cancelled = after.num_cancelled - before.num_cancelled
    # A health check may have asked for a token.
    num_more = after.num_step_tokens - before.num_step_tokens - MAX_SEQUENCES * _LONG["max_tokens"]
    is_right = not num_ended and not errors and num_cancelled == _NUM_QUEUED and num_more < _NUM_QUEUED
    detail = f"{num_cancelled} of {_NUM_QUEUED} cancelled; {num_more} tokens beside those of the first; {errors or ''}"
    step.check("requests cancelled in the queue", is_right, detail, time.monotonic() - started)


def read_late(step: Step, served: Served) -> None:
    """Read a stream only after its computation has ended: it must be whole."""
    started, read = time.monotonic(), served.triton.read_late(served.manifest.model_id)
    detail = f"{read.num_bytes} bytes, errors: {read.errors}, equal texts: {read.text == read.whole_text}"
    step.check("a stream that is read late", read.is_whole, detail, time.monotonic() - started)


def stop(step: Step, served: Served) -> None:
    """End the server by SIGTERM: its status must be 0, its log must name no crash, and no process may be left."""
    started, process = time.monotonic(), psutil.Process(served.pid)
    children = process.children(recursive=True)
    process.terminate()
    status = process.wait(_STOP_S)
    _, left = psutil.wait_procs(children, timeout=_LEFT_S)
    log = served.log.read_text(encoding="utf-8", errors="replace").lower()
    crashes = [word for word in ("segmentation fault", "signal 11", "segfault") if word in log]
    detail = (
        f"status {status}; processes left: {[' '.join(each.cmdline())[:100] for each in left]}; in the log: {crashes}"
    )
    step.check("the server stops", not (status or left or crashes), detail, time.monotonic() - started)


def abort_prefills(step: Step, served: Served, checkpoint: Path, *, number: int, length: int) -> None:
    """Hang up in the prefill of prompts of `length` tokens. Later answers must be right, and no block in use."""
    subject, started = served.subject, time.monotonic()

    def prompt(index: int) -> list[int]:
        words = f"{index}: " + "the sea and the sky and the mountains " * (length // 4)
        found: list[int] = subject.post("/tokenize", prompt=words)["tokens"][:length]
        return found

    first_s = subject.stream(prompt=prompt(number), max_tokens=1, temperature=0).first_token_s
    num_left = 0
    for index in range(number):
        client = served.client.with_options(timeout=first_s * (index % 10 + 1) / 11)
        try:
            client.completions.create(model=subject.model, prompt=prompt(index), max_tokens=1, temperature=0)
        except APITimeoutError:
            num_left += 1
    cases = []
    for index in range(min(4, number)):
        request = {"prompt": prompt(index), "temperature": 0, "max_tokens": 20, "return_token_ids": True}
        cases.append(Case(prompt=prompt(index), tokens=subject.complete(**request)["token_ids"]))
    worst = max(each for case in lacks(checkpoint, cases) for each in case)
    usage = _kv_cache_usage(served)
    detail = f"{num_left} of {number} left before their token; tokens lack up to {worst:.3f}; KV cache in use: {usage}"
    is_right = num_left > 0 and worst < TOLERANCE and not usage > 0
    step.check("aborts in the prefill", is_right, detail, time.monotonic() - started)


def _kv_cache_usage(served: Served) -> float:
    """Return the used share of the idle server's KV cache, once it is 0 or after 30 s; NaN: not known."""
    deadline, usage = time.monotonic() + 30, 1.0
    while usage > 0 and time.monotonic() < deadline:
        with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
            found = re.findall(r"^conch_kv_cache_usage_ratio\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        usage = max(map(float, found), default=math.nan)
        time.sleep(0.2)
    return usage


def end_of(stream: Stream[Completion]) -> str:
    """Read a stream to its end, and return the error, or that it seems whole."""
    try:
        for _ in stream:
            pass
    except Exception as exc:  # a broken connection raises one of the SDK's HTTP library, which depends on its version
        return f"{type(exc).__name__}: {exc}"
    return WHOLE


def _victims(step: Step, served: Served, name: str, parts: tuple[str, ...]) -> list[int]:
    """Return the processes with one of some parts in their command lines. If there are none, a check says so."""
    processes = _descendants(served.pid)
    found = [pid for pid, (_, command) in processes.items() if any(part in command for part in parts)]
    if not found:
        names = "; ".join(sorted({command[:100] for _, command in processes.values()}))
        step.checks.append(Check(name, "skipped", f"no process with {' or '.join(parts)}; there are {names}", 0.0))
    # The engine stage forks processes that compile grammars, with its own command line.
    return [pid for pid in found if processes[pid][0] not in found]


def _killed(victims: list[int]) -> float:
    """Kill processes, and return when."""
    started = time.monotonic()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return started


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
