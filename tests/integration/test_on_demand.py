"""Models on demand on the real stack: a server with memory for one of three models, and for none of a fourth."""

from __future__ import annotations

import json
import os
import random
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontend.settings import Settings
from model_repository.arbiter.catalog import Catalog
from model_repository.contract.tensors import LOADERS
from tests.build_engines.tensorrt_llm.builder import BIN, H100
from tests.integration.api import ANSWER, CHAT, COMPLETIONS, Answer, Api
from tests.integration.conftest import build, run_build, running_stack
from tests.integration.stack import DEMO_CHECKPOINT, Stack
from tests.launching import launched, launcher_settings
from tests.tensorrt_llm_artifact import install_double, write_artifact
from tests.waiting import wait_until

NAMES = ("alpha", "beta", "gamma")
WINDOW = {"alpha": 256, "beta": 257, "gamma": 258}  # tokens: an answer shows by its usage which model made it
LARGE = "large"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("on-demand")
    checkpoint = ("--checkpoint", str(DEMO_CHECKPOINT))
    artifacts = [
        build(folder, name, *checkpoint, "--context-window", str(WINDOW[name]), *options)
        for name, options in (("alpha", ()), ("beta", ("--load", "demand", "--keep-alive", "1s")), ("gamma", ()))
    ]
    artifacts.append(build(folder, LARGE, *checkpoint, "--option", "contexts=2"))
    run_build(
        "render", *artifacts, "--repository", str(folder / "repository"), "--num-threads", "1", "--max-sequences", "4"
    )
    return folder / "repository"


@pytest.fixture(scope="module")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("server")
    sizes = {name: entry.memory_bytes for name, entry in Catalog.read(repository).entries.items()}
    memory_bytes = (max(sizes[name] for name in NAMES) + sizes[LARGE]) // 2
    settings = replace(launcher_settings(repository, Settings(stream_keepalive_s=0.1)), memory_bytes=memory_bytes)
    with launched(settings, folder, folder / "serve.log") as launcher:
        launcher.start()
        assert launcher.wait_until_ready() == ["alpha", "beta", "gamma", LARGE]
        assert launcher.on_demand == ["beta", "gamma", LARGE]
        with Stack.of(launcher, folder / "serve.log") as stack:
            yield stack


def statuses(stack: Stack) -> dict[str, Any]:
    """Return the states of the models, by id."""
    cards = Api(stack.url).get("/v1/models").body["data"]
    return {card["id"]: card["status"] for card in cards}


def states(stack: Stack) -> dict[str, str]:
    return {model_id: status["value"] for model_id, status in statuses(stack).items()}


def window_of_answer(stack: Stack, model: str, **fields: Any) -> int:
    """Have a model fill its window; return the number of tokens."""
    body = {"model": model, "prompt": "Hello", "max_tokens": WINDOW[model] - 1, "ignore_eos": True, **fields}
    answer = Api(stack.url).post(COMPLETIONS, body)
    assert answer.status == 200, answer.body
    usage = answer.body["usage"]
    assert answer.body["model"] == model
    return int(usage["total_tokens"])


def wait_until_gone(stack: Stack, *models: str) -> None:
    """Wait until the processes of these models have ended."""
    stages = [f"{model}__{stage}" for model in models for stage in ("tokenizer", "engine", "detokenizer")]
    wait_until(lambda: not any(map(stack.processes, stages)), "they have ended")


def test_models_that_do_not_fit_together_take_turns_and_every_request_is_answered(stack: Stack) -> None:
    assert states(stack)["alpha"] == "loaded"
    luck = random.Random(0)
    wanted = [luck.choice(NAMES) for _ in range(24)]
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda model: window_of_answer(stack, model), wanted))
    assert found == [WINDOW[model] for model in wanted]
    assert sum(state == "loaded" for state in states(stack).values()) == 1


def test_an_unused_model_leaves_after_its_keep_alive_and_lists_do_not_wake_it(stack: Stack) -> None:
    assert window_of_answer(stack, "beta", keep_alive=-1) == WINDOW["beta"]
    wait_until_gone(stack, "alpha", "gamma")
    loaded_bytes = stack.pss_bytes()
    assert window_of_answer(stack, "beta") == WINDOW["beta"]
    wait_until(lambda: states(stack)["beta"] == "unloaded", "it has left")
    wait_until_gone(stack, "beta")
    share = (loaded_bytes - stack.pss_bytes()) / statuses(stack)["beta"]["memory_bytes"]
    assert 0.8 < share < 1.2, "the memory is not what the build has measured"
    for path in ("/v1/models/beta", "/health/ready", "/metrics", "/"):
        with urllib.request.urlopen(f"{stack.url}{path}", timeout=60) as answer:
            assert answer.status == 200
    assert states(stack)["beta"] == "unloaded"


def test_a_request_may_say_how_long_its_model_stays(stack: Stack) -> None:
    window_of_answer(stack, "gamma", keep_alive=0)
    wait_until(lambda: states(stack)["gamma"] == "unloaded", "it has left at once")
    window_of_answer(stack, "beta", keep_alive=-1)
    assert "expires_s" not in statuses(stack)["beta"]
    window_of_answer(stack, "beta", ttl=1)
    wait_until(lambda: states(stack)["beta"] == "unloaded", "it has left after a second")


