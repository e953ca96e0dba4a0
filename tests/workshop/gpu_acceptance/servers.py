"""The models that the kit builds and serves, one after the other, and trtllm-serve beside them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai import OpenAI

from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.errors import CatalogError
from build_engines.model_entry import Precision
from build_engines.tensorrt_llm import child
from build_engines.tensorrt_llm.checks import available_ram_bytes, gpu_of
from model_repository.engine.tensorrt_llm.options import Backend
from model_repository.system.machine import Machine, read_machine
from tests.grpc_client import GrpcClient
from tests.launching import environment_with_key, free_port
from tests.tensorrt_llm_artifact import DEMO, install_double
from tests.workshop.gpu_acceptance.report import LeftOut, Step
from tests.workshop.gpu_acceptance.subject import Subject
from tests.workshop.load.load import Target

ALIAS = "conch-acceptance"
_NUM_LINES = 100  # of a program's output, in the report
_STOP_TIMEOUT_S = 60.0
_READY = "/health/ready"
_DOWNLOAD = """import sys
from build_engines.digests import Digests
from build_engines.hub import checkpoint_folder
for name in sys.argv[1:]:
    print(*checkpoint_folder(name, Digests()))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model, and how it is built and served."""

    name: str  # of its repository and its logs
    model: str
    checkpoint: str = ""  # a folder, or OWNER/NAME@REVISION; empty: the catalog's
    backend: Backend = Backend.PYTORCH
    adapters: tuple[tuple[str, str], ...] = ()  # names and folders
    plan_flags: tuple[str, ...] = ()  # also of `plan`
    build_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """A running server with one model."""

    url: str
    artifact: Path
    manifest: Manifest
    pid: int
    log: Path
    client: OpenAI
    triton: GrpcClient

    @property
    def target(self) -> Target:
        """The model for the load generator."""
        return Target(url=self.url, model=self.manifest.model_id)

    def lines_with(self, text: str) -> list[str]:
        """Return the lines of the server's log with a text."""
        return [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if text in line]

    @property
    def subject(self) -> Subject:
        """The model as a client sees it."""
        manifest, backend = self.manifest, self.manifest.options["backend"]
        return Subject(self.client, manifest.model_id, backend, manifest.eos_token_ids, manifest.context_window)


