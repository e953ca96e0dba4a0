"""A real Triton and a real frontend on the embedded CPU engine, and another pair with the double of TensorRT-LLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from openai import OpenAI

from build_engines.commands.adapter import build_adapter
from build_engines.tensorrt_llm.lora import MODULES
from frontend.caller import KeyRole
from frontend.settings import Settings
from tests.frontend.gateway.key_files import KeyFile
from tests.frontend_with import PATIENT, change_frontend
from tests.integration.api import Api, api_of
from tests.integration.operations import Server
from tests.integration.stack import (
    ALIASES,
    CLIENTS,
    DEMO_CHECKPOINT,
    ENGINE_MODEL,
    FLOOD_MODEL,
    MAX_SEQUENCES,
    MAX_SEQUENCES_ALONE,
    MAX_SEQUENCES_FLOOD,
    NUM_KV_TOKENS,
    PACED_MODEL,
    PREFILL_TOKENS,
    PRESET,
    PRESET_NAME,
    Stack,
)
from tests.launching import free_port, launched, launcher_settings
from tests.tensorrt_llm_artifact import ADAPTER, DEMO, DEMO_CATALOG, install_double, write_artifact

FORMAL = DEMO / "adapters" / "formal"
# Two threads of llama.cpp wait for each other in every step: on a busy machine a token takes a hundred times as long.
ENGINE = ("--max-sequences", str(MAX_SEQUENCES), "--num-threads", "1")
FRONTEND = Settings(max_body_bytes=1_000_000, max_in_flight=1024)  # engines' queues fill, too


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for a running server, on which the GPU acceptance kit runs the table of parameters."""
    parser.addoption(
        "--server", metavar="URL", help="URL of a running frontend with a model of the runtime tensorrt_llm"
    )
    parser.addoption("--server-model", metavar="NAME", help="model that the tests use there")
    parser.addoption("--server-alias", metavar="NAME", help="another name of that model")


@pytest.fixture(scope="session", autouse=True)
def _servers(servers: None) -> None:
    """All tests of this folder are tests of servers."""


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for artifacts and repositories, which all processes of a test run share."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "state"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def _built_once(state_dir: Path, name: str) -> Iterator[bool]:
    """Yield whether something is still to be built; meanwhile other processes of the test run wait."""
    done = state_dir / f"{name}.done"
    with FileLock(state_dir / "lock"):
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def repository(state_dir: Path) -> Path:
    """A repository with the demo model, its preset, and a synthetic model that makes a token every 10 ms."""
    paced: dict[str, Any] = {"checkpoint": str(DEMO_CHECKPOINT), "runtime": "synthetic"}
    paced["option"] = {"itl_ms": 10, "prefill_tokens": PREFILL_TOKENS}
    models = {"demo": {"alias": ALIASES, "option": {"contexts": 2}}, PACED_MODEL: paced}
    file, repository = state_dir / "both.yaml", state_dir / "both"
    with _built_once(state_dir, "both") as is_missing:
        if is_missing:
            file.write_text(json.dumps({"models": models, "presets": {PRESET_NAME: PRESET}}))
            run_build("build", str(file), f"--home={state_dir}", f"--repository={repository}", *ENGINE)
    return repository


@pytest.fixture(scope="session")
def paced_repository(repository: Path) -> Path:
    """A repository with the synthetic model alone, which Triton loads in a second."""
    [artifact] = (repository.parent / "artifacts").glob("synthetic--paced-*")
    alone = repository.parent / "paced"
    with _built_once(repository.parent, "paced") as is_missing:
        if is_missing:
            run_build("render", str(artifact), "--repository", str(alone), "--max-sequences", str(MAX_SEQUENCES_ALONE))
    return alone


@pytest.fixture(scope="session")
def pair(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stack]]:
    """Two Tritons that serve the paced model. Tests may break them, and must bring them back."""
    with ExitStack() as exits:
        yield [exits.enter_context(running_stack(paced_repository, tmp_path_factory)) for _ in range(2)]


@pytest.fixture(scope="session")
def flood_repository(repository: Path) -> Path:
    """A repository with a synthetic model that makes a token every 2 ms."""
    state_dir = repository.parent
    flood = [FLOOD_MODEL, "--checkpoint", str(DEMO_CHECKPOINT), "--runtime", "synthetic", "--option", "itl_ms=2"]
    rendered = state_dir / "flood"
    with _built_once(state_dir, "flood") as is_missing:
        if is_missing:
            artifact = build(state_dir, *flood)
            run_build("render", artifact, "--repository", str(rendered), "--max-sequences", str(MAX_SEQUENCES_FLOOD))
    return rendered


@pytest.fixture(scope="session")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The running server, ready."""
    with running_stack(repository, tmp_path_factory) as stack:
        yield stack


@pytest.fixture(scope="session")
def paced_stack(paced_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server with the paced model alone, which runs MAX_SEQUENCES_ALONE at a time. Its Triton has an HTTP port."""
    other_port = str(free_port())  # Triton would open it for Vertex AI, unless our command line forbids that
    with running_stack(
        paced_repository, tmp_path_factory, http_port=free_port(), AIP_MODE="PREDICTION", AIP_HTTP_PORT=other_port
    ) as stack:
        yield stack


