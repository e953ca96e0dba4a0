"""GPU acceptance: build a small model with TensorRT-LLM, serve it, check it, and write a report.

docs/gpu.md describes it. The exit status is 0 if everything passed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from build_engines.artifact import Manifest
from build_engines.commands.build_tensorrt_llm import EXAMPLES
from build_engines.gpus import GPUS
from build_engines.tensorrt_llm import child
from build_engines.tensorrt_llm.checks import available_ram_bytes, gpu_of
from model_repository.system.machine import read_machine
from tests.launching import free_port
from tests.tensorrt_llm_artifact import DEMO, DEMO_CATALOG, install_double
from tests.workshop.gpu_acceptance.preparation import checked, needs
from tests.workshop.gpu_acceptance.report import Recorder, Report, Step, pack
from tests.workshop.gpu_acceptance.subject import MAX_SEQUENCES, Subject

ROOT = Path(__file__).parents[3]
ALIAS = "conch-acceptance"
PARAMETERS = "tests/integration/test_parameters.py"
CHECKS = (
    "tests/workshop/gpu_acceptance/claims.py",
    f"{PARAMETERS}::test_the_tensorrt_llm_runtime_shows_the_same_effects",
    f"{PARAMETERS}::test_a_model_of_tensorrt_llm_that_reads_no_images_refuses_them",
)
PACKAGES = ("conch", "tensorrt_llm", "tensorrt", "torch", "transformers", "numpy", "tokenizers", "llguidance")
_NUM_LINES = 100  # of a program's output, in the report
_STOP_TIMEOUT_S = 60.0


def main() -> int:
    """Run every step and return the exit status."""
    options = _parser().parse_args()
    headline = f"{options.model}, backend {options.backend}, TensorRT-LLM: {_tensorrt_llm()}"
    report = Report(options.report / "report.md", headline, os.environ)
    options.home.mkdir(parents=True, exist_ok=True)
    options.report.mkdir(parents=True, exist_ok=True)
    _run(options, report)
    sys.stderr.write(f"report: {report.path}, packed for its readers: {pack(options.report, os.environ)}\n")
    return int(report.has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.workshop.gpu_acceptance", description=__doc__)
    add = parser.add_argument
    add("model", nargs="?", default="demo", metavar="MODEL", help="a name of the catalog (this project's demo model)")
    add("--checkpoint", metavar="DIR", help="or OWNER/NAME@REVISION; not for the demo model")
    add("--catalog", metavar="FILE", default=str(DEMO_CATALOG), help="with further models")
    add("--backend", choices=["engine", "pytorch"], default="engine", help="of TensorRT-LLM (%(default)s)")
    add("--gpu", choices=sorted(GPUS), help="kind of GPU to build for (this machine's)")
    add("--gpus", metavar="N", help="number of GPUs (the fewest that fit)")
    add("--precision", metavar="NAME", help="of the matrices (16 bit, as the model is)")
    add("--max-seq-len", metavar="N", help="tokens of prompt and completion together (the catalog's)")
    add("--max-batch-size", metavar="N", help="sequences in one step of the engine (the planner's)")
    add("--tensorrt-llm-examples", metavar="DIR", help="TensorRT-LLM's repository, for `build`")
    add("--ready-timeout-s", type=float, default=1800, metavar="S", help="for the model to load (%(default)s)")
    add("--home", type=Path, default=Path(".conch/gpu-acceptance"), metavar="DIR", help="(%(default)s)")
    add("--report", type=Path, default=Path("gpu-acceptance-report"), metavar="DIR", help="(%(default)s)")
    return parser


def _run(options: argparse.Namespace, report: Report) -> None:
    """Try every step; without an artifact the steps after the build are left out."""
    checkpoint = options.checkpoint or (DEMO / "checkpoint" if options.model == "demo" else None)
    plan_flags = _flags(options, "catalog", "gpus", "precision", "max_seq_len", "max_batch_size")
    build_flags = [*plan_flags, *_flags(options, "gpu", "backend", "tensorrt_llm_examples", "home")]
    build_flags += ["--alias", ALIAS, "--max-sequences", str(MAX_SEQUENCES)] + (
        [] if checkpoint is None else ["--checkpoint", str(checkpoint)]
    )
    build_flags += ["--default", "sampling=openai"]  # the checks set the fields of sampling that they need
    if options.backend == "engine":
        build_flags += ["--option", "prompt_logprobs=true"]  # the table of parameters needs them
    artifact: Path | None = None
    with report.step("Machine") as step:
        step.lines += _machine_lines()
    with report.step("Preparation") as step:
        examples = options.tensorrt_llm_examples or EXAMPLES
        for need in needs(Path(examples) if options.backend == "engine" else None):
            step.checks.append(checked(need))
    with report.step("Plan") as step:
        gpu = options.gpu or gpu_of(read_machine()).key
        _command(step, options, "plan", options.model, "--gpu", gpu, *plan_flags)
    with report.step("Build") as step:
        lines = _command(step, options, "build", options.model, "--runtime", "tensorrt_llm", *build_flags)
        artifact = next(Path(line.split(maxsplit=1)[1]) for line in lines if line.startswith("artifact "))
    if artifact is None:
        return
    with report.step("Verify") as step:
        _command(step, options, "verify", str(artifact))
    with report.step("Serve") as step, _serving(options, step) as url:
        step.lines += _nvidia_smi()
        with report.step("Checks") as checks:
            _check(url, Manifest.load(artifact), options.backend, checks)


def _flags(options: argparse.Namespace, *names: str) -> list[str]:
    given = {name: getattr(options, name) for name in names}
    return [word for name, value in given.items() if value for word in (f"--{name.replace('_', '-')}", str(value))]


def _tensorrt_llm() -> str:
    """Return the description of the installed TensorRT-LLM. A test double says there that it is a double."""
    try:
        return str(importlib.metadata.metadata("tensorrt_llm")["Summary"])
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _machine_lines() -> list[str]:
    lines = [f"Python {platform.python_version()}, {platform.platform()}"]
    lines += [f"{os.cpu_count()} CPU cores, {available_ram_bytes() / 1e9:,.1f} GB of free RAM"]
    for package in PACKAGES:
        try:
            lines.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{package}: not installed")
    return lines + _nvidia_smi()


def _nvidia_smi() -> list[str]:
    """Return driver, CUDA, GPUs and their memory, as nvidia-smi shows them."""
    if shutil.which("nvidia-smi") is None:
        return ["nvidia-smi: not installed"]
    done = subprocess.run(["nvidia-smi"], check=False, capture_output=True, text=True, timeout=60)
    return (done.stdout or done.stderr).splitlines()


def _command(step: Step, options: argparse.Namespace, *arguments: str) -> list[str]:
    """Run a command of build_engines, show its output, keep it in a log, and return it.

    Raises:
        RuntimeError: its exit status is not 0.
    """
    lines: list[str] = []
    with (
        (options.report / f"{arguments[0]}.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-u", "-m", "build_engines", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stderr.write(f"    {line}")
                log.write(line)
                lines.append(line.rstrip())
        except BaseException:
            process.terminate()  # the block waits for its end
            raise
    step.lines += lines[-_NUM_LINES:]
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: see {arguments[0]}.log")
    return lines


@contextmanager
def _serving(options: argparse.Namespace, step: Step) -> Iterator[str]:
    """Serve the built repository, and yield the URL of the frontend."""
    repository = options.home / "repository"
    if "test double" in _tensorrt_llm().lower():
        install_double(repository)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ["-m", "frontend", "serve", "--repository", str(repository), "--home", str(options.home)]
    command += ["--port", str(port), "--triton-grpc-port", "0", "--triton-metrics-port", "0"]
    command += ["--ready-timeout-s", str(options.ready_timeout_s)]
    # The kernel ends the server with this process, also if this process is killed.
    wrapper = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
    log_path, started = options.report / "serve.log", time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen([*wrapper, sys.executable, *command], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, start_new_session=True)  # fmt: skip
    try:
        while not _is_ready(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}: see serve.log")
            if time.monotonic() - started > options.ready_timeout_s + _STOP_TIMEOUT_S:
                raise RuntimeError("the server was not ready in time: see serve.log")
            time.sleep(0.2)
        step.lines.append(f"ready after {time.monotonic() - started:.1f} s")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        step.lines += log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _check(url: str, manifest: Manifest, backend: str, step: Step) -> None:
    """Run the claims and the table of parameters against the server.

    Raises:
        RuntimeError: pytest found nothing to run.
    """
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-W", "default", f"--rootdir={ROOT}"]
    arguments += [f"--server={url}", f"--server-model={manifest.model_id}", f"--server-alias={ALIAS}"]
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        subject = Subject(client, manifest.model_id, backend, manifest.eos_token_ids, manifest.context_window)
        status = pytest.main([*arguments, *(str(ROOT / path) for path in CHECKS)], [Recorder(step, subject)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}")


if __name__ == "__main__":
    sys.exit(main())
