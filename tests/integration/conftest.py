"""One real Triton and one real frontend for all of these tests, on the embedded CPU engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from frontend.serve.launcher import Launcher, LauncherSettings
from frontend.settings import Settings
from tests.integration.api import Api
from tests.integration.stack import ALIASES, DEMO_CHECKPOINT, MAX_SEQUENCES, PACED_MODEL, Stack


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the demo model and a synthetic one that makes a token every 10 ms."""
    state_dir = tmp_path_factory.mktemp("state")
    paced = [PACED_MODEL, "--checkpoint", str(DEMO_CHECKPOINT), "--runtime", "synthetic", "--option", "itl_ms=10"]
    aliases = [argument for alias in ALIASES for argument in ("--alias", alias)]
    artifacts = [_build(state_dir, "demo", *aliases), _build(state_dir, *paced)]
    repository = state_dir / "both"
    _run("render", *artifacts, "--repository", str(repository), "--max-sequences", str(MAX_SEQUENCES))
    return repository


@pytest.fixture(scope="session")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The running server, ready."""
    settings = LauncherSettings(
        repository=repository,
        state_dir=tmp_path_factory.mktemp("launcher"),
        environment=os.environ,
        frontend=Settings(port=0, stats_interval_s=0.2, max_body_bytes=1_000_000),
        triton_grpc_port=0,
        triton_http_port=0,
        triton_metrics_port=0,
    )
    log_path = tmp_path_factory.mktemp("log") / "serve.log"
    with log_path.open("w") as log, Launcher(settings, lambda line: print(line, file=log, flush=True)) as launcher:
        launcher.start()
        launcher.wait_until_ready()
        with Stack.of(launcher) as stack:
            yield stack


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[OpenAI]:
    """The official client; it never tries again by itself."""
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def api(stack: Stack) -> Api:
    """A client without a library."""
    return Api(stack.url)


@pytest.fixture(scope="session")
def demo_artifact(repository: Path) -> Path:
    """The folder of the demo model's artifact."""
    [folder] = (repository.parent / "artifacts").glob("demo-*")
    return folder


def _build(state_dir: Path, *arguments: str) -> str:
    """Return the artifact's folder."""
    output = _run("build", *arguments, "--state-dir", str(state_dir))
    return next(line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("artifact"))


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "build_engines", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
