"""What the frontend exports, by one worker and by two."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from frontend.errors import EngineFailed
from frontend.settings import Settings
from frontend.telemetry.definitions import METRICS
from frontend.telemetry.log_lines import REQUEST_LOGGER, JsonFormatter
from frontend.telemetry.observer import Observer
from model_repository.contract.output import DeviceState, GenerationChunk
from tests.fakes import FakeTriton, chunks, served_model, stats
from tests.frontend.conftest import Serve
from tests.frontend.launcher.test_workers import two_workers
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

BODY = {"model": "org/demo", "prompt": "a secret", "max_tokens": 10}


async def scraped(http: Any) -> list[Family]:
    return list(text_string_to_metric_families(await (await http.get("/metrics")).text()))


def value(families: list[Family], name: str, **labels: str) -> float:
    """Return the sum of a name's samples with these labels."""
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def test_a_client_that_leaves_is_a_cancelled_request_and_no_error(serve: Serve) -> None:
    triton = FakeTriton([GenerationChunk(text="a"), asyncio.Event()])
    http = await serve(triton)
    answer = await http.post("/v1/completions", json=BODY | {"stream": True})
    await answer.content.readany()
    answer.close()
    await triton.closed.wait()
    families = await scraped(http)
    while not value(families, "conch_cancelled_total", model="org/demo"):
        families = await scraped(http)
    assert value(families, "conch_requests_in_flight") == 0
    assert value(families, "conch_completions_total", finish_reason="cancelled") == 1
    assert value(families, "conch_errors_total") == 0


async def test_a_waiting_request_is_in_flight_too(serve: Serve) -> None:
    """Otherwise an autoscaler never adds a replica if one decodes fewer requests at a time than the target."""
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, max_in_flight=1)
    tasks = [asyncio.create_task(http.post("/v1/completions", json=BODY)) for _ in range(3)]
    async with asyncio.timeout(10):
        while value(await scraped(http), "conch_requests_in_flight") < len(tasks):
            pass
    assert len(triton.requests) == 1
    for task in tasks:
        task.cancel()


async def test_clients_cannot_create_labels(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("a")))
    counts = []
    for number in range(5):
        await http.post("/v1/completions", json=BODY | {"model": f"nobody/{number}"})
        await http.get(f"/v1/nothing/{number}")
        await http.get(f"/v1/models/m{number}")
        counts.append(sum(len(family.samples) for family in await scraped(http)))
    assert counts[-1] - counts[0] <= 1  # /metrics itself has been asked for
    assert value(await scraped(http), "conch_requests_total", model="unknown") >= 15


async def test_vllms_metric_names_exist_only_on_request(serve: Serve) -> None:
    plain = await serve(FakeTriton(chunks("a")))
    assert not [family for family in await scraped(plain) if family.name.startswith("vllm:")]
    http = await serve(FakeTriton(chunks("a", "b")), metrics_compat="vllm")
    await (await http.post("/v1/completions", json=BODY | {"stream": True})).read()
    families = await scraped(http)
    labels = {"model_name": "org/demo", "engine": "0"}
    assert value(families, "vllm:time_to_first_token_seconds_count", **labels) == 1
    assert value(families, "vllm:inter_token_latency_seconds_count", **labels) == 1
    assert value(families, "vllm:prompt_tokens_total", **labels) == 7
    assert value(families, "vllm:prefix_cache_hits_total", **labels) == 3
    assert value(families, "vllm:request_success_total", finished_reason="stop", **labels) == 1
    shown = {family.name: family.type for family in families}
    for metric in METRICS:
        for name in metric.vllm:
            assert shown[name.removesuffix("_total")] == metric.kind


async def test_keys_are_named_on_request_only(serve: Serve) -> None:
    for is_asked in (False, True):
        http = await serve(FakeTriton(chunks("a")), metrics_by_key=is_asked)
        await http.post("/v1/completions", json=BODY)
        assert value(await scraped(http), "conch_key_output_tokens_total", key="anonymous") == 5 * is_asked


async def test_the_line_of_a_request_in_json_has_sizes_and_times_but_no_prompt(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    http = await serve(FakeTriton(chunks("an answer")))
    await http.post("/v1/completions", json=BODY, headers={"x-request-id": "r1", "Authorization": "Bearer k"})
    await http.get("/health/live")  # has no line
    [record] = [each for each in caplog.records if each.name == REQUEST_LOGGER]
    line = json.loads(JsonFormatter().format(record))
    assert line["request_id"] == "r1"
    assert (line["status"], line["model"], line["error"]) == (200, "org/demo", None)
    assert (line["input_tokens"], line["output_tokens"], line["cached_tokens"]) == (7, 5, 3)
    assert line["finish_reasons"] == ["stop"]
    assert line["total_ms"] >= line["ttft_ms"] > 0
    assert not re.search("secret|an answer|Bearer", json.dumps(line))


def test_a_log_line_with_a_line_break_stays_one_line_of_json() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as exc:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "a\n%s", ("b",), (type(exc), exc, exc.__traceback__))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "a\nb"
    assert "two\nlines" in json.loads(line)["exception"]


