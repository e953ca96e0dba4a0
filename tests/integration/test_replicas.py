"""Two replicas of the demo model in one Triton, which clients see as one model."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from model_repository.contract.codec import message_tensor, payload_of
from model_repository.contract.output import EngineStats
from model_repository.contract.tensors import CONTROL, STATS
from tests.integration.api import CHAT, QUESTION, Api
from tests.integration.conftest import ENGINE, run_build, running_stack
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S, wait_until

NUM_REQUESTS = 8
BODY = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}


@pytest.fixture(scope="module")
def replicated(demo_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("replicas") / "repository"
    run_build("render", str(demo_artifact), "--replicas", "2", "--repository", str(repository), *ENGINE)
    with running_stack(repository, tmp_path_factory) as stack:
        yield stack


def num_finished(stack: Stack, ensemble: str) -> int:
    [answer] = stack.infer(f"{ensemble}__engine", message_tensor(CONTROL, b"{}"))
    return msgspec.json.decode(payload_of(answer, STATS), type=EngineStats).num_finished


def texts(api: Api) -> list[str]:
    """Return the answers to the same requests at the same time."""
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        return [answer.text for answer in pool.map(lambda _: api.post(CHAT, BODY), range(NUM_REQUESTS))]


def states(stack: Stack) -> dict[str, Any]:
    """Return the states of the model's replicas, by where they are."""
    replicas: dict[str, dict[str, str]] = Api(stack.url).get("/health/ready").body["replicas"]
    return {place.removeprefix(stack.endpoint): models.get("demo") for place, models in replicas.items()}


def test_replicas_share_the_requests_of_one_model_and_give_equal_answers(replicated: Stack) -> None:
    api, engines = Api(replicated.url), ("demo", "demo@2")
    wait_until(lambda: states(replicated) == {"": "ready", "@2": "ready"}, "both are ready")
    assert {card["root"] for card in api.get("/v1/models").body["data"]} == {"demo"}
    before = {engine: num_finished(replicated, engine) for engine in engines}
    assert len(set(texts(api))) == 1
    assert all(num_finished(replicated, engine) > before[engine] for engine in engines)
    with urllib.request.urlopen(f"{replicated.triton_metrics_url}/metrics", timeout=DEADLINE_S) as scraped:
        families = {family.name: family for family in text_string_to_metric_families(scraped.read().decode())}
    labels = [sample.labels for sample in families["conch_engine_sequences_active"].samples]
    assert sorted(labels, key=str) == [{"model": "demo", "replica": number} for number in ("1", "2")]


def test_a_replica_that_is_killed_gets_no_requests_until_it_is_back(replicated: Stack) -> None:
    api = Api(replicated.url)
    replicated.kill_stage("demo@2__engine")
    seen = set()

    def is_back() -> bool:
        assert api.post(CHAT, BODY).status == 200
        seen.add(states(replicated).get("@2"))
        return "recovering" in seen and states(replicated) == {"": "ready", "@2": "ready"}

    wait_until(is_back, "the replica is back")
    before = num_finished(replicated, "demo@2")
    texts(api)
    assert num_finished(replicated, "demo@2") > before
