"""LoRA adapters that are loaded and unloaded while the server runs: two workers, and a frontend beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.api import chat_text
from tests.integration.operations import Server
from tests.integration.replicas import frontend_of
from tests.integration.stack import MAX_SEQUENCES, Stack
from tests.waiting import wait_until

ROUTE = "/admin/models/demo/adapters"
OWN = {"demo-formal": None, "demo-pictures": None}  # part of the artifact
QUESTIONS = ("What is the capital of France?", "What color is the sky?", "What is 7 + 5?", "Count from 1 to 9.")


@pytest.fixture
def stack(server: Server) -> Stack:
    return server.stack


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
        for url in [server.stack.url] * 8 + [other.url]:  # a connection each, so that the kernel chooses the worker
            with server.client("everything", url) as client:
                assert "polite" in {model.id for model in client.models.list()}
                assert ask(client, "polite").choices[0].text == "Dear friend, The capital of France is Paris."
                assert ask(client, "demo").choices[0].text == "The capital of France is Paris."
        listed = endpoint_of(server.admin("GET", ROUTE)[1])
        assert listed["adapters"] == OWN | {"polite": "formal"}
        assert load(server, "polite", "formal")[0] == 200  # it is there already
        assert server.admin("DELETE", f"{ROUTE}/polite")[0] == 200
        for url in [server.stack.url] * 8 + [other.url]:
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
    # Several choices, so that the stream runs longer than the unload takes; few tokens, since on a busy machine the CPU
    # engine needs a hundred times as long for each.
    body: dict[str, Any] = {"prompt": chat_text(QUESTIONS[3]), "max_tokens": 200, "n": MAX_SEQUENCES, "temperature": 0}
    body["extra_body"] = {"ignore_eos": True}
    with server.client("everything") as client:

        def texts_of(events: Iterable[Any]) -> list[str]:
            texts = [""] * MAX_SEQUENCES
            for event in events:
                texts[event.choices[0].index] += event.choices[0].text
            return texts

        with client.completions.create(model="demo-formal", stream=True, **body) as stream:
            alone = texts_of(stream)
        with client.completions.create(model=polite, stream=True, **body) as stream:
            events = iter(stream)
            first = next(events)
            status, answer = server.admin("DELETE", f"{ROUTE}/{polite}")
            assert (status, endpoint_of(answer)) == (200, {"state": "unloaded", "num_unloading": MAX_SEQUENCES})
            assert texts_of(itertools.chain([first], events)) == alone
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


def test_memory_of_adapters_is_counted_and_an_adapter_that_comes_back_is_not_loaded_twice(
    server: Server, stack: Stack
) -> None:
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
def test_a_load_is_refused_with_field_value_and_rule(
    server: Server, name: str, source: str, param: str, rule: str
) -> None:
    status, answer = load(server, name, source)
    assert (status, answer["error"]["param"]) == (400, param)
    assert rule in answer["error"]["message"] and (name if param == "name" else source) in answer["error"]["message"]
    assert endpoint_of(server.admin("GET", ROUTE)[1])["adapters"] == OWN


def test_unknown_adapters_are_404_and_built_in_ones_stay(server: Server) -> None:
    assert server.admin("DELETE", f"{ROUTE}/nothing")[0] == 404
    assert server.admin("GET", "/admin/models/nothing/adapters")[0] == 404
    assert server.admin("POST", "/admin/models/nothing/adapters", name="x", source="formal")[0] == 404
    status, answer = server.admin("DELETE", f"{ROUTE}/demo-formal")
    assert (status, answer["error"]["param"]) == (400, "name")


def test_a_killed_engine_comes_back_with_its_adapters(server: Server, stack: Stack, polite: str) -> None:
    assert load(server, "passing", "formal")[0] == 200
    assert server.admin("DELETE", f"{ROUTE}/passing")[0] == 200
    epoch = stack.stats("demo").epoch
    stack.kill_stage("demo__engine")
    with server.client("everything") as client:

        def answers() -> bool:
            stack.start_again_if_ended()
            try:
                return bool(ask(client, polite).choices[0].text.startswith("Dear friend, "))
            except openai.InternalServerError:  # 503 until it is reloaded
                return False

        wait_until(answers, "the adapter answers again")
        assert stack.stats("demo").epoch != epoch
        assert stack.stats("demo").adapters == dict.fromkeys(OWN, "") | {"polite": "formal"}
        with pytest.raises(openai.NotFoundError):
            ask(client, "passing")