@dataclass(slots=True)
class Host:
    """This machine, and the model that is served on it now."""

    options: argparse.Namespace
    machine: Machine = field(default_factory=read_machine)
    _artifacts: dict[Variant, Path] = field(default_factory=dict)
    _failures: dict[Variant, str] = field(default_factory=dict)  # the steps in which variants failed
    _served: tuple[Variant, Served] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def checkpoint(self, model: str, precision: str) -> str:
        """Return the checkpoint of a model: the demo model's own, or a ready one; empty: the one that `build` takes.

        Args:
            precision: empty: the model's own.

        Raises:
            CatalogError: the catalog does not have the model in this precision.
        """
        if model == "demo":
            return str(DEMO / "checkpoint")
        if not precision:
            return ""
        ready = Catalog.load(Path(self.options.catalog)).find(model).ready_checkpoints
        if precision not in ready:
            raise CatalogError(f"{model}: the catalog has no ready checkpoint in {precision}")
        return f"{ready[Precision(precision)]}@main"

    @contextmanager
    def downloading(self, variants: Sequence[Variant]) -> Iterator[subprocess.Popen[bytes]]:
        """Download checkpoints in the background, in this order. A build waits for a file that is on its way."""
        find = Catalog.load(Path(self.options.catalog)).find
        names = [each.checkpoint or f"{find(each.model).model_id}@main" for each in variants if each.model != "demo"]
        command = [*_ended_with_us(), sys.executable, "-c", _DOWNLOAD, *names]
        with (self.options.report / "downloads.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def artifact(self, variant: Variant, step: Step) -> Path:
        """Return the artifact of a variant, planned, built and verified once.

        Raises:
            LeftOut: it failed in an earlier step.
        """
        if variant in self._failures:
            raise LeftOut(f"{variant.name} failed in the step {self._failures[variant]}")
        if variant not in self._artifacts:
            self._failures[variant] = step.name  # until it is built
            home, build_flags = self.options.home, variant.plan_flags + variant.build_flags
            catalog = ("--catalog", self.options.catalog)
            gpu = self.options.gpu or gpu_of(self.machine).key
            self.command(step, "plan", variant.model, "--gpu", gpu, *catalog, *variant.plan_flags)
            words = [f"--adapter={name}={folder}" for name, folder in variant.adapters]
            words += [f"--checkpoint={variant.checkpoint}"] if variant.checkpoint else []
            words += [f"--gpu={self.options.gpu}"] if self.options.gpu else []
            words += ["--runtime=tensorrt_llm", f"--backend={variant.backend}", f"--home={home}"]
            words += [f"--repository={self._repository(variant)}", "--default=sampling=openai", *catalog, *build_flags]
            lines = self.command(step, "build", variant.model, *words)
            artifact = next(Path(line.split(maxsplit=1)[1]) for line in lines if line.startswith("artifact "))
            self.command(step, "verify", str(artifact))
            if is_double():
                install_double(self._repository(variant))
            self._artifacts[variant] = artifact
            del self._failures[variant]
        return self._artifacts[variant]

    def serve(self, variant: Variant, step: Step) -> Served:
        """Serve a variant in place of the present one, unless it is that, and return it.

        Raises:
            LeftOut: it failed in an earlier step.
            RuntimeError: it does not start.
        """
        if self._served is not None and self._served[0] == variant and _answers(f"{self._served[1].url}{_READY}"):
            return self._served[1]
        self.close()
        artifact, repository = self.artifact(variant, step), self._repository(variant)
        port, grpc_port = free_port(), free_port()
        words = ["-m", "frontend", "serve", "--repository", str(repository), "--home", str(self.options.home)]
        words += ["--port", str(port), "--triton-grpc-port", str(grpc_port), "--triton-metrics-port", "0"]
        words += ["--ready-timeout-s", str(self.options.ready_timeout_s)]
        url, log = f"http://127.0.0.1:{port}", self.options.report / f"serve-{variant.name}.log"
        self._failures[variant], before = step.name, available_ram_bytes()
        running = running_server([sys.executable, *words], f"{url}{_READY}", log, self.options.ready_timeout_s)
        pid, ready_s = self._stack.enter_context(running)
        del self._failures[variant]
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
        triton = self._stack.enter_context(GrpcClient.connected(f"127.0.0.1:{grpc_port}"))
        served = Served(url, artifact, Manifest.load(artifact), pid, log, self._stack.enter_context(client), triton)
        taken = (before - available_ram_bytes()) / 1e9
        step.lines.append(f"{variant.name}: ready after {ready_s:.1f} s; it took {taken:.1f} GB of RAM")
        self._served = variant, served
        return served

    def close(self) -> None:
        """End the present server."""
        self._served = None
        self._stack.close()

    @contextmanager
    def trtllm_serve(self, variant: Variant, step: Step) -> Iterator[Target]:
        """Run trtllm-serve with the checkpoint and the limits of a variant, and its own defaults for the rest.

        Flags: the page commands/trtllm-serve of 1.2.1's documentation.
        """
        artifact = self.artifact(variant, step)
        options, port = Manifest.load(artifact).options, free_port()
        words = ["trtllm-serve", "serve", "--host", "127.0.0.1", "--port", str(port), "--backend", "pytorch"]
        words += ["--max_batch_size", options["max_batch_size"], "--max_num_tokens", options["max_num_tokens"]]
        words += ["--max_seq_len", str(Manifest.load(artifact).context_window), "--tp_size", options["tp_size"]]
        url, log = f"http://127.0.0.1:{port}", self.options.report / "trtllm-serve.log"
        words += ["--tokenizer", str(artifact / "tokenizer"), str(artifact / "checkpoint")]
        self.close()
        with running_server(words, f"{url}/v1/models", log, self.options.ready_timeout_s) as (_, ready_s):
            with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client:
                [model] = client.models.list().data
            step.lines.append(f"trtllm-serve: ready after {ready_s:.1f} s")
            yield Target(url=url, model=model.id)

    def command(self, step: Step, *arguments: str, module: str = "build_engines") -> list[str]:
        """Run a command, show its output, keep it in a log, and return it.

        Raises:
            RuntimeError: its exit status is not 0.
        """
        lines: list[str] = []
        with (
            (self.options.report / f"{step.name}-{arguments[0]}.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [sys.executable, "-u", "-m", module, *arguments],
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
        step.lines += [f"$ {arguments[0]}", *lines[-_NUM_LINES:]]
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}: see {Path(log.name).name}")
        return lines

    def _repository(self, variant: Variant) -> Path:
        home: Path = self.options.home
        return home / f"repository-{variant.name}"


@contextmanager
def running_server(
    command: Sequence[str], ready_url: str, log_path: Path, timeout_s: float
) -> Iterator[tuple[int, float]]:
    """Run a server, and yield its process id, and the seconds until a URL answered.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    started = time.monotonic()
    with log_path.open("ab") as log:
        process = subprocess.Popen([*_ended_with_us(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env=environment_with_key(), start_new_session=True)  # fmt: skip
    try:
        while not _answers(ready_url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}: see {log_path.name}")
            if time.monotonic() - started > timeout_s + _STOP_TIMEOUT_S:
                raise RuntimeError(f"the server was not ready in time: see {log_path.name}")
            time.sleep(0.2)
        yield process.pid, time.monotonic() - started
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ended_with_us() -> list[str]:
    """Return words before a command that the kernel ends with this process, also if this process is killed."""
    return [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]


def tensorrt_llm_summary() -> str:
    """Return the description of the installed TensorRT-LLM. A test double says there that it is a double."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return str(importlib.metadata.metadata("tensorrt_llm")["Summary"])
    return "not installed"


def is_double() -> bool:
    """Whether TensorRT-LLM is the test double."""
    return re.search("test double", tensorrt_llm_summary(), re.IGNORECASE) is not None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
