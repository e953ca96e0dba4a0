"""LoRA adapters that are loaded and unloaded while the server runs: two workers, and a frontend beside them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from build_engines.adapter import build_adapter
from frontend.caller import Role
from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import chat_text
from tests.integration.operations import Server, running_server
from tests.integration.replicas import frontend_of
from tests.integration.stack import Stack
from tests.waiting import wait_until

ROUTE = "/admin/models/demo/adapters"
FORMAL = Path(__file__).parents[2] / "build_engines" / "demo" / "adapters" / "formal"
QUESTIONS = ("What is the capital of France?", "What color is the sky?", "What is 7 + 5?", "Count from 1 to 9.")


@pytest.fixture(scope="module")
def root(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which adapters are loaded: the demo model's own one, and one that changes next to nothing."""
    folder = tmp_path_factory.mktemp("adapters")
    [artifact] = (repository.parent / "artifacts").glob("demo-*")
    faint = tmp_path_factory.mktemp("peft") / "faint"
    shutil.copytree(FORMAL, faint)
    config = json.loads((faint / "adapter_config.json").read_text())
    (faint / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 1e-6}))
    build_adapter(FORMAL, artifact, folder / "formal")
    build_adapter(faint, artifact, folder / "teams" / "faint")
    wide = folder / "wide" / "adapter.json"
    shutil.copytree(folder / "formal", wide.parent)
    wide.write_text(wide.read_text().replace('"rank": 8', '"rank": 65'))
    damaged = folder / "damaged" / "adapter.gguf"
    shutil.copytree(folder / "formal", damaged.parent)
    damaged.write_bytes(damaged.read_bytes()[:-4])
    (folder / "elsewhere").symlink_to(faint)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    served = folder / "repository"
    artifacts = [str(path) for path in (repository.parent / "artifacts").iterdir() if path.is_dir()]
    command = [sys.executable, "-m", "build_engines", "render", *artifacts, "--repository", str(served)]
    subprocess.run([*command, "--max-sequences", "4", "--adapter-root", str(root)], check=True, capture_output=True)
    key_file = KeyFile(folder / "keys.json")
    key_file.add("admin", role=Role.ADMIN)
    key_file.add("everything")
    key_file.add("demo", models=("demo",))
    key_file.add("polite", models=("polite",))
    with running_server(served, folder, key_file) as server:
        yield server


@pytest.fixture(scope="module")
def stack(server: Server) -> Iterator[Stack]:
    with Stack.of(server.launcher) as stack:
        yield stack


@pytest.fixture
def polite(server: Server) -> Iterator[str]:
    """The demo model's own adapter, loaded under another name."""
    assert load(server, "polite", "formal")[0] == 200
    yield "polite"
    server.admin("DELETE", f"{ROUTE}/polite")


def load(server: Server, name: str, source: str) -> tuple[int, Any]:
    return server.admin("POST", ROUTE, name=name, source=source)


def ask(client: openai.OpenAI, model: str, question: str = QUESTIONS[0], **fields: Any) -> Any:
    return client.completions.create(model=model, prompt=chat_text(question), max_tokens=64, temperature=0, **fields)


def endpoint_of(answer: Any) -> Any:
    [outcome] = answer["endpoints"].values()
    return outcome


def test_an_adapter_is_loaded_and_used_and_every_frontend_knows_it_at_once(
    server: Server, stack: Stack, tmp_path: Path
) -> None:
    with frontend_of([stack], tmp_path) as other:  # which has no keys
        status, answer = load(server, "polite", "formal")
        assert (status, answer["name"], endpoint_of(answer)) == (200, "polite", {"state": "loaded"})
        for url in [server.launcher.url] * 8 + [other.url]:  # a connection each, so that the kernel chooses the worker
            with server.client("everything", url) as client:
                assert "polite" in {model.id for model in client.models.list()}
                assert ask(client, "polite").choices[0].text == "Dear friend, The capital of France is Paris."
                assert ask(client, "demo").choices[0].text == "The capital of France is Paris."
        listed = endpoint_of(server.admin("GET", ROUTE)[1])
        assert listed["adapters"] == {"demo-formal": None, "polite": "formal"}
        assert load(server, "polite", "formal")[0] == 200  # it is there already
        assert server.admin("DELETE", f"{ROUTE}/polite")[0] == 200
        for url in [server.launcher.url] * 8 + [other.url]:
            with server.client("everything", url) as client:
                assert "polite" not in {model.id for model in client.models.list()}
                with pytest.raises(openai.NotFoundError):
                    ask(client, "polite")


def test_requests_beside_a_load_and_an_unload_answer_as_alone(server: Server) -> None:
    jobs = [(model, question) for question in QUESTIONS for model in ("demo", "demo-formal")]
    with server.client("everything") as client:

        def text(job: tuple[str, str]) -> str:
            with client.completions.create(
                model=job[0], prompt=chat_text(job[1]), max_tokens=64, temperature=0, stream=True
            ) as stream:
                return "".join(event.choices[0].text for event in stream)

        alone = [text(job) for job in jobs]
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(lambda: [text(job) for job in jobs]) for _ in range(8)]
            for source in ("formal", "teams/faint"):
                assert load(server, "passing", source)[0] == 200
                assert server.admin("DELETE", f"{ROUTE}/passing")[0] == 200
            assert [texts.result() for texts in running] == [alone] * 8


