"""`--triton MODEL=...` against real Tritons: a model at several, others hidden, one that is not up yet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.api import COMPLETIONS, Answer, Api
from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import DEADLINE_S, wait_until

MAX_TOKENS = 60
BODY = {"model": PACED_MODEL, "prompt": "Hello", "max_tokens": 2}


def asked(frontend: Frontend, **fields: str) -> Answer:
    return Api(frontend.url).post(COMPLETIONS, BODY | fields)


def served(frontend: Frontend) -> list[str]:
    """Return every name that is offered."""
    return [card["id"] for card in Api(frontend.url).get("/v1/models").body["data"]]


@pytest.fixture
def stopped(pair: list[Stack]) -> Iterator[Stack]:
    """A Triton that does not run; its endpoint is known."""
    stack = pair[1]
    stack.launcher.triton.kill()
    yield stack
    stack.launcher.triton.kill()
    stack.launcher.start_again(stack.launcher.triton)


def test_other_models_of_a_triton_are_hidden(stack: Stack, pair: list[Stack], tmp_path: Path) -> None:
    with frontend_of([f"{PACED_MODEL}={stack.endpoint}", pair[0]], tmp_path) as frontend:
        assert served(frontend) == [PACED_MODEL]
        assert asked(frontend).status == 200
        assert asked(frontend, model="demo").status == 404
        assert frontend.readiness()[1]["replicas"][stack.endpoint] == {PACED_MODEL: "ready"}


def test_a_model_that_is_not_up_yet_is_not_ready_and_is_served_when_it_comes(stopped: Stack, tmp_path: Path) -> None:
    target = f"{PACED_MODEL}=dns:localhost:{stopped.launcher.triton_ports.grpc}"
    with frontend_of([target], tmp_path, is_up=lambda frontend: frontend.readiness()[0] == 200) as frontend:
        assert served(frontend) == []
        refused = asked(frontend)
        assert (refused.status, refused.error["code"], refused.headers["Retry-After"]) == (503, "model_not_ready", "1")
        assert asked(frontend, model="demo").status == 404

        stopped.launcher.start_again(stopped.launcher.triton)
        wait_until(lambda: asked(frontend).status == 200, "the model is served")
        assert served(frontend) == [PACED_MODEL]

        stopped.launcher.triton.kill()
        wait_until(lambda: asked(frontend).status == 503, "it is missed")
        assert asked(frontend).error["code"] == "model_not_ready"
        assert frontend.readiness()[0] == 200


def test_a_request_waits_for_a_model_that_is_not_up_yet_and_one_for_a_triton_that_comes_back(
    stopped: Stack, tmp_path: Path
) -> None:
    target = f"{PACED_MODEL}=dns:localhost:{stopped.launcher.triton_ports.grpc}"
    waking = [f"--wake-timeout-s={DEADLINE_S}", "--stream-keepalive-s=0.2"]
    with (
        frontend_of([target], tmp_path, *waking, is_up=lambda frontend: frontend.readiness()[0] == 200) as frontend,
        ThreadPoolExecutor(1) as clients,
    ):
        first = clients.submit(asked, frontend)
        stopped.launcher.start_again(stopped.launcher.triton)
        assert first.result().status == 200

        stopped.launcher.triton.kill()
        wait_until(lambda: frontend.readiness()[1]["models"] == {PACED_MODEL: "unloaded"}, "it is missed")
        assert served(frontend) == [PACED_MODEL]
        second = clients.submit(Api(frontend.url).lines, COMPLETIONS, BODY)
        stopped.launcher.start_again(stopped.launcher.triton)
        lines = second.result()
        assert (lines[0], lines[-2]) == (": keepalive: the model is loading", "data: [DONE]")