def test_a_stream_that_waits_tells_why_and_how_long_it_waited(stack: Stack) -> None:
    window_of_answer(stack, "alpha")
    lines = Api(stack.url).lines(COMPLETIONS, {"model": "gamma", "prompt": "Hello", "max_tokens": 3})
    assert any(line.startswith(": keepalive: the model is ") for line in lines)
    assert any(line.startswith(": Server-Timing: load;dur=") for line in lines)
    assert "data: [DONE]" in lines


def test_a_model_that_never_fits_is_refused_at_once_with_the_bytes(stack: Stack) -> None:
    answer = Api(stack.url).post(COMPLETIONS, {"model": LARGE, "prompt": "Hello"})
    assert (answer.status, answer.error["code"]) == (503, "model_too_large")
    needed_bytes = statuses(stack)[LARGE]["memory_bytes"]
    assert f"it needs {needed_bytes} bytes of memory, and all models together have" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_models_of_tensorrt_llm_that_have_a_gpu_in_common_take_turns(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    models = {"first": "pytorch", "second": "engine"}
    artifacts = [write_artifact(tmp_path / name, name, backend, num_gpus=1) for name, backend in models.items()]
    repository, placed = tmp_path / "repository", [f"{folder}:0" for folder in artifacts]
    run_build("render", *placed, "--repository", str(repository), "--load", "demand")
    install_double(repository)
    path = f"{BIN}:{os.environ['PATH']}"
    with (
        running_stack(repository, tmp_path_factory, CONCH_DOUBLE_GPUS=H100, PATH=path) as stack,
        ThreadPoolExecutor(4) as clients,
    ):
        assert not any(stack.processes(f"{name}__engine") for name in models)
        answers = list(clients.map(lambda model: Api(stack.url).ask(CHAT, model=model), [*models] * 3))
        assert [(answer.text, answer.body["model"]) for answer in answers] == [(ANSWER, name) for name in models] * 3
        assert sorted(states(stack).values()) == ["loaded", "unloaded"]


@contextmanager
def waiting(stack: Stack, model: str = "gamma") -> Iterator[Future[Answer]]:
    """Have a request wait for a model whose engine has begun to load, in place of another model."""
    window_of_answer(stack, "alpha")
    # Triton (2.51) waits for ever for a stage that is killed before it has begun.
    begun = Path(stack.launcher._lock.name).parent / ".triton" / f"{model}.engine"
    begun.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as clients:
        body = {"model": model, "prompt": "Hello", "max_tokens": 3}
        asked = clients.submit(Api(stack.url).post, COMPLETIONS, body)
        wait_until(begun.exists, "its engine has begun to load")
        yield asked


def load_after_a_failure(stack: Stack, answer: Answer) -> None:
    """Check that a load has failed with a cause, and that a later one does not."""
    assert (answer.status, answer.error["code"]) == (503, "load_failed"), answer.body
    assert "/" not in answer.error["message"]
    body = {"model": "gamma", "prompt": "Hello", "max_tokens": 3}
    wait_until(lambda: Api(stack.url).post(COMPLETIONS, body).status == 200, "it loads", pause_s=1.0)


@pytest.mark.faults
def test_an_engine_that_dies_while_it_loads_fails_the_requests_that_wait(stack: Stack) -> None:
    with waiting(stack) as asked:
        stack.kill_stage("gamma__engine")
        load_after_a_failure(stack, asked.result())


@pytest.mark.faults
def test_an_arbiter_that_dies_while_a_model_loads_is_back_before_the_answer(stack: Stack) -> None:
    with waiting(stack) as asked:
        stack.kill_stage("conch__arbiter")
        assert asked.result().status == 200
    assert window_of_answer(stack, "alpha") == WINDOW["alpha"]


@pytest.mark.faults
def test_loaders_that_die_fail_only_the_requests_that_wait_for_their_loads(stack: Stack) -> None:
    with waiting(stack) as asked:
        for loader in LOADERS:
            stack.kill_stage(loader)
        load_after_a_failure(stack, asked.result())
    assert window_of_answer(stack, "alpha") == WINDOW["alpha"]


@pytest.mark.faults
def test_a_request_outlives_a_triton_that_dies_while_it_loads_the_model(stack: Stack) -> None:
    with waiting(stack) as asked:
        stack.launcher.triton.kill()
        stack.launcher.start_again(stack.launcher.triton)
        assert asked.result().status == 200


@pytest.mark.faults
def test_a_load_that_nobody_waits_for_any_more_leaves_nothing(stack: Stack) -> None:
    window_of_answer(stack, "alpha")
    body = json.dumps({"model": "gamma", "prompt": "Hello"}).encode()
    fields = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join([f"POST {COMPLETIONS} HTTP/1.1", *fields, "", ""])
    with socket.create_connection(("127.0.0.1", stack.launcher.frontend_settings.port)) as client:
        client.sendall(head.encode() + body)
        wait_until(lambda: stack.processes("gamma__engine"), "its engine loads")
    assert window_of_answer(stack, "alpha") == WINDOW["alpha"]
    wait_until(lambda: not stack.processes("gamma__engine"), "it has left")
    assert states(stack)["gamma"] == "unloaded"
