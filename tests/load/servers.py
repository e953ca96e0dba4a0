"""The measured servers: started here on free ports, or already running elsewhere."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from build_engines.__main__ import main as build_engines_main
from build_engines.artifact import Manifest
from frontend.launcher.launcher import Launcher, LauncherSettings
from frontend.settings import Settings
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import EngineRequest
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.synthetic import SyntheticRuntime
from tests.load.accounting import Processes
from tests.load.load import Target
from tests.load.scenarios import OURS, PEER, Setup

_CHECKPOINT = Path(__file__).parents[2] / "build_engines" / "demo" / "checkpoint"
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
            StartError: a build failed, or the peer did not start.
            LaunchError: our own server did not start.
        """
        with ExitStack() as stack:
            artifacts = [self._artifact(setup, number) for number in range(setup.num_rendered)]
            repository = self._repository(artifacts[:1], setup)
            servers = {OURS: stack.enter_context(self._ours(repository, artifacts[0], setup))}
            if artifacts[1:]:  # models that come after the start are listed, and not loaded
                shutil.copytree(self._repository(artifacts[1:], setup), repository, dirs_exist_ok=True)
            if setup.has_peer:
                servers[PEER] = stack.enter_context(self._peer(artifacts[0], setup.max_sequences))
            yield servers

    def _artifact(self, setup: Setup, number: int) -> Path:
        """Build one of the models of a setup, if it is missing."""
        arguments = ["demo", "--precision", setup.precision]
        if setup.runtime == "synthetic":
            arguments = [f"bench/synthetic-{setup.itl_ms:g}ms-{number}", "--checkpoint", str(_CHECKPOINT)]
            arguments += ["--runtime", "synthetic", "--option", f"itl_ms={setup.itl_ms!r}"]
        output = _build_engines("build", *arguments, "--state-dir", str(self.state_dir))
        return Path(next(line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("artifact")))

    def _repository(self, artifacts: Sequence[Path], setup: Setup) -> Path:
        repository = self.state_dir / f"repository-{next(self._numbers)}"
        options = ["--max-sequences", str(setup.max_sequences), "--num-threads", str(self.num_threads)]
        _build_engines("render", *map(str, artifacts), "--repository", str(repository), *options)
        return repository

    @contextmanager
    def _ours(self, repository: Path, artifact_dir: Path, setup: Setup) -> Iterator[Server]:
        settings = LauncherSettings(
            repository=repository,
            state_dir=self.state_dir / "launcher",
            environment=os.environ,
            frontend=Settings(port=0, max_in_flight=setup.max_in_flight),
            triton_grpc_port=0,
            triton_metrics_port=0,
        )
        with self.log_path.open("a") as log, Launcher(settings, _line_writer(log.write)) as launcher:
            launcher.start()
            [model, *_] = launcher.wait_until_ready()
            token_ends = _synthetic_token_ends(artifact_dir) if setup.runtime == "synthetic" else ()
            yield Server(
                target=Target(url=launcher.url, model=model, token_ends=token_ends),
                processes=Processes({"frontend": launcher.frontend.pid, "tritonserver": launcher.triton.pid}),
                grpc_endpoint=f"127.0.0.1:{launcher.triton_ports.grpc}",
            )

    @contextmanager
    def _peer(self, artifact_dir: Path, num_slots: int) -> Iterator[Server]:
        gguf = artifact_dir / "model.gguf"
        command = [sys.executable, "-m", "tests.load.llama_cpp_server", "--gguf", str(gguf)]
        command += ["--slots", str(num_slots), "--threads", str(self.num_threads)]
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
                yield Server(target=Target(url=url, model="demo"), processes=Processes({PEER: process.pid}))
            finally:
                process.stdin.close()
                process.terminate()


def _build_engines(*arguments: str) -> str:
    """Run a command of build_engines in this process, and return its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = build_engines_main(arguments)
    if status:
        raise StartError(f"python -m build_engines {' '.join(arguments)}:\n{err.getvalue().strip()}")
    return out.getvalue()


def _line_writer(write: Callable[[str], object]) -> Callable[[str], None]:
    def write_line(line: str) -> None:
        write(f"{line}\n")

    return write_line


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