def test_metrics_cover_all_workers_and_a_dead_one_leaves_only_its_counters(tmp_path: Path) -> None:
    with two_workers(tmp_path) as (frontend, workers):
        url = frontend.url
        environ = Path(f"/proc/{workers[0]}/environ").read_bytes().decode()
        folder = Path(re.findall(r"PROMETHEUS_MULTIPROC_DIR=([^\0]+)", environ)[0])

        def total() -> float:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
            return value(families, "conch_requests_total", endpoint="/health/live")

        def is_total(number: int) -> bool:
            return total() == number

        for number in range(1, 41):  # the kernel deals them out
            urllib.request.urlopen(f"{url}/health/live", timeout=10).close()
            wait_until(partial(is_total, number), "the worker has counted the request")
        counted_by = {path.name for path in folder.glob("counter_*.db")}
        assert len(counted_by) == 2
        os.kill(workers[0], signal.SIGKILL)
        frontend.wait_for(" listens on ", 3)
        assert total() == 40
        assert not list(folder.glob(f"gauge_live*_{workers[0]}.db"))
        frontend.process.send_signal(signal.SIGTERM)
        frontend.status()
        assert not folder.exists()


async def test_each_engine_has_gauges_of_its_own(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.triton.health_monitor.STATS_INTERVAL_S", 0.01)
    http = await serve(FakeTriton(models=[served_model(), served_model(replica=2)]))
    up: list[Any] = []
    while len(up) < 2:
        up = [sample for family in await scraped(http) if family.name == "conch_engine_up" for sample in family.samples]
    assert [(sample.labels, sample.value) for sample in up] == [
        ({"model": "org/demo", "triton": "fake:1"}, 1),
        ({"model": "org/demo", "triton": "fake:1@2"}, 1),
    ]


def test_an_endpoint_that_is_gone_is_neither_up_nor_down() -> None:
    observer = Observer(Settings())
    for endpoint in ("10.0.0.1:8001", "10.0.0.2:8001"):
        observer.note_engine(endpoint, "demo", stats(1, 0))
    observer.note_engine("10.0.0.1:8001", "demo@2", stats(1, 0))

    def exported() -> list[str]:
        text, _ = observer.metrics.exposition("text/plain", has_vllm_names=False)
        return [line for line in text.decode().splitlines() if 'triton="10.0.0.1:8001' in line]

    labels = '{model="demo",triton="10.0.0.1:8001"}'
    assert f"conch_engine_up{labels} 1.0" in exported()
    observer.forget("10.0.0.1:8001")
    observer.forget("10.0.0.9:8001")
    assert f"conch_engine_up{labels} NaN" in exported()
    assert 'conch_engine_up{model="demo",triton="10.0.0.1:8001@2"} NaN' in exported()
    assert f"conch_requests_running{labels} 0.0" in exported()


def test_an_unknown_use_of_the_kv_cache_is_not_a_number() -> None:
    observer = Observer(Settings())
    for known in (stats(1, 0), replace(stats(1, 0), num_kv_tokens_used=None, max_kv_tokens=None)):
        observer.note_engine("a:1", "demo", known)
    text, _ = observer.metrics.exposition("text/plain", has_vllm_names=False)
    assert 'conch_kv_cache_usage_ratio{model="demo",triton="a:1"} NaN' in text.decode()


def test_the_memory_of_each_device_is_shown_until_the_engine_is_gone() -> None:
    observer = Observer(Settings())
    states = {"CUDA0": DeviceState(used_bytes=3, free_bytes=4)}
    labels = '{device="CUDA0",model="demo",triton="a:1"}'
    for seen, used, free in ((replace(stats(1, 0), devices=states), "3.0", "4.0"), (EngineFailed(), "0.0", "NaN")):
        observer.note_engine("a:1", "demo", seen)
        text, _ = observer.metrics.exposition("text/plain", has_vllm_names=False)
        assert f"conch_device_used_bytes{labels} {used}" in text.decode()
        assert f"conch_device_free_bytes{labels} {free}" in text.decode()


def test_an_engine_that_goes_down_has_the_time_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(Settings())
    for now, seen in ((100, stats(1, 0)), (200, stats(1, 0)), (300, EngineFailed()), (400, EngineFailed())):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        observer.note_engine("a:1", "demo", seen)
        text, _ = observer.metrics.exposition("text/plain", has_vllm_names=False)
        since = 100.0 if now < 300 else 300.0
        assert f'conch_engine_up_since_seconds{{model="demo",triton="a:1"}} {since}' in text.decode()
