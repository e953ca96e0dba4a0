"""A real Triton and a real frontend on the embedded CPU engine, and another pair with the double of TensorRT-LLM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from build_engines.adapter import build_adapter
from build_engines.selfcheck.order import DEMO_CATALOG
from build_engines.tensorrt_llm.lora import MODULES
from frontend.launcher.launcher import Launcher
from frontend.settings import Settings
from tests.integration.api import Api, api_of
from tests.integration.stack import (
    ALIASES,
    DEMO_CHECKPOINT,
    ENGINE_MODEL,
    FLOOD_MODEL,
    MAX_SEQUENCES,
    MAX_SEQUENCES_ALONE,
    MAX_SEQUENCES_FLOOD,
    PACED_MODEL,
    PREFILL_TOKENS,
    Stack,
)
from tests.launching import launcher_settings
from tests.tensorrt_llm_artifact import ADAPTER, DEMO, install_double, write_artifact

FRONTEND = Settings(stats_interval_s=0.2, max_body_bytes=1_000_000, max_in_flight=1024)  # engines' queues fill, too


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the table of parameters be walked against a server that was started elsewhere, as `selfcheck` does."""
    parser.addoption("--server", metavar="URL", help="of a running frontend, whose model has the runtime tensorrt_llm")
    parser.addoption("--server-model", metavar="NAME", help="the model to ask there")
    parser.addoption("--server-alias", metavar="NAME", help="a further name of that model")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the demo model and a synthetic one that makes a token every 10 ms."""
    state_dir = tmp_path_factory.mktemp("state")
    paced = [PACED_MODEL, "--checkpoint", str(DEMO_CHECKPOINT), "--runtime", "synthetic"]
    paced += ["--option", "itl_ms=10", "--option", f"prefill_tokens={PREFILL_TOKENS}"]
    aliases = [argument for alias in ALIASES for argument in ("--alias", alias)]
    artifacts = [_build(state_dir, "demo", *aliases), _build(state_dir, *paced)]
    repository = state_dir / "both"
    _run("render", *artifacts, "--repository", str(repository), "--max-sequences", str(MAX_SEQUENCES))
    return repository


@pytest.fixture(scope="session")
def paced_repository(repository: Path) -> Path:
    """A repository with the synthetic model alone, which Triton loads in a second."""
    [artifact] = (repository.parent / "artifacts").glob("synthetic--paced-*")
    alone = repository.parent / "paced"
    _run("render", str(artifact), "--repository", str(alone), "--max-sequences", str(MAX_SEQUENCES_ALONE))
    return alone


@pytest.fixture(scope="module")
def pair(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stack]]:
    """Two Tritons that serve one small model."""
    with ExitStack() as exits:
        yield [exits.enter_context(running_stack(paced_repository, tmp_path_factory)) for _ in range(2)]


@pytest.fixture(scope="session")
def flood_repository(repository: Path) -> Path:
    """A repository with a synthetic model that makes far more tokens than anybody reads."""
    state_dir = repository.parent
    flood = [FLOOD_MODEL, "--checkpoint", str(DEMO_CHECKPOINT), "--runtime", "synthetic", "--option", "itl_ms=2"]
    rendered = state_dir / "flood"
    artifact = _build(state_dir, *flood)
    _run("render", artifact, "--repository", str(rendered), "--max-sequences", str(MAX_SEQUENCES_FLOOD))
    return rendered


@pytest.fixture(scope="session")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The running server, ready."""
    with running_stack(repository, tmp_path_factory) as stack:
        yield stack


@pytest.fixture(scope="session")
def paced_stack(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server with the paced model alone, which runs MAX_SEQUENCES_ALONE at a time."""
    with running_stack(paced_repository, tmp_path_factory) as stack:
        yield stack


@pytest.fixture(scope="session")
def tensorrt_llm_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server of its own, whose engine stages run the tensorrt_llm runtime on the double of the package.

    The demo model twice: `demo` on the PyTorch backend, with an adapter, which can also be loaded while it runs, from
    `formal`, and ENGINE_MODEL on the engine backend.
    """
    state_dir = tmp_path_factory.mktemp("tensorrt-llm")
    artifacts = [
        write_artifact(
            state_dir / "pytorch",
            "demo",
            "pytorch",
            aliases=ALIASES,
            adapter=ADAPTER,
            lora_modules=",".join(MODULES.values()),
        ),
        write_artifact(state_dir / "engine", ENGINE_MODEL, "engine", prompt_logprobs="true"),
    ]
    repository, root = state_dir / "repository", state_dir / "adapters"
    build_adapter(DEMO / "adapters" / "formal", artifacts[0], root / "formal", (DEMO_CATALOG,))
    options = ["--max-sequences", str(MAX_SEQUENCES), "--adapter-root", str(root)]
    _run("render", *map(str, artifacts), "--repository", str(repository), *options)
    install_double(repository)
    # Threads of numpy's that wait for each other are no help to a model of this size.
    with running_stack(repository, tmp_path_factory, OPENBLAS_NUM_THREADS="1") as stack:
        yield stack


@contextmanager
def running_stack(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    frontend: Settings = FRONTEND,
    **environment: str,
) -> Iterator[Stack]:
    """Run Triton and a frontend until the end of the block."""
    state_dir = tmp_path_factory.mktemp("launcher")
    settings = launcher_settings(repository, state_dir, frontend, {**os.environ, **environment})
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
def tensorrt_llm_api(request: pytest.FixtureRequest) -> Api:
    """A client without a library, of the server with the double, or of the one that was named."""
    url = request.config.getoption("--server", default=None)
    if url is not None:
        names = (request.config.getoption(option) for option in ("--server-model", "--server-alias"))
        return api_of(url, *names)
    stack: Stack = request.getfixturevalue("tensorrt_llm_stack")
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