def test_a_stream_outlives_the_unload_of_its_adapter(server: Server, stack: Stack, polite: str) -> None:
    body: dict[str, Any] = {"prompt": chat_text(QUESTIONS[3]), "max_tokens": 1500, "temperature": 0}
    body["extra_body"] = {"ignore_eos": True}
    with server.client("everything") as client:
        # As a stream, whose client waits for one event at a time: the whole answer may take longer than it waits.
        with client.completions.create(model="demo-formal", stream=True, **body) as stream:
            alone = "".join(event.choices[0].text for event in stream)
        with client.completions.create(model=polite, stream=True, **body) as stream:
            events = iter(stream)
            text = next(events).choices[0].text
            status, answer = server.admin("DELETE", f"{ROUTE}/{polite}")
            assert (status, endpoint_of(answer)) == (200, {"state": "unloaded", "num_unloading": 1})
            for event in events:
                text += event.choices[0].text
        assert (text, event.choices[0].finish_reason) == (alone, "length")
        with pytest.raises(openai.NotFoundError):
            ask(client, polite)
    assert stack.stats("demo").num_unloading == 0


def test_a_name_that_comes_back_with_other_weights_finds_nothing_of_the_old_ones(server: Server, polite: str) -> None:
    prompt = "Please tell me: " + "what is the capital of France? " * 20
    with server.client("everything") as client:
        formal = [ask(client, polite, prompt) for _ in range(2)]
        assert formal[1].usage.prompt_tokens_details.cached_tokens > 10
        assert server.admin("DELETE", f"{ROUTE}/{polite}")[0] == 200
        assert load(server, polite, "teams/faint")[0] == 200
        faint = ask(client, polite, prompt)
        assert faint.usage.prompt_tokens_details.cached_tokens < 10
        assert faint.choices[0].text == ask(client, "demo", prompt).choices[0].text != formal[0].choices[0].text


def test_memory_of_adapters_is_counted_and_what_comes_back_is_not_loaded_twice(server: Server, stack: Stack) -> None:
    held = []
    for _ in range(3):
        assert load(server, "passing", "formal")[0] == 200
        held.append(stack.stats("demo").adapter_bytes)
        assert server.admin("DELETE", f"{ROUTE}/passing")[0] == 200
    assert held == [held[0]] * 3


def test_keys_allow_an_adapter_by_its_name(server: Server, polite: str) -> None:
    with server.client("polite") as client:
        assert [model.id for model in client.models.list()] == [polite]
        assert ask(client, polite).choices[0].text.startswith("Dear friend, ")
    with server.client("demo") as client, pytest.raises(openai.PermissionDeniedError):
        ask(client, polite)
    assert server.admin("POST", ROUTE, "everything", name="x", source="formal")[0] == 403
    assert server.admin("DELETE", f"{ROUTE}/{polite}", "demo")[0] == 403


@pytest.mark.parametrize(
    ("name", "source", "param", "rule"),
    [
        ("x", "../peft", "source", "must be a folder below the root"),
        ("x", "/etc", "source", "must be a folder below the root"),
        ("x", ".", "source", "must be a folder below the root"),
        ("x", "elsewhere", "source", "must be a folder below the root"),  # a link
        ("x", "nothing", "source", "no such folder below the root"),
        ("x", "teams", "source", "it has no adapter.json"),
        ("x", "wide", "source", "its rank is 65: at most 64"),
        ("x", "damaged", "source", "'adapter.gguf' differs from its digest"),
        ("a--b", "formal", "name", "neither `--` nor `__`"),
        ("demo", "formal", "name", "a name of the model demo"),
        ("llama3.1:8b", "formal", "name", "a name of the model demo"),  # an alias
        ("synthetic/paced", "formal", "name", "a name of the model synthetic/paced"),
        ("demo-formal", "teams/faint", "name", "another adapter is loaded under this name"),
        ("", "formal", "name", "at least 1 character"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_field_value_and_rule(
    server: Server, name: str, source: str, param: str, rule: str
) -> None:
    status, answer = load(server, name, source)
    assert (status, answer["error"]["param"]) == (400, param)
    assert rule in answer["error"]["message"] and (name if param == "name" else source) in answer["error"]["message"]
    assert endpoint_of(server.admin("GET", ROUTE)[1])["adapters"] == {"demo-formal": None}


def test_what_is_not_there_is_404_and_what_is_built_in_stays(server: Server) -> None:
    assert server.admin("DELETE", f"{ROUTE}/nothing")[0] == 404
    assert server.admin("GET", "/admin/models/nothing/adapters")[0] == 404
    assert server.admin("POST", "/admin/models/nothing/adapters", name="x", source="formal")[0] == 404
    status, answer = server.admin("DELETE", f"{ROUTE}/demo-formal")
    assert (status, answer["error"]["param"]) == (400, "name")


def test_a_killed_engine_comes_back_with_what_was_loaded(server: Server, stack: Stack, polite: str) -> None:
    assert load(server, "passing", "formal")[0] == 200
    assert server.admin("DELETE", f"{ROUTE}/passing")[0] == 200
    epoch = stack.stats("demo").epoch
    stack.kill_stage("demo__engine")
    with server.client("everything") as client:

        def answers() -> bool:
            try:
                return bool(ask(client, polite).choices[0].text.startswith("Dear friend, "))
            except openai.InternalServerError:  # 503 until it is reloaded
                return False

        wait_until(answers, "the adapter answers again")
        assert stack.stats("demo").epoch != epoch
        assert stack.stats("demo").adapters == {"demo-formal": "", "polite": "formal"}
        with pytest.raises(openai.NotFoundError):
            ask(client, "passing")
