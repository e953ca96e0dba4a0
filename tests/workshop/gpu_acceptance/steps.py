"""The steps of the first hour on a GPU host, in their order."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from build_engines.commands.adapter import build_adapter
from build_engines.commands.build_tensorrt_llm import EXAMPLES
from build_engines.peft import FILES
from build_engines.tensorrt_llm.checks import available_ram_bytes
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.engine.tensorrt_llm.releases import release_of
from tests.tensorrt_llm_artifact import DEMO
from tests.workshop.gpu_acceptance import faults
from tests.workshop.gpu_acceptance.measuring import (
    FORMS,
    NUM_STREAMS,
    check_statistics,
    measure_loads,
    measure_pauses,
    measure_streams,
    show_first_requests,
)
from tests.workshop.gpu_acceptance.preparation import checked, needs
from tests.workshop.gpu_acceptance.recorder import Recorder
from tests.workshop.gpu_acceptance.reference import TOLERANCE, Case, lacks
from tests.workshop.gpu_acceptance.report import Check, LeftOut, Step, UnmetNeeds
from tests.workshop.gpu_acceptance.servers import ALIAS, Host, Served, Variant
from tests.workshop.gpu_acceptance.subject import MAX_SEQUENCES
from tests.workshop.load.load import Target

ROOT = Path(__file__).parents[3]
_PARAMETERS = "tests/integration/test_parameters.py"
CHECKS = (
    "tests/workshop/gpu_acceptance/claims.py",
    f"{_PARAMETERS}::test_the_tensorrt_llm_runtime_shows_the_same_effects",
    f"{_PARAMETERS}::test_a_model_of_tensorrt_llm_that_reads_no_images_refuses_them",
)
_PACKAGES = ("conch", "tensorrt_llm", "tensorrt", "torch", "transformers", "peft", "numpy", "tokenizers", "llguidance")
_DEMO_ADAPTERS = tuple((f"demo-{name}", str(DEMO / "adapters" / name)) for name in ("formal", "thinking"))
_QUESTIONS = (
    "Count from 1 to 9.",
    "What is the capital of France?",
    "Tell me the story of the shell.",
    "What is the opposite of hot?",
)
_NUM_PAUSES = 20
_NUM_GPUS_OF_LARGE = 2
_NUM_UNDER_PRESSURE = 32
_NUM_LOADS, _MAX_ADAPTERS = 30, 4
_OVERLAP = ("--option=overlap_scheduler=true", "--option=guided_decoding=native_llguidance")
_MANY = (f"--max-sequences={max(NUM_STREAMS)}",)
# Lines of a log that must not be there, with what they contradict.
_NOT_IN_LOG = {
    "a request of each kind was served before the model was ready": "such requests will fail",
    "the KV cache manager is the one that was chosen": "KVCacheV2Scheduler",
}
_NO_ADAPTER = "no adapter of this model is known: --adapter NAME=DIR"
_NUM_ROUNDS = 2  # of servers in turns, but for a trial


@dataclass(frozen=True, slots=True)
class Plan:
    """A step: its name, what it does in one line, an estimate of its time, and the claims that it proves."""

    name: str
    what: str
    minutes: float  # on 8 x H100, without downloads
    run: Callable[[Host, Step], None]
    proves: tuple[str, ...] = ()  # of docs/gpu.md's list


def doctor(host: Host, step: Step) -> None:
    step.lines += _nvidia_smi()
    host.command(step, "doctor", "--home", str(host.options.home), module="frontend")


def image(host: Host, step: Step) -> None:
    version = host.machine.tensorrt_llm_version
    step.lines.append(f"Python {platform.python_version()}, {platform.platform()}")
    step.lines.append(f"{os.cpu_count()} CPU cores, {available_ram_bytes() / 1e9:,.1f} GB of free RAM")
    step.lines.append(f"memory that may be locked: {resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]} bytes (-1: all)")
    step.lines += [f"{package} {_version(package)}" for package in _PACKAGES]
    step.lines.append(f"taken for {release_of(version)}")
    (host.options.report / "packages.txt").write_text(_all_packages(), encoding="utf-8")
    examples = Path(host.options.tensorrt_llm_examples or EXAMPLES)
    unmet = []
    for need in needs(examples if release_of(version).has_engines else None):
        check = checked(need)
        step.checks.append(check)
        if check.outcome == "failed" and need.ends_run:
            unmet.append(need.name)
    if unmet:
        raise UnmetNeeds(f"not so here: {', '.join(unmet)}")


def device(host: Host, step: Step) -> None:
    path = host.options.report / "device.json"
    command = [sys.executable, "-m", "tests.workshop.gpu_acceptance.device", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if not path.is_file():
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    for each in json.loads(path.read_text(encoding="utf-8")):
        step.check(each["check"], each["passed"], each["detail"])


def small_model(host: Host, step: Step) -> None:
    served = host.serve(_small(host), step)
    step.lines += served.lines_with("warm-up (")
    for name, text in _NOT_IN_LOG.items():
        step.check(name, not served.lines_with(text), f"the log must not have {text!r}")
    show_first_requests(step, served)
    check_statistics(step, served)
    _check(served, step)


def texts(host: Host, step: Step) -> None:
    _compare(host, step, _small(host), {"the model": ""})


def adapters(host: Host, step: Step) -> None:
    variant = _with_adapters(host)
    if not variant.adapters:
        raise LeftOut(_NO_ADAPTER)
    _compare(host, step, variant, dict(variant.adapters))
    root, room = host.options.home / "adapters", len(variant.adapters) + _MAX_ADAPTERS
    root.mkdir(exist_ok=True)
    flags = (f"--adapter-root={root}", f"--max-adapters={_MAX_ADAPTERS}")
    served = host.serve(replace(variant, name="loads", build_flags=(*variant.build_flags, *flags)), step)
    source = Path(variant.adapters[-1][1])
    number = room + 2 if host.options.quick else _NUM_LOADS
    copies = [_changed_adapter(host, served, source, root, index) for index in range(number)]
    keeps = release_of(host.machine.tensorrt_llm_version).keeps_adapters
    measure_loads(step, served, copies, room=room, keeps=keeps)


def aborts(host: Host, step: Step) -> None:
    variant = _small(host)
    variant = replace(variant, name="aborts", build_flags=(*variant.build_flags, "--max-num-tokens=512"))  # for chunks
    served, is_quick = host.serve(variant, step), host.options.quick
    length = min(600 if is_quick else 16_000, served.subject.context_window - 100)
    checkpoint = host.artifact(_small(host), step) / "checkpoint"
    for _ in range(1 if is_quick else 2):
        faults.abort_prefills(step, served, checkpoint, number=11 if is_quick else 100, length=length)


def pressure(host: Host, step: Step) -> None:
    plain: dict[str, Any] = {"temperature": 0, "max_tokens": 60 if host.options.quick else 512, "ignore_eos": True}
    kinds = [
        plain | {"ignore_eos": False, "response_format": {"type": "regex", "regex": "([a-c][x-z]){200}"}},
        plain | {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        plain,
    ]
    prompts = [f"{number}: " + "the sea, the sky and the mountains, " * 10 for number in range(_NUM_UNDER_PRESSURE)]
    requests = [{**kinds[number % 3], "prompt": prompt} for number, prompt in enumerate(prompts)]
    limits = (f"--max-sequences={_NUM_UNDER_PRESSURE}", "--llm-option=kv_cache_config.max_tokens=4096")
    texts: list[list[str]] = []
    for name, options in _under_pressure(host).items():
        served = host.serve(replace(_small(host), name=name, build_flags=(f"--alias={ALIAS}", *limits, *options)), step)
        step.lines += served.lines_with("KV cache manager V2 pins up to")
        started, num_paused = time.monotonic(), 0
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(served.subject.complete_all, requests)
            while not answers.done():
                num_paused = max(num_paused, served.triton.stats(served.manifest.model_id).library.num_paused)
                wait([answers], timeout=0.2)
        texts.append([choice["text"] for choice in answers.result()])
        num_wrong = sum(not re.fullmatch("([a-c][x-z])*[a-c]?", text) for text in texts[-1][::3])
        num_equal = sum(map(str.__eq__, texts[0], texts[-1]))
        detail = (
            f"{num_wrong} texts break their form; {num_equal} of {len(prompts)} texts as of the first server; up to "
            f"{num_paused} paused in the last steps of seconds"
        )
        step.check(name, not num_wrong, detail, time.monotonic() - started)


def pauses(host: Host, step: Step) -> None:
    first_s, last_s = (0.1, 0.3) if host.options.quick else (12.0, 25.0)
    between_s = (last_s - first_s) / (_NUM_PAUSES - 1)
    served = host.serve(_small(host), step)
    show_first_requests(step, served)
    measure_pauses(step, served, [first_s + number * between_s for number in range(_NUM_PAUSES)])


def schedulers(host: Host, step: Step) -> None:
    variants = {"our masks": _fast(host), "overlap and native masks": _fast(host, *_OVERLAP)}
    _in_turns(host, step, {name: _ours(host, step, variant) for name, variant in variants.items()}, forms=("", *FORMS))
    subject = host.serve(variants["overlap and native masks"], step).subject
    text = subject.complete(prompt="zq xv", temperature=0, max_tokens=30, response_format=_SHORT_FORM)["text"]
    step.check("native masks keep the form", text == "ab" * 7, repr(text))


def peer(host: Host, step: Step) -> None:
    if shutil.which("trtllm-serve") is None:
        raise LeftOut("trtllm-serve is not on PATH")
    ours = {
        "Conch": _ours(host, step, _fast(host)),
        "Conch with overlap": _ours(host, step, _fast(host, *_OVERLAP)),
    }
    _in_turns(host, step, ours | {"trtllm-serve": lambda: host.trtllm_serve(_fast(host), step)})


def engine(host: Host, step: Step) -> None:
    version = host.machine.tensorrt_llm_version
    if not release_of(version).has_engines:
        raise LeftOut(f"TensorRT-LLM {version} has no engines")
    base, examples = _with_adapters(host), host.options.tensorrt_llm_examples
    flags = [f"--tensorrt-llm-examples={examples}"] if examples else []
    flags.append("--option=prompt_logprobs=true")  # the table of parameters needs them
    variant = replace(base, name="engine", backend=Backend.ENGINE, build_flags=(*base.build_flags, *flags))
    _check(host.serve(variant, step), step)
    _compare(host, step, variant, {"the model": "", **dict(variant.adapters)})


def large_model(host: Host, step: Step) -> None:
    _require_gpus(host, _NUM_GPUS_OF_LARGE)
    measure_streams(step, "one", host.serve(_large(host), step).target, is_quick=host.options.quick)


def replicas(host: Host, step: Step) -> None:
    _require_gpus(host, 2 * _NUM_GPUS_OF_LARGE)
    number = min(4, host.machine.num_gpus // _NUM_GPUS_OF_LARGE)
    large = _large(host)
    variant = replace(large, name="replicas", build_flags=(*large.build_flags, f"--replicas={number}"))
    served = host.serve(variant, step)
    step.lines += _nvidia_smi()
    measure_streams(step, f"{number} replicas", served.target, is_quick=host.options.quick)


def triton(host: Host, step: Step) -> None:
    served = host.serve(_small(host), step)
    for check in (faults.read_late, faults.cancel_queued, faults.watch_readiness):
        check(step, served)


def all_faults(host: Host, step: Step) -> None:
    variant = _with_adapters(host)
    if variant.adapters:
        faults.lose_adapter_files(step, host.serve(variant, step), variant.adapters[0][0])
    else:
        step.checks.append(Check("the files of an adapter are gone", "skipped", _NO_ADAPTER, 0.0))
    for name, parts in (("a killed engine process", (faults.ENGINE,)), ("a killed worker", faults.WORKERS)):
        faults.kill(step, host.serve(variant, step), name, parts)
    host.close()  # a server without a fault
    faults.stop(step, host.serve(variant, step))


_SHORT_FORM = {"type": "regex", "regex": "(ab){7}"}
STEPS = (
    Plan("doctor", "`conch doctor` and nvidia-smi", 0.5, doctor),
    Plan("image", "the release, its packages, and what a build and a server need", 2, image),
    Plan("device", "our edits of logits on the GPU, and their cost, without TensorRT-LLM", 3, device),
    Plan("pytorch", "builds and serves a small model by the PyTorch backend, and checks it", 5, small_model),
    Plan(
        "texts",
        "its greedy tokens under transformers",
        1,
        texts,
        ("Greedy tokens are those of transformers on the same checkpoint.",),
    ),
    Plan(
        "adapters",
        "greedy tokens of its adapters under transformers and peft; the GPUs' memory while adapters are loaded",
        4,
        adapters,
        (
            "Greedy tokens under LoRA adapters are those of peft, with both backends.",
            "An adapter's answers are right beside CUDA graphs on 1.3, and without them on 1.2.1.",
        ),
    ),
    Plan(
        "aborts",
        "100 clients hang up while long prompts are computed, twice; then the same prompts",
        2,
        aborts,
        proves=("Clients that leave during a prefill in chunks leave nothing wrong in the KV cache.",),
    ),
    Plan(
        "pressure",
        f"{_NUM_UNDER_PRESSURE} streams in a KV cache of 4,096 tokens, with both policies, and with manager V2",
        4,
        pressure,
    ),
    Plan(
        "pauses",
        f"the first tokens of {_NUM_PAUSES} requests after pauses of 12 to 25 s",
        7,
        pauses,
        ("A request to a model that was idle for 12 to 25 s has its first token within a second.",),
    ),
    Plan(
        "schedulers",
        "our masks, or the overlap scheduler with native masks: 1, 32, 128 streams, with and without forms",
        18,
        schedulers,
        ("With overlap_scheduler=true and guided_decoding=native_llguidance, an answer keeps a regular expression.",),
    ),
    Plan("peer", "1, 32, 128 streams beside trtllm-serve on the same checkpoint, in turns", 15, peer),
    Plan("engine", "compiles and serves an engine of the small model with its adapters, and checks it", 8, engine),
    Plan("large", "the large model, of 70B in FP8, on two GPUs: 1, 32, 128 streams", 6, large_model),
    Plan(
        "replicas",
        "up to four replicas of it: 1, 32, 128 streams",
        5,
        replicas,
        (  # two that share a GPU would not fit
            "Several replicas in one Triton: each engine stage sees its own GPUs alone, and their workers do not "
            "disturb each other.",
        ),
    ),
    Plan(
        "triton",
        "a stream that is read late, requests cancelled in the queue, a stage after its worker was killed",
        2,
        triton,
    ),
    Plan(
        "faults",
        "an adapter without its files, a killed engine process, a killed worker, a stop",
        4,
        all_faults,
        ("Streams of a killed engine process, or of a killed worker, end with an error, and the model answers again.",),
    ),
)


def downloads(host: Host, chosen: Collection[str]) -> list[Variant]:
    """Return the variants of steps whose checkpoints may have to be downloaded, in the order of their steps."""
    found = [_fast(host)] if {"schedulers", "peer"} & {*chosen} else []
    if {"large", "replicas"} & {*chosen} and host.machine.num_gpus >= _NUM_GPUS_OF_LARGE:
        found.append(_large(host))
    return found


def _small(host: Host) -> Variant:
    options = host.options
    window = (f"--max-seq-len={options.max_seq_len}",) if options.max_seq_len else ()
    return Variant(
        name="small",
        model=options.model,
        checkpoint=options.checkpoint or host.checkpoint(options.model, ""),
        plan_flags=window,
        build_flags=(f"--alias={ALIAS}", f"--max-sequences={MAX_SEQUENCES}"),
    )


def _with_adapters(host: Host) -> Variant:
    """Return the small model with its adapters, if some are known."""
    options = host.options
    given = tuple(tuple(each.split("=", 1)) for each in options.adapter)
    found = given or (_DEMO_ADAPTERS if options.model == "demo" else ())
    return replace(_small(host), name="adapters", adapters=found)


def _under_pressure(host: Host) -> dict[str, tuple[str, ...]]:
    """Return the options of servers with too small a KV cache, by name. All but the first one pause sequences."""
    found: dict[str, tuple[str, ...]] = {
        "guaranteed_no_evict": ("--option=scheduler_policy=guaranteed_no_evict",),
        "max_utilization": ("--option=scheduler_policy=max_utilization",),
    }
    if release_of(host.machine.tensorrt_llm_version).has_kv_cache_manager_v2:
        found["v2"] = ("--option=kv_cache_manager=v2",)
        found["v2-alone"] = (*found["v2"], "--llm-option=kv_cache_config.host_cache_size=0")  # computes anew
    return found


def _changed_adapter(host: Host, served: Served, source: Path, root: Path, index: int) -> Path:
    """Convert an adapter for loading into a server, with low bits of a weight that say the index; return its folder."""
    target = root / f"night-{index}"
    with TemporaryDirectory() as folder:
        copy = shutil.copytree(source, Path(folder) / target.name)
        weights = (copy / FILES[1]).read_bytes()
        (copy / FILES[1]).write_bytes(weights[:-4] + bytes([index]) + weights[-3:])
        build_adapter(copy, served.artifact, target, (Path(host.options.catalog),))
    return target


def _fast(host: Host, *options: str) -> Variant:
    model = host.options.speed_model
    flags = ("--max-seq-len=2048", f"--max-batch-size={max(NUM_STREAMS)}")
    return Variant(
        name="overlap" if options else "default",
        model=model,
        checkpoint=host.checkpoint(model, ""),
        plan_flags=flags,
        build_flags=(*_MANY, *options),
    )


def _large(host: Host) -> Variant:
    model, precision = host.options.large_model, "" if host.options.large_model == "demo" else "fp8"
    flags = (f"--gpus={_NUM_GPUS_OF_LARGE}", "--max-seq-len=2048", f"--max-batch-size={max(NUM_STREAMS)}")
    return Variant(
        name="large",
        model=model,
        checkpoint=host.checkpoint(model, precision),
        plan_flags=flags + ((f"--precision={precision}",) if precision else ()),
        build_flags=_MANY,
    )


def _require_gpus(host: Host, number: int) -> None:
    if host.machine.num_gpus < number:
        raise LeftOut(f"needs {number} GPUs, and this host has {host.machine.num_gpus}")


def _ours(host: Host, step: Step, variant: Variant) -> Callable[[], AbstractContextManager[Target]]:
    return lambda: nullcontext(host.serve(variant, step).target)


def _in_turns(
    host: Host,
    step: Step,
    servers: dict[str, Callable[[], AbstractContextManager[Target]]],
    forms: Collection[str] = ("",),
) -> None:
    """Measure servers one after the other, and all of them again. The GPU has one at a time."""
    for number in range(1, 2 if host.options.quick else _NUM_ROUNDS + 1):
        for name, serving in servers.items():
            with serving() as target:
                for form in forms:
                    label = f"{name}, round {number}"
                    measure_streams(step, label, target, is_quick=host.options.quick, form=form)


def _compare(host: Host, step: Step, variant: Variant, models: dict[str, str]) -> None:
    """Compare greedy answers with transformers.

    Args:
        models: names of adapters with their folders; the model itself has none.
    """
    checkpoint = host.artifact(_small(host), step) / "checkpoint"  # an engine's artifact has none
    subject = host.serve(variant, step).subject
    for name, folder in models.items():
        started, cases = time.monotonic(), []
        for question in _QUESTIONS:
            prompt = subject.post("/tokenize", messages=[{"role": "user", "content": question}])["tokens"]
            fields = {"prompt": prompt, "temperature": 0, "max_tokens": 60, "return_token_ids": True}
            tokens = subject.complete(**fields, model=name if folder else subject.model)["token_ids"]
            cases.append(Case(prompt=prompt, tokens=tokens, adapter=folder))
        lacking = [each for case in lacks(checkpoint, cases) for each in case]
        num_equal = sum(each == 0 for each in lacking)
        detail = f"{num_equal} of {len(lacking)} tokens are the likeliest; the others lack up to {max(lacking):.3f}"
        step.check(f"{name} on {subject.backend}", max(lacking) < TOLERANCE, detail, time.monotonic() - started)


def _check(served: Served, step: Step) -> None:
    """Run the claims and the table of parameters against the server.

    Raises:
        RuntimeError: pytest found nothing to run.
    """
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-W", "default", f"--rootdir={ROOT}"]
    arguments += [f"--server={served.url}", f"--server-model={served.manifest.model_id}", f"--server-alias={ALIAS}"]
    recorder = Recorder(step, served.subject)
    status = pytest.main([*arguments, *(str(ROOT / path) for path in CHECKS)], [recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


def _all_packages() -> str:
    """Return the installed packages with their versions, and the requirements of TensorRT-LLM."""
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in sorted(found.items())]
    required = importlib.metadata.requires("tensorrt_llm") if "tensorrt_llm" in found else None
    return "\n".join([*lines, "", "# TensorRT-LLM requires:", *(required or ()), ""])


def _nvidia_smi() -> list[str]:
    """Return driver, CUDA, GPUs and their memory, as nvidia-smi shows them."""
    if shutil.which("nvidia-smi") is None:
        return ["nvidia-smi: not installed"]
    done = subprocess.run(["nvidia-smi"], check=False, capture_output=True, text=True, timeout=60)
    return (done.stdout or done.stderr).splitlines()