@pytest.fixture(scope="session")
def adapter_root(demo_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which adapters are loaded: `formal`, `teams/faint` with tiny weights, and a damaged one."""
    root = tmp_path_factory.mktemp("adapters")
    faint = tmp_path_factory.mktemp("peft") / "faint"
    shutil.copytree(FORMAL, faint)
    config = json.loads((faint / "adapter_config.json").read_text())
    (faint / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 1e-6}))
    build_adapter(FORMAL, demo_artifact, root / "formal")
    build_adapter(faint, demo_artifact, root / "teams" / "faint")
    damaged = root / "damaged" / "adapter.gguf"
    shutil.copytree(root / "formal", damaged.parent)
    damaged.write_bytes(damaged.read_bytes()[:-4])
    return root


@pytest.fixture(scope="session")
def server(repository: Path, adapter_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with API keys, an operations port and two workers, whose demo model loads adapters."""
    folder = tmp_path_factory.mktemp("server")
    artifacts = [str(*(repository.parent / "artifacts").glob(f"{name}-*")) for name in ("demo", "synthetic--paced")]
    run_build(
        "render", *artifacts, "--repository", str(folder / "repository"), *ENGINE, "--adapter-root", str(adapter_root)
    )
    key_file = KeyFile(folder / "keys.json")
    key_file.add("admin", role=KeyRole.ADMIN)
    key_file.add("everything")
    key_file.add("demo", models=("demo",))
    key_file.add("polite", models=("polite",))
    settings = replace(FRONTEND, workers=2, key_file=str(key_file.path), admin_port=free_port())
    with running_stack(folder / "repository", tmp_path_factory, settings) as stack:
        yield Server(stack, f"http://127.0.0.1:{settings.admin_port}", key_file)


@pytest.fixture(scope="session")
def busy_server(demo_artifact: Path, adapter_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the keys `admin` and CLIENTS; its demo model runs eight sequences in two contexts."""
    folder = tmp_path_factory.mktemp("busy-server")
    options = ("--max-sequences", "8", "--num-threads", "1", "--adapter-root", str(adapter_root))
    run_build("render", str(demo_artifact), "--repository", str(folder / "repository"), *options)
    key_file = KeyFile(folder / "keys.json")
    key_file.add("admin", role=KeyRole.ADMIN)
    for name in CLIENTS:
        key_file.add(name)
    settings = replace(FRONTEND, key_file=str(key_file.path), admin_port=free_port())
    with running_stack(folder / "repository", tmp_path_factory, settings) as stack:
        yield Server(stack, f"http://127.0.0.1:{settings.admin_port}", key_file)


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
            lora_modules=",".join(name for name, _, _ in MODULES.values()),
        ),
        write_artifact(state_dir / "engine", ENGINE_MODEL, "engine", prompt_logprobs="true"),
    ]
    repository, root = state_dir / "repository", state_dir / "adapters"
    build_adapter(FORMAL, artifacts[0], root / "formal", (DEMO_CATALOG,))
    options = ["--max-sequences", str(MAX_SEQUENCES), "--adapter-root", str(root)]
    options += ["--llm-option", f"kv_cache_config.max_tokens={NUM_KV_TOKENS}"]
    run_build("render", *map(str, artifacts), "--repository", str(repository), *options)
    install_double(repository)
    # Threads of numpy's that wait for each other are no help to a model of this size.
    with running_stack(
        repository, tmp_path_factory, OPENBLAS_NUM_THREADS="1", TENSORRT_LLM_DOUBLE_ENDLESS_READS="1"
    ) as stack:
        yield stack


@contextmanager
def running_stack(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    frontend: Settings = FRONTEND,
    constants: Sequence[str] = (),
    http_port: int | None = None,
    **environment: str,
) -> Iterator[Stack]:
    """Run Triton and a frontend until the end of the block; the constants are those of `tests.frontend_with`."""
    settings = launcher_settings(repository, frontend, {**os.environ, **environment}, http_port)
    log_path = tmp_path_factory.mktemp("log") / "serve.log"
    with launched(settings, tmp_path_factory.mktemp("launcher"), log_path) as launcher:
        change_frontend(launcher, *PATIENT, *constants)
        launcher.triton._blocked.clear()  # as `conch triton` runs it: tests end it by SIGTERM
        launcher.start()
        launcher.wait_until_ready()
        with Stack.of(launcher, log_path) as stack:
            yield stack
        for child in (launcher.frontend, launcher.triton):
            child.kill()  # a Triton that is asked to end takes four seconds: test_serve.py and test_drain.py ask it


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


def build(state_dir: Path, *arguments: str) -> str:
    """Return the artifact's folder."""
    output = run_build("build", *arguments, "--home", str(state_dir))
    return next(line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("artifact"))


def run_build(*arguments: str) -> str:
    command = [sys.executable, "-m", "build_engines", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
