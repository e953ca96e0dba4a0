"""The figures of an endpoint that is gone for good."""

from __future__ import annotations

from frontend.settings import Settings
from frontend.telemetry.observer import Observer
from tests.fakes import stats


def exported(observer: Observer) -> list[str]:
    text, _ = observer.metrics.exposition("text/plain", has_vllm_names=False)
    return [line for line in text.decode().splitlines() if 'triton="10.0.0.1:8001"' in line]


def test_it_is_neither_up_nor_down_and_has_no_requests():
    observer = Observer(Settings())
    for endpoint in ("10.0.0.1:8001", "10.0.0.2:8001"):
        observer.looked_at(endpoint, "demo", stats(1, 0))
    labels = '{model="demo",triton="10.0.0.1:8001"}'
    assert f"conch_engine_up{labels} 1.0" in exported(observer)
    observer.forget("10.0.0.1:8001")
    observer.forget("10.0.0.9:8001")
    assert f"conch_engine_up{labels} NaN" in exported(observer)
    assert f"conch_requests_running{labels} 0.0" in exported(observer)
