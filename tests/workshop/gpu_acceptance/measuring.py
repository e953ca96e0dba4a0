"""Figures of a served model: the time to the first token, and the speed of many streams."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.launching import KEY_OF_ALL
from tests.waiting import wait_until
from tests.workshop.gpu_acceptance.report import Step
from tests.workshop.gpu_acceptance.servers import Served
from tests.workshop.load.accounting import Processes
from tests.workshop.load.load import Load, Target
from tests.workshop.load.runs import measure

NUM_STREAMS = (1, 32, 128)
QUICK_NUM_STREAMS = (1, 2)
# Forms that no text within the limit can end.
FORM = {"response_format": {"type": "regex", "regex": "[a-z ,.]{1500}"}}
_OBJECT = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}}}
_SCHEMA = {"type": "array", "minItems": 100, "items": _OBJECT | {"required": ["name", "age"]}}
FORMS: dict[str, dict[str, Any]] = {
    "a wide pattern": FORM,
    "a JSON schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": _SCHEMA}}},
}
_LOAD = Load(num_tokens=256, prompt_words=40, api="completions", warmup_s=5, window_s=12)
_QUICK = replace(_LOAD, num_tokens=8, warmup_s=0.1, window_s=0.5)
_STATISTICS_S = 60.0  # until the engine has read the statistics, which it does each second
_MAX_IDLE_TTFT_S = 1.0  # the fault that this looks for makes it 5 s on average


def measure_streams(step: Step, name: str, target: Target, *, is_quick: bool, form: str = "") -> None:
    """Add a check with the figures of each number of streams; it fails if an answer is not whole.

    Args:
        name: of the server.
        form: the texts are structured outputs; its name in FORMS.
    """
    load = _QUICK if is_quick else _LOAD
    fields = {**load.fields, **(FORMS[form] if form else {})}
    for num_streams in QUICK_NUM_STREAMS if is_quick else NUM_STREAMS:
        started = time.monotonic()
        one = replace(
            load,
            num_streams=num_streams,
            fields=fields,
            ignores_eos=not form,  # the two are refused together
            seed=1000 * len(step.checks) + num_streams,  # other prompts each time, since a server may cache them
        )
        result, window = measure(one, target, Processes({}))
        ttft, gap = result.ttft_ms, result.chunk_gap_ms
        figures = (
            f"{result.num_tokens / window.duration_s:,.0f} tokens/s; first token after {ttft.at(50):.0f} ms "
            f"(99%: {ttft.at(99):.0f}); between chunks {gap.at(50):.1f} ms (99%: {gap.at(99):.1f}); "
            f"{result.num_sent} requests, {result.num_failed} failed {result.errors or ''}"
        )
        kind = f"streams with {form}" if form else "streams"
        is_right = bool(result.num_tokens) and not result.num_failed
        step.check(f"{name}, {num_streams} {kind}", is_right, figures, time.monotonic() - started)


def show_first_requests(step: Step, served: Served) -> None:
    """Add a line with the time to the first token of the first request of each kind: kernels may be compiled for it."""
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0},
        "sampled": {"temperature": 0.9, "top_p": 0.9, "top_k": 40},
        "penalties": {"temperature": 0, "presence_penalty": 1},
        "structured": {"temperature": 0, **FORM},
    }
    stream = served.subject.stream
    times_s = {name: stream(prompt="The sea", max_tokens=4, **kinds[name]).first_token_s for name in kinds}
    figures = ", ".join(f"{name} {1000 * each:.0f}" for name, each in times_s.items())
    step.lines.append(f"first requests: first tokens after (ms) {figures}")


def check_statistics(step: Step, served: Served) -> None:
    """Add a check of TensorRT-LLM's statistics: the time of a step, and the blocks of a prompt that comes twice."""
    triton, model, started = served.triton, served.manifest.model_id, time.monotonic()
    before = triton.stats(model).library
    for _ in range(2):
        served.subject.complete(prompt="The sea, the sky and the mountains again. " * 30, max_tokens=2)
    wait_until(
        lambda: triton.stats(model).library.num_reused_blocks > before.num_reused_blocks,
        "the statistics name blocks that were reused",
        _STATISTICS_S,
    )
    after = triton.stats(model).library
    step_ms = 1000 * after.step_s / after.num_steps
    detail = (
        f"{after.num_steps} steps of {step_ms:.2f} ms; blocks of a prompt that came twice: "
        f"{after.num_missed_blocks - before.num_missed_blocks} computed, "
        f"{after.num_reused_blocks - before.num_reused_blocks} reused"
    )
    step.check("statistics of the steps", 0.1 < step_ms < 1000, detail, time.monotonic() - started)


def measure_loads(step: Step, served: Served, adapters: list[Path], *, room: int, keeps: bool) -> None:
    """Load adapters one after the other, with a line of the GPUs' memory after each.

    Args:
        adapters: folders below the server's root of adapters.
        room: adapters that TensorRT-LLM has room for.
        keeps: TensorRT-LLM never frees one, so the figures are only for the reader.
    """
    triton, model, started, used = served.triton, served.manifest.model_id, time.monotonic(), []
    for folder in adapters:
        order = {"load_adapter": folder.name, "source": folder.name}
        num_bytes = triton.stats(model, key=KEY_OF_ALL, **order).adapter_bytes
        used.append(_gpu_memory_mib())
        step.lines.append(f"{folder.name}: {used[-1]} MiB of the GPUs in use; adapter_bytes {num_bytes}")
        triton.stats(model, key=KEY_OF_ALL, unload_adapter=folder.name)
    further_mib = sum(path.stat().st_size for folder in adapters[room:] for path in folder.iterdir()) / 2**20
    grown_mib = used[-1] - used[room - 1]
    detail = f"the GPUs' memory grew by {grown_mib} MiB after the first {room}; the other files have {further_mib:.1f}"
    is_right = keeps or grown_mib <= further_mib / 4  # files of 32 bits take half on the GPU
    step.check(f"{len(adapters)} adapters, one after the other", is_right, detail, time.monotonic() - started)


def measure_pauses(step: Step, served: Served, pauses_s: list[float]) -> None:
    """Add a check with the times to the first token of requests after pauses, and without."""

    def ttft_s(number: int, pause_s: float) -> float:
        time.sleep(pause_s)
        return served.subject.stream(prompt=f"{number}: The sea", max_tokens=4, temperature=0).first_token_s

    for name, pauses in (("one after the other", [0.0] * len(pauses_s)), ("after pauses", pauses_s)):
        started = time.monotonic()
        times_s = [ttft_s(number, pause_s) for number, pause_s in enumerate(pauses)]
        figures = " ".join(f"{1000 * each:.0f}" for each in times_s)
        detail = f"first tokens after {figures} ms; pauses of {min(pauses):g} to {max(pauses):g} s"
        step.check(f"requests {name}", max(times_s) < _MAX_IDLE_TTFT_S, detail, time.monotonic() - started)


def _gpu_memory_mib() -> int:
    """Return the memory in use of all GPUs."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()))
