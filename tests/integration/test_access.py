"""Keys and the operations port on the real stack, with two workers on the port."""

from __future__ import annotations

import asyncio
import math
import urllib.error
import urllib.request
from functools import partial

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.operations import Server
from tests.integration.replicas import streaming, until
from tests.integration.stack import MAX_SEQUENCES, PACED_MODEL
from tests.waiting import wait_until

TWO_SECONDS = 200  # tokens of the paced model
TWENTY_SECONDS = 10 * TWO_SECONDS


def test_a_key_uses_and_sees_its_models_only(server: Server) -> None:
    with server.client("demo") as client:
        assert "demo" in {model.id for model in client.models.list()}
        assert PACED_MODEL not in {model.id for model in client.models.list()}
        assert client.completions.create(model="demo", prompt="x", max_tokens=1).choices[0].finish_reason
        with pytest.raises(openai.PermissionDeniedError):
            client.completions.create(model=PACED_MODEL, prompt="x")
        with pytest.raises(openai.PermissionDeniedError):
            client.completions.create(model="demo-formal", prompt="x")
    stranger = openai.OpenAI(base_url=f"{server.stack.url}/v1", api_key="no", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert server.admin("GET", "/admin/models", "demo")[0] == 403


def test_a_key_that_is_added_and_removed_works_and_stops_working_in_every_worker(server: Server) -> None:
    server.key_file.add("late")
    assert server.admin("POST", "/admin/keys/reload") == (200, {"num_keys": 5})
    text = server.key_file.texts["late"]

    def statuses() -> set[int]:
        with_key = {"Authorization": f"Bearer {text}"}
        found = set()
        for _ in range(10):  # a connection each, so that the kernel chooses the worker
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{server.stack.url}/v1/models", headers=with_key), timeout=60
                ) as answer:
                    found.add(answer.status)
            except urllib.error.HTTPError as exc:
                found.add(exc.code)
        return found

    wait_until(lambda: statuses() == {200}, "every worker knows the key")
    server.key_file.remove("late")
    wait_until(lambda: statuses() == {401}, "every worker has forgotten the key")


async def test_an_unload_lets_streams_end_and_a_load_or_a_request_brings_the_model_back(server: Server) -> None:
    headers = server.key_file.headers("everything")
    async with streaming(server.stack.url, TWO_SECONDS, MAX_SEQUENCES, headers) as outcomes:
        await until(lambda: all(outcome.text for outcome in outcomes), "they have begun")
        assert (await unload(server, timeout_s=60)) == (200, 0)
    assert all(outcome.is_whole for outcome in outcomes)
    with server.client("everything") as client:
        assert client.completions.create(model="demo", prompt="x", max_tokens=1).choices
        states = {model["id"]: model["state"] for model in server.admin("GET", "/admin/models")[1]["models"]}
        assert (states["demo"], states[PACED_MODEL]) == ("ready", "unloaded")
        assert server.admin("POST", f"/admin/models/{PACED_MODEL}/load")[0] == 200
        answer = client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=3)
        assert answer.usage is not None and answer.usage.completion_tokens == 3
        assert (await unload(server, timeout_s=60)) == (200, 0)
        assert client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=3).choices


async def test_streams_that_outlast_an_unload_end_with_an_error_in_every_worker(server: Server) -> None:
    num_streams = 4 * MAX_SEQUENCES  # enough for each worker to send no more requests, if they counted as failures
    num_queued, headers = num_streams - MAX_SEQUENCES, server.key_file.headers("everything")
    async with streaming(server.stack.url, TWENTY_SECONDS, num_streams, headers) as outcomes:
        await until(lambda: sum(bool(outcome.text) for outcome in outcomes) == MAX_SEQUENCES, "the first have begun")
        await until(lambda: gauge(server, "conch_requests_waiting") == num_queued, "the others are queued")
        assert (await unload(server, timeout_s=0)) == (200, num_streams)
    assert [outcome.error and outcome.error["code"] for outcome in outcomes] == ["model_not_ready"] * num_streams
    wait_until(lambda: math.isnan(gauge(server, "conch_engine_up")), "it is known to be unloaded, not down")
    assert server.admin("POST", f"/admin/models/{PACED_MODEL}/load")[0] == 200
    for _ in range(8):  # on connections of their own, for both workers
        with server.client("everything") as client:
            answer = client.completions.create(model=PACED_MODEL, prompt="x", max_tokens=3)
            assert answer.choices[0].finish_reason == "length"
    wait_until(lambda: gauge(server, "conch_engine_up") == 1, "it is up again")


async def unload(server: Server, timeout_s: float) -> tuple[int, int]:
    """Unload the paced model; return the status and the number of requests that this ended."""
    path = f"/admin/models/{PACED_MODEL}/unload"
    status, answer = await asyncio.to_thread(partial(server.admin, "POST", path, timeout_s=timeout_s))
    return status, answer["num_ended"]


def gauge(server: Server, name: str) -> float:
    """Return what the metrics say of the paced model."""
    request = urllib.request.Request(f"{server.admin_url}/metrics", headers=server.key_file.headers("admin"))
    with urllib.request.urlopen(request, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return next(sample.value for sample in samples if sample.labels["model"] == PACED_MODEL)
