"""The measured servers: started here on free ports, or already running elsewhere."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from build_engines.__main__ import main as build_engines_main
from build_engines.artifact import Manifest
from build_engines.llama_cpp.gguf_tokenizer import write_tokenizer
from frontend.launcher.triton_server import ADDRESS
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import EngineRequest
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.synthetic import SyntheticRuntime
from model_repository.runtimes import PROJECTOR
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.frontend_with import command_with
from tests.launching import environment_with_key, free_port
from tests.raw_model import real_embedder, real_model
from tests.waiting import wait_until
from tests.workshop.load import dynamo, peers
from tests.workshop.load.accounting import Processes
from tests.workshop.load.load import Target
from tests.workshop.load.scenarios import DYNAMO, LLAMA_CPP, OURS, Setup
from tests.workshop.load.wide_vocabulary import write_wide_model

CHECKPOINT = Path(__file__).parents[3] / "build_engines" / "demo" / "checkpoint"
# The shape of a model of 370 million weights, with the demo model's tokenizer.
_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "vocab_size": 3072,
}
# With SmolLM2's tokenizer, and a longer context window than its own of 8,192 tokens.
_LONG = {"max_position_embeddings": 65_536, "vocab_size": 49_152}
DYNAMO_DIR = Path(".conch", "dynamo")  # its environment, which is kept
_NUM_KNOWN_TOKENS = 4096  # of the synthetic engine's text


class StartError(Exception):
    """A server did not start, or a build failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    target: Target
    processes: Processes = field(default_factory=lambda: Processes({}))  # empty: not measured
    grpc_endpoint: str = ""  # of Triton; empty: unknown


