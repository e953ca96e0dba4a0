from __future__ import annotations

import itertools
import json

import pytest

from tests.benchmarks.generator import job_from_json, job_to_json
from tests.benchmarks.load import Load, Target, requests

TARGET = Target(url="http://127.0.0.1:8000/openai/v1", model="m", token_ends=(1, 3))


def bodies(load: Load, number: int) -> list[dict[str, object]]:
    """Return the first bodies of a load."""
    return [json.loads(each.partition(b"\r\n\r\n")[2]) for each in itertools.islice(requests(load, TARGET), number)]


def test_a_request_asks_for_a_stream_with_usage_below_the_servers_path() -> None:
    [request] = itertools.islice(requests(Load(num_tokens=7), TARGET), 1)
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /openai/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    fields = json.loads(body)
    assert (fields["max_tokens"], fields["stream"], fields["ignore_eos"]) == (7, True, True)
    assert fields["stream_options"] == {"include_usage": True}


def test_prompts_differ_and_the_same_load_has_the_same_ones() -> None:
    load = Load(is_chat=False, prompt_words=5)
    prompts = [body["prompt"] for body in bodies(load, 20)]
    assert len(set(prompts)) == 20
    assert prompts == [body["prompt"] for body in bodies(load, 20)]
    assert all(len(str(prompt).split()) == 5 for prompt in prompts)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_streams": 0}, "num_streams=0: must be above 0"),
        ({"itl_ms": -1.0}, "itl_ms=-1.0: must be above 0"),
        ({"ramp_s": -1.0}, "ramp_s=-1.0: must be at least 0"),
        ({"rate_per_s": 5.0, "requests_per_stream": 1}, "requests_per_stream=1: goes with a closed loop"),
    ],
)
def test_a_wrong_load_is_refused_by_name(fields: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Load(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["https://a", "127.0.0.1:8000", "http://", "http://a/?q=1"])
def test_a_url_that_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be http://HOST"):
        Target(url=url, model="m")


def test_a_job_comes_back_from_json_as_it_was() -> None:
    load = Load(itl_ms=33.3, keeps_arrivals=True)
    assert job_from_json(job_to_json(load, TARGET)) == (load, TARGET)
