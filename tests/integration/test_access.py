"""Keys and the operations port on the real stack, with two workers on the port."""

from __future__ import annotations

import math
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from frontend.caller import Role
from tests.frontend.gateway.key_files import KeyFile
from tests.integration.operations import Server, running_server
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL
from tests.waiting import wait_until

TWO_SECONDS = 200  # tokens of the paced model
TWENTY_SECONDS = 10 * TWO_SECONDS


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("access")
    key_file = KeyFile(folder / "keys.json")
    key_file.add("admin", role=Role.ADMIN)
    key_file.add("everything")
    key_file.add("demo", models=("demo",))
    with running_server(repository, folder, key_file) as server:
        yield server


class Streams:
    """Completions of the paced model that run at the same time, and how each ended."""

    def __init__(self, server: Server, count: int, max_tokens: int, num_queued: int = 0) -> None:
        self.ends: list[str] = []
        self.num_begun = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read, args=(server, max_tokens)) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.num_begun == count - num_queued, "every stream has begun that is not queued")

    def join(self) -> list[str]:
        """Wait for all, and return how they ended."""
        for thread in self._threads:
            thread.join(60)
        return self.ends

    def _read(self, server: Server, max_tokens: int) -> None:
        end = "nothing"
        try:
            with (
                server.client("everything") as client,
                client.completions.create(model=PACED_MODEL, prompt="x", stream=True, max_tokens=max_tokens) as stream,
            ):
                for number, event in enumerate(stream):
                    with self._lock:
                        self.num_begun += number == 0
                    end = event.choices[0].finish_reason or end
        except openai.APIError as exc:
            end = str(exc.code)
        with self._lock:
            self.ends.append(end)


def test_a_key_uses_and_sees_its_models_only(server: Server) -> None:
    with server.client("demo") as client:
        assert "demo" in {model.id for model in client.models.list()}
        assert PACED_MODEL not in {model.id for model in client.models.list()}
        assert client.completions.create(model="demo", prompt="x", max_tokens=1).choices[0].finish_reason
        with pytest.raises(openai.PermissionDeniedError):
            client.completions.create(model=PACED_MODEL, prompt="x")
        with pytest.raises(openai.PermissionDeniedError):
            client.completions.create(model="demo-formal", prompt="x")
    stranger = openai.OpenAI(base_url=f"{server.launcher.url}/v1", api_key="no", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert server.admin("GET", "/admin/models", "demo")[0] == 403


def test_a_key_that_is_added_and_removed_works_and_stops_working_in_every_worker(server: Server) -> None:
    server.key_file.add("late")
    assert server.admin("POST", "/admin/keys/reload") == (200, {"num_keys": 4})
    text = server.key_file.texts["late"]

    def statuses() -> set[int]:
        with_key = {"Authorization": f"Bearer {text}"}
        found = set()
        for _ in range(10):  # a connection each, so that the kernel chooses the worker
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{server.launcher.url}/v1/models", headers=with_key), timeout=60
                ) as answer:
                    found.add(answer.status)
            except urllib.error.HTTPError as exc:
                found.add(exc.code)
        return found

    wait_until(lambda: statuses() == {200}, "every worker knows the key")
    server.key_file.remove("late")
    wait_until(lambda: statuses() == {401}, "every worker has forgotten the key")


def test_an_unload_lets_streams_end_and_refuses_new_ones_and_a_load_brings_the_model_back(server: Server) -> None:
    streams = Streams(server, 4, TWO_SECONDS)
    status, answer = server.admin("POST", f"/admin/models/{PACED_MODEL}/unload", timeout_s=60)
    assert (status, answer["num_ended"]) == (200, 0)
    assert streams.join() == ["length"] * 4
    with server.client("everything") as client:
        for _ in range(4):
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=1)
            assert (refused.value.status_code, refused.value.code) == (503, "model_not_ready")
        assert client.completions.create(model="demo", prompt="x", max_tokens=1).choices
        states = {model["id"]: model["state"] for model in server.admin("GET", "/admin/models")[1]["models"]}
        assert states["demo"] == "ready" and states[PACED_MODEL] != "ready"
        assert server.admin("POST", f"/admin/models/{PACED_MODEL}/load")[0] == 200
        answer = client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=3)
        assert answer.usage is not None and answer.usage.completion_tokens == 3


def test_streams_that_outlast_an_unload_end_with_an_error_in_every_worker(server: Server) -> None:
    num_streams = 4 * MAX_SEQUENCES  # enough to open a circuit breaker in each worker, if they counted as failures
    streams = Streams(server, num_streams, TWENTY_SECONDS, num_queued=num_streams - MAX_SEQUENCES)
    wait_until(lambda: gauge(server, "conch_requests_waiting") == num_streams - MAX_SEQUENCES, "the others are queued")
    status, answer = server.admin("POST", f"/admin/models/{PACED_MODEL}/unload", timeout_s=0)
    assert (status, answer["num_ended"]) == (200, num_streams)
    assert streams.join() == ["model_not_ready"] * num_streams
    wait_until(lambda: math.isnan(gauge(server, "conch_engine_up")), "it is known to be unloaded, not down")
    assert server.admin("POST", f"/admin/models/{PACED_MODEL}/load")[0] == 200
    for _ in range(8):  # on connections of their own, for both workers
        with server.client("everything") as client:
            answer = client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=3)
            assert answer.choices[0].finish_reason == "length"
    wait_until(lambda: gauge(server, "conch_engine_up") == 1, "it is up again")


def gauge(server: Server, name: str) -> float:
    """Return what the metrics say of the paced model."""
    request = urllib.request.Request(f"{server.admin_url}/metrics", headers=server.key_file.headers("admin"))
    with urllib.request.urlopen(request, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return next(sample.value for sample in samples if sample.labels["model"] == PACED_MODEL)


def test_what_is_not_there_is_404(server: Server) -> None:
    assert server.admin("POST", "/admin/models/nothing/load")[0] == 404
    assert server.admin("POST", "/admin/models/nothing/unload")[0] == 404