@dataclass(frozen=True, slots=True)
class ServerFactory:
    """Builds and starts servers. Artifacts are kept for the next setup."""

    state_dir: Path
    log_path: Path
    num_threads: int  # of the CPU engine, ours and the peer's
    _numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def running(self, setup: Setup) -> Iterator[dict[str, Server]]:
        """Run the servers of a setup, and yield them by name.

        Raises:
            StartError: a build failed, or a server did not start.
        """
        with ExitStack() as stack:
            artifacts = [self._artifact(setup, number) for number in range(setup.num_rendered)]
            repository = self._repository(artifacts[:1], setup)
            servers = {OURS: stack.enter_context(self._ours(repository, artifacts[0], setup))}
            if artifacts[1:]:  # models that come after the start are listed, and not loaded
                shutil.copytree(self._repository(artifacts[1:], setup), repository, dirs_exist_ok=True)
            if setup.peer == LLAMA_CPP:
                servers[LLAMA_CPP] = stack.enter_context(self._llama_cpp(artifacts[0], setup))
            elif setup.peer == DYNAMO:
                try:
                    servers[DYNAMO] = stack.enter_context(self._dynamo(setup))
                except peers.Unavailable as exc:
                    sys.stderr.write(f"{DYNAMO} is left out: {exc}\n")
            yield servers

    def _artifact(self, setup: Setup, number: int) -> Path:
        """Build one of the models of a setup, if it is missing."""
        arguments = ["demo", "--precision", setup.precision]
        if setup.runtime == "synthetic":
            name = f"bench/synthetic-{setup.weights}-{setup.itl_ms:g}ms-{number}"
            arguments = [name, "--checkpoint", str(self._tokenizer_checkpoint(setup))]
            arguments += ["--runtime", "synthetic", "--option", f"itl_ms={setup.itl_ms!r}"]
        elif setup.weights == "smollm2":
            arguments = ["bench/smollm2", "--gguf", str(real_model())]
        elif setup.weights == "smollm2-wide":
            arguments = ["bench/smollm2-wide", "--gguf", str(self._wide_model())]
        elif setup.weights == "minilm":
            arguments = ["bench/minilm", "--checkpoint", str(real_embedder())]
        elif setup.weights == "random":
            arguments = ["bench/large", "--checkpoint", str(self._large_checkpoint()), "--precision", setup.precision]
        return build(self.state_dir, *arguments)

    def _tokenizer_checkpoint(self, setup: Setup) -> Path:
        """Return a checkpoint for engines that compute nothing."""
        if setup.weights == "demo":
            return CHECKPOINT
        folder = self.state_dir / "smollm2"
        if not folder.exists():
            folder.mkdir()
            write_tokenizer(real_model(), folder)
            config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps(config | _LONG))
        return folder

    def _large_checkpoint(self) -> Path:
        folder = self.state_dir / "large"
        if not folder.exists():
            tokenizer = json.loads((CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
            write_checkpoint(folder, tokenizer=tokenizer, **_LARGE)
        return folder

    def _wide_model(self) -> Path:
        path = self.state_dir / "smollm2-wide.gguf"
        if not path.exists():
            write_wide_model(real_model(), path)
        return path

    def _repository(self, artifacts: Sequence[Path], setup: Setup) -> Path:
        options = ["--max-sequences", str(setup.max_sequences), "--num-threads", str(self.num_threads)]
        options += ["--speculative", setup.speculative] if setup.speculative else []
        return render(self.state_dir / f"repository-{next(self._numbers)}", artifacts, *options)

    @contextmanager
    def _ours(self, repository: Path, artifact_dir: Path, setup: Setup) -> Iterator[Server]:
        options = [f"--workers={setup.num_workers}", f"--home={self.state_dir / 'serve'}"]
        options += [f"--max-in-flight={setup.max_in_flight}"]
        grpc_port = free_port()
        with serving(repository, self.log_path, *options, grpc_port=grpc_port) as (port, processes):
            token_ends = _synthetic_token_ends(artifact_dir) if setup.runtime == "synthetic" else ()
            yield Server(
                target=Target(
                    url=f"http://{ADDRESS}:{port}",
                    model=Manifest.load(artifact_dir).model_id,
                    token_ends=token_ends,
                ),
                processes=processes,
                grpc_endpoint=f"{ADDRESS}:{grpc_port}",
            )

    @contextmanager
    def _dynamo(self, setup: Setup) -> Iterator[Server]:
        python = peers.installed_python(DYNAMO_DIR, dynamo.PINS)
        folder = self.state_dir / "dynamo"
        with (
            self.log_path.open("a") as log,
            dynamo.running(
                python, folder, self._tokenizer_checkpoint(setup), setup.max_sequences, log, is_paced=setup.itl_ms > 0
            ) as (
                url,
                pids,
            ),
        ):
            yield Server(target=Target(url=url, model=dynamo.MODEL), processes=Processes(pids))

    @contextmanager
    def _llama_cpp(self, artifact_dir: Path, setup: Setup) -> Iterator[Server]:
        gguf = artifact_dir / "model.gguf"
        command = [sys.executable, "-m", "tests.workshop.load.llama_cpp_server", "--gguf", str(gguf)]
        if (projector := artifact_dir / PROJECTOR).exists():
            command += ["--mmproj", str(projector)]
        command += ["--slots", str(setup.max_sequences), "--threads", str(self.num_threads)]
        if setup.weights == "minilm":
            command += ["--embeddings", "--slot-tokens", str(Manifest.load(artifact_dir).context_window)]
        with (
            self.log_path.open("a") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            assert process.stdin is not None and process.stdout is not None
            try:
                url = process.stdout.readline().strip()
                if not url.startswith("http://"):
                    raise StartError(f"llama.cpp's server did not start; see {self.log_path}")
                log.write(f"[peer] {process.stdout.readline()}")
                yield Server(target=Target(url=url, model="demo"), processes=Processes({LLAMA_CPP: process.pid}))
            finally:
                process.stdin.close()
                process.terminate()


@contextmanager
def serving(repository: Path, log_path: Path, *options: str, grpc_port: int = 0) -> Iterator[tuple[int, Processes]]:
    """Serve a repository until the end of the block; yield the port and the processes.

    Args:
        grpc_port: of Triton; 0: any.

    Raises:
        StartError: the server did not start.
    """
    port = free_port()
    command = [sys.executable, "-m", "frontend", "serve", f"--repository={repository}", f"--port={port}"]
    command += [f"--triton-grpc-port={grpc_port}", "--triton-metrics-port=0", *options]
    with (
        log_path.open("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            if not any(line.startswith("Ready: ") for line in process.stdout):
                raise StartError(f"the server did not start; see {log_path}")
            yield port, Processes({"serve": process.pid})
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Replicas:
    """Tritons of one repository behind a frontend."""

    url: str
    pids: tuple[int, ...]  # of the commands that run the Tritons
    metrics_ports: tuple[int, ...]


@contextmanager
def replicas(repository: Path, home: Path, log_path: Path, number: int, *constants: str) -> Iterator[Replicas]:
    """Run Tritons that all serve a repository, and a frontend, until the end of the block.

    Args:
        constants: of the frontend with other values, as `tests.frontend_with` takes them.
    """
    port, grpc_ports = free_port(), [free_port() for _ in range(number)]
    metrics_ports = tuple(free_port() for _ in range(number))
    commands = []
    for grpc_port, metrics_port in zip(grpc_ports, metrics_ports, strict=True):
        ports = f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"
        commands.append([*command_with(), "triton", f"--repository={repository}", f"--home={home}", *ports])
    endpoints = [f"--triton={ADDRESS}:{grpc_port}" for grpc_port in grpc_ports]
    commands.append([*command_with(*constants), "api", f"--port={port}", *endpoints])
    url, pids = f"http://{ADDRESS}:{port}", []

    def is_whole() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return list(json.load(answer)["endpoints"].values()) == ["ready"] * number
        return False

    with log_path.open("a") as log, ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(command, env=environment_with_key(), stdout=log, stderr=log)
            stack.callback(peers.end, process)
            pids.append(process.pid)
        wait_until(is_whole, "all replicas serve", timeout_s=120.0)
        yield Replicas(url, tuple(pids[:number]), metrics_ports)


def build(state_dir: Path, *arguments: str) -> Path:
    """Return the artifact that `build` makes, or finds, in a folder."""
    output = _build_engines("build", *arguments, "--home", str(state_dir))
    return Path(next(line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("artifact")))


def render(repository: Path, artifacts: Sequence[Path], *options: str) -> Path:
    """Render a repository into its folder, and return the folder."""
    _build_engines("render", *map(str, artifacts), "--repository", str(repository), *options)
    return repository


def _build_engines(*arguments: str) -> str:
    """Run a command of build_engines in this process, and return its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = build_engines_main(arguments)
    if status:
        raise StartError(f"python -m build_engines {' '.join(arguments)}:\n{err.getvalue().strip()}")
    return out.getvalue()


def _synthetic_token_ends(artifact_dir: Path) -> tuple[int, ...]:
    """Return the end of each token of a synthetic completion, in characters. Its text is always the same."""
    manifest = Manifest.load(artifact_dir)
    byte_table = load_byte_table(artifact_dir / FILE_NAME)
    config = EngineConfig(
        runtime="synthetic",
        artifact_dir=artifact_dir,
        context_window=manifest.context_window,
        eos_token_ids=frozenset(manifest.eos_token_ids),
    )
    runtime = SyntheticRuntime(config, byte_table)
    runtime.submit(0, EngineRequest(prompt_token_ids=(1,), max_tokens=_NUM_KNOWN_TOKENS))
    ends, end = [], 0
    for _ in range(_NUM_KNOWN_TOKENS):
        [output] = runtime.step() or ()
        assert output.token_id is not None, "the synthetic engine never ends"
        end += len(byte_table[output.token_id])
        ends.append(end)
    return tuple(ends)
