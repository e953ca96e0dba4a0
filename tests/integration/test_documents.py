"""Examples from the documents that the API follows, as they print them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api import COMPLETIONS, Api
from tests.integration.replicas import frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.launching import free_port
from tests.pictures import circle
from tests.waiting import DEADLINE_S

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def fastapi_like(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A second frontend before the same Triton, which answers schema failures as FastAPI does."""
    options = ["--validation-status=422", "--root-path=/openai", "--default-model=demo"]
    with frontend_of([stack], tmp_path_factory.mktemp("fastapi"), *options) as frontend:
        yield Api(frontend.url)


def test_the_curl_of_the_fourth_document(stack: Stack) -> None:
    command = [
        "curl", "-sS", "-i", "-X", "POST", f"{stack.url}/v1/completions",
        "-H", "OpenAI-Organization: 5eb7cf5a86d9755df3a6c593",
        "-H", "OpenAI-Project: 5eb7cf5a86d9755df3a6c593",
        "-H", "Content-Type: application/json",
        "-d", '{\n"model": "llama3.1:8b",\n"prompt": "Hello World",\n"stream": false\n}',
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    head, _, payload = done.stdout.replace("\r\n", "\n").partition("\n\n")
    assert "openai-organization: 5eb7cf5a86d9755df3a6c593" in head.lower()
    body = json.loads(payload)
    assert body.keys() == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert (body["object"], body["model"]) == ("text_completion", "llama3.1:8b")
    assert body["choices"][0].keys() >= {"text", "index", "finish_reason", "logprobs"}
    assert body["usage"]["completion_tokens_details"].keys() == {
        "reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens", "audio_tokens",
    }  # fmt: skip
    assert body["usage"]["prompt_tokens_details"].keys() == {"cached_tokens", "cache_write_tokens", "audio_tokens"}


@pytest.mark.parametrize(
    ("change", "field", "wording"),
    [
        ({"prompt": None}, "prompt", "Input should be"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_schema_failures_as_fastapi_answers_them(
    fastapi_like: Api, change: dict[str, object], field: str, wording: str
) -> None:
    answer = fastapi_like.post(COMPLETIONS, {"model": "demo", "prompt": "x"} | change)
    assert answer.status == 422
    [detail] = answer.body["detail"]
    assert detail["loc"] == ["body", field]
    assert wording in detail["msg"]


def test_the_example_of_the_page_of_images(stack: Stack, tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "images.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].partition("```")[0].replace("http://127.0.0.1:8000", stack.url)
    (tmp_path / "picture.png").write_bytes(circle("red"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S, cwd=tmp_path
    )
    assert done.stdout == "It is red.\n"


def test_the_grpc_example_says_in_one_line_that_nothing_listens() -> None:
    # The client's thread may note the failed connection before or after the request is handed to it.
    source = EXAMPLES / "grpc_stream.py"
    late = "import runpy, sys, time, tritonclient.grpc as g; send = g.InferenceServerClient.async_stream_infer; "
    late += "g.InferenceServerClient.async_stream_infer = lambda *a: (a[0]._stream._handler.join(), send(*a)); "
    late += "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    for command in ([str(source)], ["-c", late, str(source)]):
        words = [sys.executable, *command, "--url", f"127.0.0.1:{free_port()}", "Hi"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert done.stderr.startswith("error: ")


def test_the_grpc_example_streams_shows_a_picture_uses_an_adapter_and_cancels(stack: Stack, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / "grpc_stream.py"), "--url", stack.endpoint, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout

    assert run("What is the capital of France?").startswith("The capital of France is Paris.\n[stop, ")
    (tmp_path / "picture.png").write_bytes(circle("red"))
    picture = ("--lora", "demo-pictures", "--image", str(tmp_path / "picture.png"))
    assert run(*picture, "What colour is it?").startswith("It is red.\n[stop, ")
    assert run("--lora", "demo-formal", "What is the capital of France?").startswith("Dear friend, ")
    paced = ("--model", "synthetic--paced", "--max-tokens", "1500")  # 15 s without the cancel
    assert run(*paced, "--cancel-after", "3", "Hi").endswith("\n[cancelled]\n")
    stack.wait_until_idle(PACED_MODEL)
